"""`sglang.lang.backend.runtime_endpoint`."""

from sglc.lang.endpoints import RuntimeEndpoint as RuntimeEndpoint
from sglc.lang.runtime import Runtime as Runtime
