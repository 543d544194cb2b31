"""``RequestLimits``: how much one request may ask for. Servers set them; Python calls have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import shown
from llama_py.quick_dataclass import dataclass

__all__ = ["TEMPLATE_KWARGS", "RequestLimits"]

#: What templates are known to read beside messages and tools. Other names are refused: a template
#: may use any variable for anything.
TEMPLATE_KWARGS = frozenset(
    {
        "add_vision_id",
        "builtin_tools",
        "citation_mode",
        "clear_thinking",
        "controls",
        "custom_tools",
        "date_string",
        "documents",
        "enable_thinking",
        "force_reasoning",
        "keep_past_thinking",
        "low_effort",
        "model_identity",
        "preserve_thinking",
        "reasoning_effort",
        "source_lang_code",
        "target_lang_code",
        "thinking",
        "thinking_budget",
        "tool_call_format",
        "tool_presentation_format",
        "tools_in_user_message",
        "truncate_history_thinking",
        "xml_tools",
    }
)


#: Characters of the name of a tool, as OpenAI and Anthropic have it (the latter 128).
MAX_NAME = 128
#: Characters of all names, descriptions and schemas of the tools of a request.
MAX_TOOL_CHARACTERS = 1 << 20
#: Tokens with a bias.
MAX_BIASES = 4096


def _larger(value: Any, most: int) -> bool:
    """Whether a value has more characters than so many, each item counted as one."""
    rest = [value]
    while rest and most >= 0:
        each = rest.pop()
        most -= len(each) if isinstance(each, str) else 1
        if isinstance(each, Mapping):
            rest += each.keys()
            rest += each.values()
        elif isinstance(each, list):
            rest += each
    return most < 0


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Checked before anything is rendered, tokenized or compiled.

    Attributes:
        max_choices: replies to one prompt: ``n`` and ``best_of``.
        max_top_logprobs: alternatives for each token.
        max_stops: stop strings.
        max_tools: tools, or functions.
        max_prompts: prompts of one request.
        max_inputs: texts to embed, or documents to rank, of one request.
        max_messages: messages of one conversation.
        template_kwargs: names that ``chat_template_kwargs`` may have.
        strict: a field that is not known is an error, and not ignored.
    """

    max_choices: int = 8
    max_top_logprobs: int = 20
    max_stops: int = 16
    max_tools: int = 512
    max_prompts: int = 64
    max_inputs: int = 2048
    max_messages: int = 10_000
    template_kwargs: frozenset[str] = TEMPLATE_KWARGS
    strict: bool = False

    def check_tools(self, body: Mapping[str, Any], name: str) -> None:
        """Refuse tools or functions that are too many, too large, or have too long a name."""
        self.check_length(body, name, self.max_tools)
        tools = body.get(name)
        if not isinstance(tools, list):
            return
        for tool in tools:
            inner = tool.get("function") if isinstance(tool, Mapping) else None
            for each in (tool, inner):
                called = each.get("name") if isinstance(each, Mapping) else None
                if isinstance(called, str) and len(called) > MAX_NAME:
                    message = (
                        f"the name of a tool has {len(called)} characters ({shown(called, 40)}), "
                        f"and {MAX_NAME} is the most"
                    )
                    raise RequestError(Kind.INVALID_VALUE, message, name)
        if _larger(tools, MAX_TOOL_CHARACTERS):
            message = f"{name} has more than the {MAX_TOOL_CHARACTERS} characters allowed here"
            raise RequestError(Kind.INVALID_VALUE, message, name)

    def check_variables(self, body: Mapping[str, Any]) -> None:
        """Refuse variables that a request may not give to a template."""
        given = body.get("chat_template_kwargs")
        if not isinstance(given, Mapping):
            return  # whoever reads it says so
        unknown = next((name for name in given if name not in self.template_kwargs), None)
        if unknown is not None:
            place = f"chat_template_kwargs.{unknown}"
            message = (
                f"{shown(place, 200)} is not passed on to templates; leave it out, or list it in "
                "the server's setting template_kwargs"
            )
            raise RequestError(Kind.UNKNOWN_PARAMETER, message, place)

    def check_biases(self, body: Mapping[str, Any]) -> None:
        """Refuse more biases than a sampler is meant to add to each token."""
        value = body.get("logit_bias")
        if isinstance(value, (list, Mapping)) and len(value) > MAX_BIASES:
            message = f"logit_bias has {len(value)} entries, and this server allows "
            raise RequestError(Kind.INVALID_VALUE, f"{message}{MAX_BIASES}", "logit_bias")

    def check_number(self, body: Mapping[str, Any], name: str, most: int) -> None:
        """Refuse a number above a limit. What is no number is refused by who reads it.

        Also a float: 100.0 is read as the integer that it is.
        """
        value = body.get(name)
        if isinstance(value, (int, float)) and value > most:
            message = f"{name}={shown(value, 40)} is more than this server allows ({most})"
            raise RequestError(Kind.INVALID_VALUE, message, name)

    def check_length(self, body: Mapping[str, Any], name: str, most: int) -> None:
        """Refuse a list above a limit."""
        value = body.get(name)
        if isinstance(value, list) and len(value) > most:
            message = f"{name} has {len(value)} entries, and this server allows {most}"
            raise RequestError(Kind.INVALID_VALUE, message, name)
