"""What is left out of a conversation that does not fit."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.api.overflow import TrimMessages, fit
from llama_py.errors import ContextOverflowError, ParameterError, ParameterTypeError

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
    kept, report = fit(count, count(CHAT), TrimMessages(reserve=0, bite=0), CHAT)
    assert list(kept) == CHAT
    assert report is None


def test_the_oldest_turn_goes_first() -> None:
    turns = [SYSTEM, said("user", 1), said("assistant", 2), FIRST, ANSWER, LAST]
    kept, report = fit(count, count(turns) - 1, TrimMessages(reserve=0, bite=0), turns)
    assert list(kept) == CHAT
    assert report is not None
    assert report.dropped == (turns[1], turns[2])
    assert report.prompt_tokens == count(CHAT)
    assert report.limit == count(turns) - 1


def test_a_turn_goes_with_its_tool_calls() -> None:
    tools = [FIRST, said("assistant", 1), said("tool", 30), ANSWER]
    kept, report = fit(count, 20, TrimMessages(reserve=0, bite=0), [SYSTEM, *tools, LAST])
    assert list(kept) == [SYSTEM, LAST]
    assert report is not None
    assert report.dropped == tuple(tools)


def test_a_greeting_before_the_first_question_goes_first() -> None:
    greeting = said("assistant", 30)
    kept, _ = fit(
        count, count(CHAT), TrimMessages(reserve=0, bite=0), [SYSTEM, greeting, *CHAT[1:]]
    )
    assert list(kept) == CHAT


def test_what_follows_the_last_question_stays() -> None:
    tail = [LAST, said("assistant", 3), said("tool", 3)]
    kept, _ = fit(count, 25, TrimMessages(reserve=0, bite=0), [SYSTEM, FIRST, ANSWER, *tail])
    assert list(kept) == [SYSTEM, *tail]


def test_system_and_developer_messages_stay_wherever_they_are() -> None:
    late = said("developer", 2)
    kept, _ = fit(count, 20, TrimMessages(reserve=0, bite=0), [SYSTEM, FIRST, late, ANSWER, LAST])
    assert list(kept) == [SYSTEM, late, LAST]


def test_room_for_the_reply_is_kept_free_where_possible() -> None:
    limit = count(CHAT) + 5
    kept, report = fit(count, limit, TrimMessages(reserve=6, bite=0), CHAT)
    assert list(kept) == [SYSTEM, LAST]
    assert report is not None
    # The last turn fits, but not the reserve: the reply gets what is left.
    kept, report = fit(count, count([LAST]) + 1, TrimMessages(reserve=500), [FIRST, ANSWER, LAST])
    assert list(kept) == [LAST]
    assert report is not None


def test_a_last_turn_that_is_too_long_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        fit(count, 12, TrimMessages(reserve=0, bite=0), CHAT)
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
    kept, report = fit(count, 40, TrimMessages(reserve=0, bite=0), twice)
    assert list(kept) == [SYSTEM, FIRST]
    assert kept[1] is twice[3]
    assert report is not None
    assert len(report.dropped) == 2


def test_a_message_that_is_used_twice_is_dropped_once() -> None:
    """The same object in two turns, as a caller who builds lists by hand may have it."""
    again = said("user", 5)
    messages = [again, ANSWER, again]
    kept, report = fit(count, 10, TrimMessages(reserve=0, bite=0), messages)
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


# ---- bites -----------------------------------------------------------------------------------


def growing(seed: int, turns: int, *, tools: bool = False) -> list[dict[str, Any]]:
    """A conversation of random turns; with ``tools``, some of them call one."""
    draw = random.Random(seed)
    messages = [SYSTEM]
    for _ in range(turns):
        messages.append(said("user", draw.randrange(1, 40)))
        if tools and draw.random() < 0.3:
            call = {**said("assistant", 0), "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
            messages += [call, {**said("tool", draw.randrange(1, 30)), "tool_call_id": "a"}]
        messages.append(said("assistant", draw.randrange(1, 30)))
    return messages


def calls(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The histories that a caller passes: one for each message that asks for a reply."""
    for index, message in enumerate(messages):
        if message["role"] in ("user", "tool"):
            yield messages[: index + 1]


