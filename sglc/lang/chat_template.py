"""`sglang.lang.chat_template`: templates by prefixes and suffixes, for `Runtime(chat_template=...)`."""

from sglc.frontend.language.chat_templates import ChatTemplate as ChatTemplate
from sglc.frontend.language.chat_templates import ChatTemplateStyle as ChatTemplateStyle
from sglc.frontend.language.chat_templates import get_chat_template as get_chat_template
from sglc.frontend.language.chat_templates import (
    get_chat_template_by_model_path as get_chat_template_by_model_path,
)
from sglc.frontend.language.chat_templates import register_chat_template as register_chat_template
from sglc.frontend.language.chat_templates import (
    register_chat_template_matching_function as register_chat_template_matching_function,
)
