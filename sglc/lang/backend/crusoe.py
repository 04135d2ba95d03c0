"""`sglang.lang.backend.crusoe`."""

from sglc.lang.endpoints import Crusoe as Crusoe
