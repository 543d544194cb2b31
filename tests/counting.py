"""What something costs, in calls of functions: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what counts the calls of an import must not bring what is imported
    import pytest

    from llama_py.core.context import Context

__all__ = ["calls_of", "copied_from"]


def calls_of(function: Callable[[], Any]) -> int:
    """How many functions are called in it."""
    seen: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: seen.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen.count("call") + seen.count("c_call")


def copied_from(context: Context, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each state that is copied out of a context from now on."""
    copies: list[int] = []
    state_get = context.state_get

    def watched(*arguments: Any, **options: Any) -> Any:
        state = state_get(*arguments, **options)
        copies.append(state.nbytes)
        return state

    monkeypatch.setattr(context, "state_get", watched)
    return copies
