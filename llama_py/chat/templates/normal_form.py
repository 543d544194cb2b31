"""``normal_form``: a conversation as a template takes it, whatever dialect it came in.

Agents and clients send system messages anywhere, several messages of one side in a row, and, after
a summary, conversations in which no user says anything. Some templates refuse these, or leave a
part out. What a template was found to take stays as it is, so that prompts are what Transformers
would make of them; the rest is put into messages beside it, and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from llama_py.chat.conversation import Message, Role, Text, ToolCall
from llama_py.chat.templates.system import Slots, fused, has_system, is_system, place_system

__all__ = ["normal_form"]


def normal_form(
    messages: Sequence[Message], slots: Slots, *, goes_on: bool = False
) -> tuple[Message, ...]:
    """The conversation with what the template does not take in other places.

    Args:
        goes_on: the last message is the beginning of the reply, and stays alone.
    """
    if has_system(messages[1:]) or (is_system(messages[0]) and not slots.first):
        messages = place_system(messages, slots)
    if all(message.role != "user" for message in messages) and not slots.without_user:
        messages = (*_with_user(messages),)
    if all(one.role != other.role for one, other in pairwise(messages)):
        return (*messages,)  # most of them, quickly
    last = len(messages) - 1 if goes_on else len(messages)
    for role in ("user", "assistant"):
        if _meet(messages[:last], role) and not _takes(slots, role):
            messages = (*_joined(messages[:last], role), *messages[last:])
            last = len(messages) - 1 if goes_on else len(messages)
    return tuple(messages)


def _takes(slots: Slots, role: str) -> bool:
    return slots.adjacent_users if role == "user" else slots.adjacent_replies


def _with_user(messages: Sequence[Message]) -> Iterator[Message]:
    """With a message of the user that says nothing, behind the system messages."""
    head = next((i for i, each in enumerate(messages) if not is_system(each)), len(messages))
    yield from messages[:head]
    yield Message("user", (Text(""),))
    yield from messages[head:]


def _can_be_joined(one: Message, other: Message, role: str) -> bool:
    same = one.role == other.role == role and one.name == other.name
    return same and not any(isinstance(part, ToolCall) for part in one.parts)


def _meet(messages: Sequence[Message], role: str) -> bool:
    return any(_can_be_joined(one, other, role) for one, other in pairwise(messages))


def _joined(messages: Iterable[Message], role: Role | str) -> Iterator[Message]:
    """With messages of this role that meet as one; their texts are paragraphs of it."""
    last: Message | None = None
    for message in messages:
        if last is not None and _can_be_joined(last, message, role):
            last = replace(last, parts=fused(last.parts, message.parts))
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last
