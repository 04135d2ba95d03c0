"""`gemini:MODEL` and `vertex:MODEL`: Google's generate_content, through its one SDK for both places.

May import `backends.remote`, `backends.models` and everything below the back ends.
"""

from sglc.backends.gemini.gemini_backend import GeminiBackend as GeminiBackend
from sglc.backends.gemini.gemini_backend import GeminiOptions as GeminiOptions
