"""A ChatML template that describes tools, for models whose own template cannot."""

from __future__ import annotations

__all__ = ["CHATML_TOOLS"]

CHATML_TOOLS = """\
{%- set ns = namespace(system="") %}
{%- for message in messages if message.role == "system" %}
{%- set ns.system = ns.system + message.content + "\\n\\n" %}
{%- endfor %}
{%- if tools or ns.system %}
{{- "<|im_start|>system\\n" + ns.system }}
{%- if tools %}
{{- "You may call these functions. Their signatures, one JSON object per line:\\n<tools>\\n" }}
{%- for tool in tools %}
{{- tool | tojson + "\\n" }}
{%- endfor %}
{{- "</tools>\\n\\nTo call one, answer with its name and its arguments:\\n<tool_call>\\n" }}
{{- '{"name": "<function-name>", "arguments": <object with the arguments>}' }}
{{- "\\n</tool_call>" }}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages if message.role != "system" %}
{%- if message.role == "tool" %}
{{- "<|im_start|>user\\n<tool_response>\\n" + message.content }}
{{- "\\n</tool_response><|im_end|>\\n" }}
{%- else %}
{{- "<|im_start|>" + message.role + "\\n" + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- "\\n" if not loop.first or message.content else "" }}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
{{- call.function.arguments | tojson + "}\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|im_start|>assistant\\n" }}
{%- endif %}
"""
