"""What the objects of requests have in common, and the fields that are known and not taken."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

# The context of a validation: what came is JSON, and its texts are of these.
WHOLE_CHARACTERS = "whole characters"
_NO_TOOLS = ": tools are of `/v1/chat/completions`, as `tools`"
_NO_MEDIA = ": this model takes text only"
# Fields that clients know, and what to say of them.
UNSUPPORTED = {
    **dict.fromkeys(
        ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "tool_calls"), _NO_TOOLS
    ),
    **dict.fromkeys(
        ("audio", "modalities", "image_data", "video_data", "audio_data", "image_url", "input_audio", "file"),
        _NO_MEDIA,
    ),
    "repeat_penalty": ": use `repetition_penalty`, of chats, completions and `/generate`",
    "prompt_logprobs": ": use `echo` with `logprobs`",
    **dict.fromkeys(
        (
            "add_special_tokens", "chat_template", "chat_template_kwargs", "context", "custom_logit_processor",
            "guided_whitespace_pattern", "images", "input_embeds", "length_penalty", "lora_path", "moderation",
            "name", "no_stop_trim", "reasoning_effort", "return_hidden_states", "return_tokens_as_token_ids",
            "separate_reasoning", "session_params", "suffix", "template", "think", "token_ids_logprob",
            "use_beam_search", "verbosity", "web_search_options",
        ),
        "",
    ),
}  # fmt: skip
# They say who asks, for what, or how to go about it, and change no answer: ignored, whatever they hold.
ADVISORY = frozenset(
    {
        "agent_hints", "background", "guided_decoding_backend", "log_metrics", "metadata",
        "no_logs", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention",
        "return_bytes", "return_entropy", "rid", "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip
# Of these, what is not known, or malformed, is ignored like the ones above (`serve.hints`).
HINTS = frozenset({"kv_hints", "nvext"})
# Values of these that ask for nothing: as if they were absent.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "tool_calls": ([],),
    "functions": ([],),
    "modalities": (["text"],),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "think": (False,),
    "images": ([],),
    "repeat_penalty": (1,),
    "suffix": ("",),
    "template": ("",),
    "context": ([],),
    "return_hidden_states": (False,),
    "no_stop_trim": (False,),
}


def wrong(code: str, message: str, param: str | None = None) -> PydanticCustomError:
    """`param`: the field, where that is not the one that is looked at."""
    return PydanticCustomError(code, "{what}", {"what": message, "param": param})


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


class Body(BaseModel):
    """What all requests, and the objects in them, have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _present(cls, data: Any) -> Any:
        """Without what is null, what asks for nothing, and what is ignored."""
        if not isinstance(data, dict):
            return data
        return {
            key: value
            for key, value in data.items()
            if value is not None
            and key not in cls.ignored
            and (
                key in cls.model_fields
                or not (key in NEUTRAL and any(_same(value, idle) for idle in NEUTRAL[key]))
            )
        }