def begins_alike(kept: Sequence[Message], before: Sequence[Message]) -> bool:
    return len(kept) >= len(before) and all(map(operator.is_, before, kept))


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_growing_history_is_cut_at_the_same_place_until_the_next_bite(
    seed: int, tools: bool
) -> None:
    """Nothing is remembered between the calls, each of which has the whole history."""
    limit, new, again = 400, 0, 0
    before: Sequence[Message] = []
    for history in calls(growing(seed, 150, tools=tools)):
        kept, report = fit(count, limit, TrimMessages(reserve=50), history)
        assert count(kept) <= limit - 50
        if begins_alike(kept, before):
            new += count(kept) - count(before)
        else:
            new += count([history[-1]])
            again += count(kept) - count([SYSTEM])
            assert report is not None
        before = kept
    assert again <= 1.5 * new  # and about ten times as much if every turn dropped what it must


def test_a_shortened_history_is_kept_until_the_next_bite() -> None:
    """A session goes on with what was kept, and not with the whole history."""
    history: list[Message] = [SYSTEM]
    bites = 0
    for number in range(200):
        history.append(said("user", 10))
        kept, report = fit(count, 400, TrimMessages(reserve=50), history)
        if report is not None:
            bites += 1
            assert report.spare >= 100, number  # room for the next turns
            assert report.spare == 350 - report.prompt_tokens
        history = [*kept, said("assistant", 8)]
    # 20 tokens a turn, of which half of 340 go at once.
    assert 200 * 20 / 400 <= bites <= 200 * 20 / 140


def test_a_bite_of_nothing_drops_what_must_go() -> None:
    chat = growing(3, 60)[:-1]
    kept, report = fit(count, 400, TrimMessages(reserve=0, bite=0), chat)
    most = next(n for n in range(len(chat)) if count([SYSTEM, *chat[n:]]) <= 400 and n % 2)
    assert list(kept) == [SYSTEM, *chat[most:]]
    assert report is not None


@pytest.mark.parametrize("bite", [-0.1, 1.5, float("nan"), "half", None])
def test_a_bite_is_a_share(bite: Any) -> None:
    with pytest.raises(ParameterError, match="bite"):
        TrimMessages(bite=bite)


def test_a_last_turn_that_fills_the_room_leaves_nothing_else() -> None:
    chat = [*growing(1, 20), said("user", 370)]
    kept, report = fit(count, 400, TrimMessages(reserve=10), chat)
    assert list(kept) == [SYSTEM, chat[-1]]
    assert report is not None


def test_few_conversations_are_counted_however_long_the_history_is() -> None:
    asked: list[int] = []

    def counting(messages: Sequence[Message]) -> int:
        asked.append(count(messages))
        return asked[-1]

    chat = growing(2, 2000)[:-1]
    fit(counting, 400, TrimMessages(reserve=0), chat, size=lambda message: count([message]))
    assert len(asked) <= 3
    assert max(asked) <= 4 * 400  # and never the whole of it
    asked.clear()
    # An estimate that is wrong by a factor costs a few more.
    fit(counting, 400, TrimMessages(reserve=0, bite=0), chat, size=lambda message: 3)
    assert len(asked) <= 2 * math.log2(len(chat))


def test_a_policy_of_ones_own_is_asked_as_before() -> None:
    class Halves:
        reserve = 0

        def shorten(self, messages: Sequence[Message]) -> Sequence[Message] | None:
            return messages[len(messages) // 2 :] if len(messages) > 1 else None

    chat = growing(4, 30)
    kept, report = fit(count, 100, Halves(), chat)
    assert list(kept) == chat[-len(kept) :]
    assert count(kept) <= 100 < count(chat[-2 * len(kept) :])
    assert report is not None
    assert [*report.dropped, *kept] == chat


@pytest.mark.parametrize("policy", [5, "trim", TrimMessages])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ParameterTypeError, match="overflow must be a policy such as TrimMessages"):
        fit(count, 5, policy, CHAT)
