"""The requests that the server takes, field by field. An explicit null is an absent field.

Invariants: a field that is not here is refused by name; types are never converted ("5" is no number, and
`true` is not 1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from sglc.ir.grammar.whole_characters import has_half_pair
from sglc.ir.plan.events import PackedIds
from sglc.ir.sampling import LEAST_REPETITION, MOST_REPETITION, MOST_TEMPERATURE
from sglc.serve.fields import ADVISORY, HINTS, UNSUPPORTED, WHOLE_CHARACTERS, Body, wrong
from sglc.serve.forms import Choices, ResponseFormat, Schema, StructuredOutputs, TagText
from sglc.serve.tools import Called, Function, Named, ToolChoice, Tools

OTHERWISE = "`custom_params` have another value for it"
MOST_STOPS, MOST_CHARACTERS, MOST_IDS = 64, 4_096, 1_024  # of one field; what is asked for at each token


class RequestBody(Body):
    """A whole request."""

    ignored = ADVISORY | HINTS

    @model_validator(mode="wrap")
    @classmethod
    def _of_whole_characters(
        cls, data: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """No encoding has half of a surrogate pair."""
        made = validate(data)
        if isinstance(data, dict) and info.context is not WHOLE_CHARACTERS:
            for key in made.model_fields_set - {"rid"} - HINTS:
                given = type(made).model_fields[key].alias or key
                if has_half_pair(data.get(given)):  # which may have been made of another one
                    raise wrong("text_value", "it has half of a surrogate pair, which is no text", given)
        return made


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Any:
    """A list of prompts, whichever of the four forms was sent."""
    match value:
        case str():
            return [value]
        case []:
            raise wrong("prompt_value", "there is no prompt")
        case list():  # of which there may be a million
            kinds = set(map(type, value))
            if kinds == {int}:
                return [value]
            if kinds == {list} and all(set(map(type, ids)) <= {int} for ids in value):
                return value
            if kinds in ({str}, {PackedIds}):
                return value
    raise wrong(
        "prompt_type", "a prompt is a text, a list of texts, a list of token ids, or a list of such lists"
    )


def _given_texts(value: Any) -> Any:
    """As it was sent: one text gets one answer, a list of texts a list."""
    if not isinstance(_prompts(value)[0], str):
        raise wrong("prompt_type", "it is a text, or a list of texts")
    return value


def _given_ids(value: Any) -> Any:
    """As it was sent, too."""
    if isinstance(_prompts(value)[0], str):
        raise wrong("prompt_type", "it is a list of token ids, or a list of such lists")
    return value


def _content(value: Any) -> Any:
    """A message's text. Parts are put end to end."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise wrong("content_type", "a part of a content is an object with a `type`")
        if kind != "text":
            raise wrong("content_value", f"parts of type `{kind}` are not supported{UNSUPPORTED.get(kind, '')}")
        if not isinstance(part.get("text"), str):
            raise wrong("content_type", "a part of type `text` has a text")
        if unknown := sorted(part.keys() - {"type", "text"}):
            raise wrong("content_value", f"a part of type `text` has no field `{unknown[0]}`")
        texts.append(part["text"])
    return "".join(texts)


def _biases(value: Any) -> Any:
    """{"15": -1} with ids as keys."""
    if not isinstance(value, dict):
        return value
    if len(value) > MOST_IDS:
        raise wrong("bias_value", f"it has more than {MOST_IDS} ids")
    if others := [key for key in value if not (isinstance(key, str) and key.isdecimal() and len(key) < 11)]:
        raise wrong("bias_value", f"`{others[0]}` is no token id")
    return {int(key): bias for key, bias in value.items()}


def _few(value: Any) -> Any:
    """Stops that are looked for at each token: not too many, and not too long."""
    texts = _texts(value)
    if isinstance(texts, list) and (
        len(texts) > MOST_STOPS or sum(len(text) for text in texts if isinstance(text, str)) > MOST_CHARACTERS
    ):
        raise wrong("stops_value", f"it has more than {MOST_STOPS} texts, or {MOST_CHARACTERS} characters")
    return texts


def _top_k(value: int) -> int:
    if not (1 <= value < 2**31 or value == -1):
        raise wrong("k_value", "it is a number from 1 to 2^31-1, or -1, which turns it off")
    return value


