"""`sglang.lang.chat_template`: templates by prefixes and suffixes, for `Runtime(chat_template=...)`."""

from sglc.frontend.language.chat_templates import (
    ChatTemplate,
    ChatTemplateStyle,
    get_chat_template,
    get_chat_template_by_model_path,
    register_chat_template,
    register_chat_template_matching_function,
)

__all__ = [
    "ChatTemplate",
    "ChatTemplateStyle",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "register_chat_template",
    "register_chat_template_matching_function",
]
