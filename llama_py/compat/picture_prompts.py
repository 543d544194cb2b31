"""Prompts of models that see: Jinja templates for handlers of llama-cpp-python.

They are written after what the makers of the models say about their prompts. A picture's part is
``{"type": "image_url", "image_url": {"url": ...}}``, as a program sends it, with a marker as its
address: where a template writes it, the picture is seen. Tokens that belong around a picture are
written by libmtmd.
"""

from __future__ import annotations

__all__ = [
    "LLAMA3_VISION_ALPHA",
    "LLAVA_15",
    "LLAVA_15_SYSTEM",
    "LLAVA_16",
    "LLAVA_16_SYSTEM",
    "MINICPM_26",
    "MOONDREAM",
    "NANO_LLAVA",
    "NANO_LLAVA_SYSTEM",
    "OBSIDIAN",
    "QWEN_25_VL",
    "QWEN_SYSTEM",
]

#: ``pictures(message, end)`` writes all pictures of a message, each with ``end`` behind it;
#: ``texts(message)`` its texts; ``parts(message)`` both in their order.
_MACROS = """\
{%- macro address(part) -%}
{%- if part.image_url is string -%}{{ part.image_url }}{%- else -%}{{ part.image_url.url }}
{%- endif -%}
{%- endmacro -%}
{%- macro pictures(message, end) -%}
{%- if message.content is not string -%}
{%- for part in message.content or [] if part.type == "image_url" -%}
{{- address(part) ~ end -}}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro texts(message) -%}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content or [] if part.type == "text" -%}
{{- part.text -}}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro parts(message) -%}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content or [] -%}
{%- if part.type == "image_url" -%}{{- address(part) -}}
{%- elif part.type == "text" -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""


def _turns(system: str, user: str, assistant: str, opening: str) -> str:
    """A template that writes one of three texts for each message, and opens the reply."""
    return (
        _MACROS + "{%- for message in messages -%}\n"
        '{%- if message.role == "system" -%}\n{{- ' + system + " -}}\n"
        '{%- elif message.role == "user" -%}\n{{- ' + user + " -}}\n"
        '{%- elif message.role == "assistant" -%}\n{{- ' + assistant + " -}}\n"
        "{%- endif -%}\n{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}{{- " + opening + " -}}{%- endif -%}"
    )


def _chatml(user: str, end: str = "<|im_end|>\\n") -> str:
    start = "<|im_start|>"
    return _turns(
        f'"{start}system\\n" ~ texts(message) ~ "{end}"',
        f'"{start}user\\n" ~ {user} ~ "{end}"',
        f'"{start}assistant\\n" ~ texts(message) ~ "{end}"',
        f'"{start}assistant\\n"',
    )


LLAVA_15_SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the human's questions."
)
LLAVA_15 = _turns(
    "texts(message)",
    '"\\nUSER: " ~ pictures(message, "\\n") ~ texts(message)',
    '"\\nASSISTANT: " ~ texts(message) ~ eos_token',
    '"\\nASSISTANT:"',
)
LLAVA_16_SYSTEM = LLAVA_15_SYSTEM
LLAVA_16 = _turns(
    'texts(message) ~ " "',
    '"USER: " ~ pictures(message, "\\n") ~ texts(message) ~ " "',
    '"ASSISTANT: " ~ texts(message) ~ eos_token',
    '"ASSISTANT:"',
)
OBSIDIAN = _chatml('pictures(message, "\\n") ~ texts(message)', end="\\n###\\n")
MOONDREAM = _turns(
    'texts(message) ~ "\\n\\n"',
    'pictures(message, "\\n\\n") ~ "Question: " ~ texts(message) ~ "\\n\\n"',
    '"Answer: " ~ texts(message) ~ "\\n\\n"',
    '"Answer:"',
)
NANO_LLAVA_SYSTEM = "Answer the question"
NANO_LLAVA = _chatml('pictures(message, "\\n") ~ texts(message)', end="<|im_end|>")
LLAMA3_VISION_ALPHA = _turns(
    '"<|start_header_id|>system<|end_header_id|>\\n\\n" ~ texts(message) ~ "<|eot_id|>"',
    '"<|start_header_id|>user<|end_header_id|>\\n\\n" ~ pictures(message, "") ~ texts(message)'
    ' ~ "<|eot_id|>"',
    '"<|start_header_id|>assistant<|end_header_id|>\\n\\n" ~ texts(message) ~ "<|eot_id|>"',
    '"<|start_header_id|>assistant<|end_header_id|>\\n\\n"',
)
QWEN_SYSTEM = "You are a helpful assistant."
MINICPM_26 = _chatml('pictures(message, "\\n") ~ texts(message)')
QWEN_25_VL = _chatml("parts(message)")