_TEXT: dict[str, Any] = {"type": "string"}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_OR_TEXT = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": {**_TEXT, "minLength": 1}}]})
_GIVEN_TEXTS = [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]
_GIVEN_IDS = [_IDS, {"type": "array", "items": _IDS, "minItems": 1}]
Stops = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_few), _OR_TEXT]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MOST_IDS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TopK = Annotated[int, AfterValidator(_top_k)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Samples = Annotated[int, Field(ge=1, le=128)]
Tops = Annotated[int, Field(ge=0, le=20)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Salt = Annotated[str, Field(max_length=256)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Prompts = Annotated[
    list[Any], BeforeValidator(_prompts), WithJsonSchema({"anyOf": [*_GIVEN_TEXTS, *_GIVEN_IDS]})
]


class StreamOptions(Body):
    """`include_usage`: a last chunk without choices has the token counts."""

    ignored = frozenset({"include_obfuscation"})  # which would pad the chunks: there is TLS for that

    include_usage: bool = False


class Steered(RequestBody):
    """What all requests have in common: how they sample, when they stop, what the text is held to."""

    n: Samples = 1
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: TopK = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION, le=MOST_REPETITION)] = 1.0
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = Field(default_factory=dict)
    stop: Stops = Field(default_factory=list)  # which is faster than a copy of a default
    stop_token_ids: TokenIds = Field(default_factory=list)
    stop_regex: Stops = Field(default_factory=list)
    ignore_eos: bool = False
    regex: str | None = None
    ebnf: str | None = None
    json_schema: Schema = None
    structural_tag: TagText = None
    strict: bool = False
    canonical: bool = True
    skip_special_tokens: Literal[True] = True
    spaces_between_special_tokens: bool = True


class Sampled(Steered):
    """What chats and completions have in common."""

    ignored = ADVISORY

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    priority: Priority = 0
    cache_salt: Salt = ""
    kv_hints: Any = None
    nvext: Any = None
    min_tokens: Count = 0
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _streams(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_value", "it comes with `stream`", "stream_options")
        return self


class CompletionBody(Sampled):
    """`POST /v1/completions`."""

    prompt: Prompts
    max_tokens: Count = 16
    best_of: Samples | None = None
    echo: bool = False
    logprobs: Tops | None = None


class Message(Body):
    """A turn of a conversation."""

    # OpenAI's client and LiteLLM send back what they made of an answer.
    ignored = frozenset({"annotations", "parsed", "provider_specific_fields"})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_content)] = ""
    name: str = ""
    refusal: str = ""
    reasoning_content: str = ""
    tool_calls: list[Called] = Field(default_factory=list)
    tool_call_id: str = ""

    @model_validator(mode="after")
    def _of_its_role(self) -> Message:
        # An answer of calls alone, or a refusal, has none, and a stream that ended before its first text.
        if "content" not in self.model_fields_set and self.role != "assistant":
            raise wrong("missing", "", "content")
        if self.tool_calls and self.role != "assistant":
            raise wrong("calls_value", "calls are the assistant's", "tool_calls")
        if self.reasoning_content and self.role != "assistant":
            raise wrong("reasoning_value", "reasoning is the assistant's", "reasoning_content")
        if bool(self.tool_call_id) != (self.role == "tool"):
            raise wrong(
                "id_value", "the result of a call has the call's id, and no other turn has", "tool_call_id"
            )
        return self

    @property
    def told(self) -> dict[str, Any]:
        """As a template is told of it: arguments are objects there."""
        told: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.name:
            told["name"] = self.name
        if self.reasoning_content:
            told["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            told["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id:
            told["tool_call_id"] = self.tool_call_id
        return told


def _answering(messages: list[Message]) -> list[Message]:
    """Results are those of calls before them."""
    made: set[str] = set()
    for number, turn in enumerate(messages):
        made.update(call.id for call in turn.tool_calls)
        if turn.tool_call_id and turn.tool_call_id not in made:
            where = f"{number}.tool_call_id"
            raise wrong("id_value", f"no call before it has the id `{turn.tool_call_id}`", where)
    return messages


Messages = Annotated[list[Message], Field(min_length=1), AfterValidator(_answering)]


class ChatBody(Sampled):
    """`POST /v1/chat/completions`. Without a limit an answer may take all that the model has room for."""

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Tops = 0
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, str | bool | int | float | None] = Field(default_factory=dict)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    separate_reasoning: bool = True
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _choosable(self) -> ChatBody:
        names = [tool.function.name for tool in self.tools]
        if isinstance(self.tool_choice, Named) and self.tool_choice.name not in names:
            raise wrong("choice_value", f"none of `tools` is called `{self.tool_choice.name}`", "tool_choice")
        if self.tool_choice == "required" and not names:
            raise wrong("choice_value", "there are no `tools`", "tool_choice")
        return self

    @property
    def texts(self) -> list[str]:
        """All that a prompt is made of."""
        made = [text for turn in self.messages for text in (turn.content, turn.reasoning_content)]
        made += [json.dumps(call.function.arguments) for turn in self.messages for call in turn.tool_calls]
        return made + [json.dumps(tool.told) for tool in self.offered]

    @property
    def offered(self) -> list[Function]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else [tool.function for tool in self.tools]


