"""What is left out of a conversation that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.errors import ContextOverflowError
from llama_py.overflow import TrimMessages, fit

Message = Mapping[str, Any]


def said(role: str, tokens: int) -> dict[str, Any]:
    return {"role": role, "content": "x" * tokens}


def count(messages: Sequence[Message]) -> int:
    """A token for each letter, and one for each message."""
    return sum(1 + len(message["content"]) for message in messages)


SYSTEM, FIRST, ANSWER, LAST = (
    said("system", 9),
    said("user", 19),
    said("assistant", 29),
    said("user", 4),
)
CHAT = [SYSTEM, FIRST, ANSWER, LAST]


def test_what_fits_is_left_alone() -> None:
    kept, report = fit(count, count(CHAT), TrimMessages(reserve=0), CHAT)
    assert list(kept) == CHAT
    assert report is None


def test_the_oldest_turn_goes_first() -> None:
    turns = [SYSTEM, said("user", 1), said("assistant", 2), FIRST, ANSWER, LAST]
    kept, report = fit(count, count(turns) - 1, TrimMessages(reserve=0), turns)
    assert list(kept) == CHAT
    assert report is not None
    assert report.dropped == (turns[1], turns[2])
    assert report.prompt_tokens == count(CHAT)
    assert report.limit == count(turns) - 1


def test_a_turn_goes_with_its_tool_calls() -> None:
    tools = [FIRST, said("assistant", 1), said("tool", 30), ANSWER]
    kept, report = fit(count, 20, TrimMessages(reserve=0), [SYSTEM, *tools, LAST])
    assert list(kept) == [SYSTEM, LAST]
    assert report is not None
    assert report.dropped == tuple(tools)


def test_a_greeting_before_the_first_question_goes_first() -> None:
    greeting = said("assistant", 30)
    kept, _ = fit(count, count(CHAT), TrimMessages(reserve=0), [SYSTEM, greeting, *CHAT[1:]])
    assert list(kept) == CHAT


def test_what_follows_the_last_question_stays() -> None:
    tail = [LAST, said("assistant", 3), said("tool", 3)]
    kept, _ = fit(count, 25, TrimMessages(reserve=0), [SYSTEM, FIRST, ANSWER, *tail])
    assert list(kept) == [SYSTEM, *tail]


def test_system_and_developer_messages_stay_wherever_they_are() -> None:
    late = said("developer", 2)
    kept, _ = fit(count, 20, TrimMessages(reserve=0), [SYSTEM, FIRST, late, ANSWER, LAST])
    assert list(kept) == [SYSTEM, late, LAST]


def test_room_for_the_reply_is_kept_free_where_possible() -> None:
    limit = count(CHAT) + 5
    kept, report = fit(count, limit, TrimMessages(reserve=6), CHAT)
    assert list(kept) == [SYSTEM, LAST]
    assert report is not None
    # The last turn fits, but not the reserve: the reply gets what is left.
    kept, report = fit(count, count([LAST]) + 1, TrimMessages(reserve=500), [FIRST, ANSWER, LAST])
    assert list(kept) == [LAST]
    assert report is not None


def test_a_last_turn_that_is_too_long_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        fit(count, 12, TrimMessages(reserve=0), CHAT)
    assert (caught.value.prompt_tokens, caught.value.limit) == (count([SYSTEM, LAST]), 12)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("messages", [[], [SYSTEM], [said("assistant", 90)]])
def test_without_a_question_nothing_can_go(messages: list[Message]) -> None:
    if not messages:
        assert fit(count, 5, TrimMessages(), messages) == ([], None)
        return
    with pytest.raises(ContextOverflowError):
        fit(count, 5, TrimMessages(), messages)


def test_a_policy_that_drops_nothing_does_not_go_on_for_ever() -> None:
    class Stubborn:
        reserve = 0

        def shorten(self, messages: Sequence[Message]) -> Sequence[Message]:
            return list(messages)

    with pytest.raises(ContextOverflowError):
        fit(count, 5, Stubborn(), CHAT)


def test_equal_messages_are_different_messages() -> None:
    """Two turns with the same words: only the older one is dropped and reported."""
    twice = [SYSTEM, dict(FIRST), dict(ANSWER), dict(FIRST)]
    kept, report = fit(count, 40, TrimMessages(reserve=0), twice)
    assert list(kept) == [SYSTEM, FIRST]
    assert kept[1] is twice[3]
    assert report is not None
    assert len(report.dropped) == 2


def test_a_message_that_is_used_twice_is_dropped_once() -> None:
    """The same object in two turns, as a caller who builds lists by hand may have it."""
    again = said("user", 5)
    messages = [again, ANSWER, again]
    kept, report = fit(count, 10, TrimMessages(reserve=0), messages)
    assert list(kept) == [again]
    assert report is not None
    assert report.dropped == (again, ANSWER)


ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"])


@given(
    st.lists(st.tuples(ROLES, st.integers(0, 30)), max_size=12),
    st.integers(1, 200),
    st.integers(0, 60),
)
def test_whatever_is_said_the_result_fits_or_is_an_error(
    parts: list[tuple[str, int]], limit: int, reserve: int
) -> None:
    messages = [said(role, tokens) for role, tokens in parts]
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    must_stay = [
        message
        for i, message in enumerate(messages)
        if message["role"] in ("system", "developer") or (users and i >= users[-1])
    ]
    try:
        kept, report = fit(count, limit, TrimMessages(reserve), messages)
    except ContextOverflowError:
        assert not users or count(must_stay) > limit
        return
    assert count(kept) <= limit
    assert all(any(message is k for k in kept) for message in must_stay)
    dropped = report.dropped if report is not None else ()
    assert [m for m in messages if not any(m is d for d in dropped)] == list(kept)
    assert len(dropped) + len(kept) == len(messages)
