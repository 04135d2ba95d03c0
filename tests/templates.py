"""Chat templates in the styles of well-known models, and a byte-level tokenizer that carries one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sglc.ir.target import ControlText, Objects
from sglc.runtime.tokenizer.chat_template import ChatTemplate

CHATML = """\
{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

SMOLLM2 = """\
{% for m in messages %}{% if loop.first and m['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}\
{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """\
{% for m in messages %}\
{% set text = '<|head|>' + m['role'] + '<|/head|>\n\n' + m['content'] | trim + '<|eot|>' %}\
{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}"""

# The system text stands in the first user turn, an answer begins with a space.
MISTRAL = """\
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}\
{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}\
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate user/assistant') }}{% endif %}\
{% if m['role'] == 'user' %}{{ '[INST] ' + (system if loop.first else '') + m['content'] + ' [/INST]' }}\
{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"""

# The system text moves to the last user turn, so earlier turns are rewritten. No space before an answer.
MOVING = MISTRAL.replace(
    "if loop.first", "if m == (rest | selectattr('role', 'equalto', 'user') | list)[-1]"
).replace("{{ ' ' + m", "{{ m")

# An empty reasoning block stands in the last answer only, and reasoning of earlier answers is dropped.
QWEN3 = """\
{% for m in messages %}{% set text = m['content'] %}{% if m['role'] == 'assistant' %}\
{% if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}\
{% if loop.last %}{% set text = '<think>\n\n</think>\n\n' + text %}{% endif %}{% endif %}\
{{ '<|im_start|>' + m['role'] + '\n' + text + '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate user/assistant') }}{% endif %}\
{{ '<start>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim + '<end>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start>model\n' }}{% endif %}"""

# Earlier turns are numbered from the end: every turn rewrites all of them.
COUNTDOWN = """\
{% for m in messages %}\
{{ '[' + (messages | length - loop.index0) | string + m['role'] + ']' + m['content'] + '<|e|>' }}\
{% endfor %}{% if add_generation_prompt %}{{ '[0assistant]' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "moving": MOVING,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "countdown": COUNTDOWN,
}

# With tools, in the styles of Qwen 2.5 and Llama 3.1, and of one whose calls are in a format of its own.
TOOL_TEMPLATES = {
    "hermes": """\
{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}\
{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% for m in messages %}\
{{ '<|im_start|>' + ('user' if m['role'] == 'tool' else m['role']) + '\n' + m['content'] }}\
{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}\
{{ call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama": """\
{% for m in messages %}{{ '<|im_start|>' + ('ipython' if m['role'] == 'tool' else m['role']) + '\n' }}\
{% if loop.first and tools %}{{ tools | tojson(indent=4) + '\n' }}{% endif %}\
{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}\
{% set call = m.tool_calls[0].function %}\
{{ '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}\
{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "other": """\
{{ tools | tojson }}{% for m in messages %}{{ m['content'] }}{% for call in m.tool_calls or [] %}\
{{ '[TOOL_CALLS] [{"name": "' + call.function.name + '", "arguments": {}}]' }}{% endfor %}{% endfor %}""",
}

_CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<start>",
    "<end>",
    "<|e|>",
)
_IDS = {text: 256 + i for i, text in enumerate(_CONTROL)}


class ByteTokenizer:
    """One id a byte, and ten control tokens behind them."""

    hash = "byte-tokenizer"
    eos_ids = (_IDS["</s>"],)
    control: Mapping[int, str] = {id_: text for text, id_ in _IDS.items()}

    def __init__(self, template: str | None, *, bos: bool = False) -> None:
        self.has_template = template is not None
        self.bos_id = _IDS["<s>"] if bos else None
        named = {"bos_token": "<s>" if bos else "", "eos_token": "</s>"}
        self._template = None if template is None else ChatTemplate(template, named)

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def encode_within(self, text: str) -> list[int]:
        return self.encode(text)

    def cut(self, text: str) -> int:
        return len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def token_bytes(self) -> Sequence[bytes]:
        return [bytes([i]) if i < 256 else b"" for i in range(256 + len(_CONTROL))]

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        parts = re.split("(" + "|".join(map(re.escape, _CONTROL)) + ")", markup)
        return tuple(ControlText(part, (_IDS[part],)) if part in _IDS else part for part in parts if part)

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        assert self._template is not None
        return self._template.render(messages, generate=generate, tools=tools)

    def ids_of(self, messages: Sequence[Mapping[str, str]], *, generate: bool) -> list[int]:
        """What `apply_chat_template(..., tokenize=True)` gives for contents without control-token text."""
        ids: list[int] = []
        for part in self.split_control(self.render(messages, generate=generate)):
            ids += part.ids if isinstance(part, ControlText) else self.encode(part)
        return ids