class SamplingParams(Steered):
    """The `sampling_params` of a generate request."""

    max_new_tokens: Count = 128
    min_new_tokens: Count = 0
    sampling_seed: Seed | None = None


class GenerateBody(RequestBody):
    """`POST /generate`. `logprob_start_len` -1 asks for no log-probabilities of the prompt.

    `custom_params` are further `sampling_params`: of those, gateways pass on the ones that they know. A
    `cache_salt` may be there, too.
    """

    ignored = ADVISORY - {"rid"} | {"model"}

    text: Annotated[Any, BeforeValidator(_given_texts), WithJsonSchema({"anyOf": _GIVEN_TEXTS})] = None
    input_ids: Annotated[Any, BeforeValidator(_given_ids), WithJsonSchema({"anyOf": _GIVEN_IDS})] = None
    sampling_params: SamplingParams = SamplingParams()
    custom_params: dict[str, Any] = Field(default_factory=dict)
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    top_logprobs_num: Tops = 0
    return_text_in_logprobs: bool = False
    stream: bool = False
    priority: Priority = 0
    cache_salt: Salt = ""
    kv_hints: Any = None
    nvext: Any = None
    rid: Any = None

    @model_validator(mode="before")
    @classmethod
    def _outside(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in SamplingParams.model_fields.keys() & data.keys():
            raise wrong("place_value", "it belongs into `sampling_params`", name)
        further, given = (data.get(name) for name in ("custom_params", "sampling_params"))
        if isinstance(further, dict) and isinstance(given, dict | None):
            salt = {name: further[name] for name in further.keys() & {"cache_salt"}}
            further = {name: value for name, value in further.items() if name not in salt}
            for name, value in (given or {}).items():
                if value is not None and further.get(name, value) != value:
                    raise wrong("twice_value", OTHERWISE, f"sampling_params.{name}")
            return {**data, **salt, "sampling_params": {**(given or {}), **further}, "custom_params": {}}
        return data

    @model_validator(mode="after")
    def _one_prompt(self) -> GenerateBody:
        if (self.text is None) == (self.input_ids is None):
            raise wrong("prompt_value", "a prompt is `text` or `input_ids`, and not both", "text")
        return self

    @property
    def prompts(self) -> tuple[str, list[Any]]:
        """The field that has the prompts, and they."""
        field, given = ("input_ids", self.input_ids) if self.text is None else ("text", self.text)
        return field, [given] if isinstance(given, str) or isinstance(given[0], int) else given

    @property
    def request_id(self) -> str | None:
        """What the answer is to be called, if that can be."""
        return self.rid.encode("utf-8", "replace").decode() if isinstance(self.rid, str) else None

    @property
    def several(self) -> bool:
        """Whether a list of answers was asked for."""
        given = self.input_ids if self.text is None else self.text
        return self.sampling_params.n > 1 or (isinstance(given, list) and not isinstance(given[0], int))


class ProgramBody(RequestBody):
    """`POST /v1/programs`: a plan as its file has it, and the arguments of each row by their names.

    `first` is the number of the first row, which seeds depend on.
    """

    model: str | None = None
    plan: dict[str, Any]
    rows: Annotated[list[dict[str, Any]], Field(min_length=1)]
    first: Count = 0
    seed: Seed | None = None
    stream: bool = False
    priority: Priority = 0
    cache_salt: Salt = ""


class TokenizeBody(RequestBody):
    """`POST /tokenize`: a text or a list of them, or a conversation."""

    model: str | None = None
    prompt: Annotated[Any, BeforeValidator(_given_texts), WithJsonSchema({"anyOf": _GIVEN_TEXTS})] = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("prompt_value", "it is `prompt` or `messages`, and not both", "prompt")
        return self


class DetokenizeBody(RequestBody):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int]


