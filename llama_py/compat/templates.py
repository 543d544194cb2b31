"""Chat templates that llama-cpp-python knows by name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CHATML_BOS_TOKEN",
    "CHATML_CHAT_TEMPLATE",
    "CHATML_EOS_TOKEN",
    "LLAMA3_INSTRUCT_CHAT_TEMPLATE",
    "MISTRAL_INSTRUCT_BOS_TOKEN",
    "MISTRAL_INSTRUCT_CHAT_TEMPLATE",
    "MISTRAL_INSTRUCT_EOS_TOKEN",
    "MIXTRAL_INSTRUCT_CHAT_TEMPLATE",
    "guess_chat_format_from_gguf_metadata",
]

CHATML_CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_BOS_TOKEN = "<s>"
CHATML_EOS_TOKEN = "<|im_end|>"

_MISTRAL = (
    "{{{{ bos_token }}}}{{% for message in messages %}}"
    "{{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}}"
    "{{{{ raise_exception('Conversation roles must alternate "
    "user/assistant/user/assistant/...') }}}}{{% endif %}}"
    "{{% if message['role'] == 'user' %}}{{{{ '[INST] ' + message['content'] + ' [/INST]' }}}}"
    "{{% elif message['role'] == 'assistant' %}}{{{{ message['content'] + eos_token{end}}}}}"
    "{{% else %}}{{{{ raise_exception('Only user and assistant roles are supported!') }}}}"
    "{{% endif %}}{{% endfor %}}"
)
MISTRAL_INSTRUCT_CHAT_TEMPLATE = _MISTRAL.format(end=" + ' ' ")
MISTRAL_INSTRUCT_BOS_TOKEN = "<s>"
MISTRAL_INSTRUCT_EOS_TOKEN = "</s>"
MIXTRAL_INSTRUCT_CHAT_TEMPLATE = _MISTRAL.format(end="")

LLAMA3_INSTRUCT_CHAT_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


def guess_chat_format_from_gguf_metadata(metadata: Mapping[str, str]) -> str | None:
    """The name of the format whose template a GGUF has; None if it is none of those."""
    known = {
        CHATML_CHAT_TEMPLATE: "chatml",
        MISTRAL_INSTRUCT_CHAT_TEMPLATE: "mistral-instruct",
        MIXTRAL_INSTRUCT_CHAT_TEMPLATE: "mistral-instruct",
        LLAMA3_INSTRUCT_CHAT_TEMPLATE: "llama-3",
    }
    return known.get(metadata.get("tokenizer.chat_template", ""))
