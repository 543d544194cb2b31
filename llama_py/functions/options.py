"""``ToolRunOptions``: the options of ``run_tools``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_py.errors import ParameterError
from llama_py.functions.rounds import OnCall, ToolLoop
from llama_py.options import ChatOptions

__all__ = ["ToolRunOptions", "begin_run"]


class ToolRunOptions(ChatOptions, total=False):
    """Those of ``create_chat_completion``, and of the loop.

    Attributes:
        max_rounds: replies at most (8).
        on_call: is asked before each call (``FunctionCall``): True makes it, a dictionary makes it
            with other arguments, a text is the result in its place, False refuses. ``AsyncLlama``
            awaits it if it is a coroutine function.
        tool_timeout: seconds that a call may take. A function that does not end is left alone.
        max_result_chars: characters of a result that the model sees.
    """

    max_rounds: int
    on_call: OnCall | None
    tool_timeout: float | None
    max_result_chars: int | None


def begin_run(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Callable[..., Any]],
    options: Mapping[str, Any],
) -> tuple[ToolLoop, dict[str, Any]]:
    """The loop, and the options of its requests.

    Raises:
        ParameterError: a function has no form as a tool, or several replies are asked for.
    """
    given = dict(options)
    if given.get("n") not in (None, 1):
        raise ParameterError(f"n={given['n']}: a conversation with tools has one reply at a time")
    loop = ToolLoop(
        messages,
        tools,
        max_rounds=given.pop("max_rounds", 8),
        on_call=given.pop("on_call", None),
        timeout=given.pop("tool_timeout", None),
        max_result_chars=given.pop("max_result_chars", None),
    )
    usage = {"include_usage": True}
    return loop, {"tools": loop.definitions, **given, "stream": True, "stream_options": usage}