class AbortBody(Body):
    """`POST /abort_request`: the `rid` of requests, or the `X-Request-Id` of one; or all that make text."""

    rid: str = ""
    abort_all: bool = False


class OllamaOptions(Body):
    """Ollama's `options`, with its defaults; what says how a model is loaded is ignored."""

    ignored = frozenset(
        {
            "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa",
            "repeat_last_n", "use_mlock", "use_mmap",
        }
    )  # fmt: skip

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    seed: Seed | None = None
    num_predict: Annotated[int, Field(ge=-2, lt=2**31)] = -1
    stop: Stops = Field(default_factory=list)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0


class OllamaBody(RequestBody):
    """What Ollama's requests for texts have in common."""

    ignored = ADVISORY

    model: str
    stream: bool = True
    keep_alive: Any = None
    format: Any = None
    think: Literal[False, True, "low", "medium", "high"] | None = None
    options: OllamaOptions = OllamaOptions()

    @property
    def effort(self) -> str | None:
        """What `think` is in OpenAI's words."""
        if isinstance(self.think, bool):
            return "medium" if self.think else "none"
        return self.think

    def as_openai(self) -> ChatBody | CompletionBody:
        """The same request in OpenAI's words."""
        raise NotImplementedError

    def _asked(self) -> dict[str, Any]:
        given = self.options
        asked = {
            name: getattr(given, name)
            for name in type(given).model_fields
            if name not in ("num_predict", "top_k")
        }
        held = {"type": "object"} if self.format == "json" else self.format or None
        return {
            **asked,
            "top_k": given.top_k if given.top_k > 0 else -1,
            "max_tokens": given.num_predict if given.num_predict >= 0 else None,
            "json_schema": held,
        }


class OllamaGenerate(OllamaBody):
    """`POST /api/generate`. A prompt that is not `raw` is a turn of the user."""

    prompt: str = ""
    system: str = ""
    raw: bool = False

    @model_validator(mode="after")
    def _bare(self) -> OllamaGenerate:
        for field in ("system", "think"):
            if self.raw and getattr(self, field):
                raise wrong("raw_value", "a `raw` prompt is all that the model reads", field)
        return self

    def as_openai(self) -> ChatBody | CompletionBody:
        """As of every one."""
        asked = self._asked()
        if self.raw:
            return CompletionBody.model_validate({"prompt": self.prompt, **asked})
        turns = [("system", self.system)] * bool(self.system) + [("user", self.prompt)]
        messages = [{"role": role, "content": content} for role, content in turns]
        return ChatBody.model_validate({"messages": messages, "reasoning_effort": self.effort, **asked})


class OllamaMessage(Message):
    """A turn in Ollama's words, whose reasoning has another name."""

    reasoning_content: str = Field("", alias="thinking")


class OllamaChat(OllamaBody):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], AfterValidator(_answering)] = Field(default_factory=list)

    def as_openai(self) -> ChatBody | CompletionBody:
        """As of every one."""
        asked = {"messages": self.messages, "reasoning_effort": self.effort, **self._asked()}
        return ChatBody.model_validate(asked)


class OllamaShow(RequestBody):
    """`POST /api/show`. Ollama's own client sends all that is ignored here, mostly empty."""

    ignored = ADVISORY | {"verbose", "system", "template", "options"}

    model: str = ""
    name: str = ""  # of older clients

    @model_validator(mode="after")
    def _named(self) -> OllamaShow:
        if not (self.model or self.name):
            raise wrong("missing", "", "model")
        return self


def fields_at(kind: type[Body], path: Sequence[str]) -> list[str]:
    """The names of the fields that an object of a `kind` of request may have, in order; `path` leads to it."""
    here = {kind}
    for part in path:
        if not part.isdecimal():  # of a list, whose items have the type that is said of it
            here = {inner for body in here for inner in _objects(_field_of(body, part))}
    return sorted({field.alias or name for body in here for name, field in body.model_fields.items()})


def _field_of(body: type[Body], name: str) -> Any:
    found = (field for own, field in body.model_fields.items() if name in (own, field.alias))
    return next((field.annotation for field in found), None)


def _objects(annotation: Any) -> set[type[Body]]:
    """The objects that a value of this type may be or have."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return {annotation}
    return {found for part in get_args(annotation) for found in _objects(part)}
