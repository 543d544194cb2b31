"""``ProbedSlots``: which system messages a template takes, found out by rendering small chats.

A system message has a place if the prompt with it is the prompt without it and one more piece
there, if that piece contains its text once, and if it is marked as neither the user's nor the
assistant's. So a template that refuses the message, drops it, moves it to the front, writes it like
a user's, or lets the list of tools move behind it, does not take it. Where a template writes the
message that begins a conversation into the user's last turn, that is a place of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from llama_py.chat.conversation import (
    Message,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from llama_py.chat.templates.boundaries import common_length
from llama_py.chat.templates.inputs import message_values, tool_values
from llama_py.errors import TemplateError

__all__ = ["ProbedSlots"]

#: Renders the inputs of ``llama_py_chat_apply``.
Render = Callable[[dict[str, Any]], str]
Messages = tuple[Message, ...]


def _say(role: Role, text: str) -> Message:
    return Message(role, (Text(text),))


#: What is asked about, and where it is asked. No two texts begin or end alike.
_NEW = "Oracle"
_SYSTEM = _say("system", "Xerxes")
_TALK = (_say("user", "Apple?"), _say("assistant", "Banana."), _say("user", "Cherry!"))
_TOOL = Tool("probe", "A probe.", {"type": "object", "properties": {"a": {"type": "string"}}})


def _errand(number: int, result: str) -> Messages:
    """A call and its result. Some templates want ids of nine letters or digits."""
    call = ToolCall("probe", '{"a": "b"}', f"abcdefgh{number}")
    asking = Message("assistant", (Thinking("Well."), call))
    return asking, Message("tool", (ToolResult(call.id, (Text(result),), name="probe"),))


_ERRANDS = (_TALK[0], *_errand(1, "Date;"), *_TALK[1:], *_errand(2, "Elder:"))


class ProbedSlots:
    """The ``Slots`` of a template; each is found out when it is asked for.

    Args:
        render: renders inputs of ``llama_py_chat_apply``; it may raise a ``TemplateError``.
    """

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def first(self) -> bool:
        return self._takes_first(_TALK, 0)

    @cached_property
    def last_turn(self) -> bool:
        prompt = self._prompt(_put(_TALK, 0, "system"))
        return not self.first and prompt is not None and prompt.count(_NEW) == 1

    @cached_property
    def several(self) -> bool:
        return self._takes_first((_SYSTEM, *_TALK), 1)

    @cached_property
    def later(self) -> bool:
        return self._takes(_TALK, (1, 2, 3))

    @cached_property
    def after_results(self) -> bool:
        return self._takes(_ERRANDS, (3, 7))

    @cached_property
    def adjacent_users(self) -> bool:
        return self._shows((_TALK[0], _TALK[2]))

    @cached_property
    def adjacent_replies(self) -> bool:
        return self._shows((_TALK[0], _TALK[1], _say("assistant", "Date."), _TALK[2]))

    @cached_property
    def without_user(self) -> bool:
        alone = (_SYSTEM, _TALK[1])
        return self._prompt(alone) is not None or self._prompt(alone[1:]) is not None

    def _shows(self, messages: Messages) -> bool:
        """Whether a conversation is in its prompt as it is."""
        prompt = self._prompt(messages)
        return prompt is not None and _ordered(prompt, messages)

    def _prompt(self, messages: Messages, *, tools: bool = False) -> str | None:
        """The prompt of a conversation, or None if the template refuses it."""
        inputs = {
            "messages": message_values(messages),
            "tools": tool_values([_TOOL]) if tools else None,
            "now": 0,
        }
        try:
            return self._render(inputs)
        except TemplateError:
            return None

    def _takes_first(self, messages: Messages, place: int) -> bool:
        """Whether a system message at a place before all others is read where it stands."""
        given, said = _put(messages, place, "system"), _put(messages, place, "assistant")
        prompt = self._prompt(given)
        return prompt is not None and _ordered(prompt, given) and prompt != self._prompt(said)

    def _takes(self, messages: Messages, places: Sequence[int]) -> bool:
        """Whether a system message has a place in a conversation, at each of these places.

        With and without tools, and with and without a system message at the beginning, as far as
        the template takes these.
        """
        shown = False
        for opened in (messages, (_SYSTEM, *messages)):
            for tools in (False, True):
                base = self._prompt(opened, tools=tools)
                if base is None:
                    continue
                shift = len(opened) - len(messages)
                if not all(self._has_place(opened, base, shift + at, tools) for at in places):
                    return False
                if not shown and self._is_like_others(opened, shift + places[0], tools):
                    return False
                shown = True
        return shown

    def _has_place(self, messages: Messages, base: str, place: int, tools: bool) -> bool:
        given = _put(messages, place, "system")
        prompt = self._prompt(given, tools=tools)
        if prompt is None or not _ordered(prompt, given):
            return False
        start, size = common_length(base, prompt), len(prompt) - len(base)
        piece, others = prompt[start : start + size], prompt[start + size :]
        return base[start:] == others and piece.strip() != _NEW

    def _is_like_others(self, messages: Messages, place: int, tools: bool) -> bool:
        """Whether a system message is written like a user's or an assistant's."""
        system, *others = (
            self._prompt(_put(messages, place, role), tools=tools)
            for role in ("system", "user", "assistant")
        )
        return system in others


def _put(messages: Messages, place: int, role: Role) -> Messages:
    return (*messages[:place], _say(role, _NEW), *messages[place:])


def _ordered(prompt: str, messages: Messages) -> bool:
    """True if what was said is in the prompt, each once and in order."""
    texts = [
        each.text
        for message in messages
        for part in message.parts
        for each in (part.content if isinstance(part, ToolResult) else (part,))
        if isinstance(each, Text)
    ]
    places = [(prompt.count(text), prompt.find(text)) for text in texts]
    return all(count == 1 for count, _ in places) and places == sorted(places)
