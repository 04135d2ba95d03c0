"""`sglang.lang.api`: the language under the path that it has there."""

from sglc.api.function import function as function
from sglc.execution.context import flush_cache as flush_cache
from sglc.execution.context import get_server_info as get_server_info
from sglc.execution.context import set_default_backend as set_default_backend
from sglc.frontend.language.expr import assistant as assistant
from sglc.frontend.language.expr import assistant_begin as assistant_begin
from sglc.frontend.language.expr import assistant_end as assistant_end
from sglc.frontend.language.expr import gen as gen
from sglc.frontend.language.expr import gen_int as gen_int
from sglc.frontend.language.expr import gen_string as gen_string
from sglc.frontend.language.expr import image as image
from sglc.frontend.language.expr import select as select
from sglc.frontend.language.expr import separate_reasoning as separate_reasoning
from sglc.frontend.language.expr import system as system
from sglc.frontend.language.expr import system_begin as system_begin
from sglc.frontend.language.expr import system_end as system_end
from sglc.frontend.language.expr import user as user
from sglc.frontend.language.expr import user_begin as user_begin
from sglc.frontend.language.expr import user_end as user_end
from sglc.frontend.language.expr import video as video
from sglc.lang.runtime import Engine as Engine
from sglc.lang.runtime import Runtime as Runtime
