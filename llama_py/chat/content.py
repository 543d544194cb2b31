"""User and tool messages are plain text: they cannot forge a role, a tool call or an end of turn.

A prompt is one text, in which ``<|im_end|>`` is a token that ends a message, even if a user wrote
it. So if the content of a user or tool message contains markup (``chat.templates.markup``), the
template gets that content with a *seam* inside the markup: a few letters that occur nowhere else.
Seams survive whatever the template does to text (trimming, JSON, sorting), and the broken markup is
ordinary text for the template. The seams are then removed from the rendered prompt, and their
positions tell the tokenizer which characters to read as plain text.

Messages without markup are rendered unchanged. System and assistant messages come from the caller,
and are not treated.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from llama_py.chat.conversation import Message, Part, Text, ToolCall, ToolResult
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.markup import Markup
from llama_py.errors import ParameterError, TemplateError

__all__ = ["render_content"]

#: Roles whose messages come from outside.
_FOREIGN = ("user", "tool")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_JSON = ("{", "[", '"')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def render_content(
    request: ChatRequest,
    render: Callable[[ChatRequest], RenderedChat],
    markup: Callable[[], Markup],
    mode: str = "text",
) -> RenderedChat:
    """Render a conversation whose user and tool messages cannot contain markup.

    Args:
        render: renders a request, by whatever template or format.
        markup: what counts as markup; a function, because it is not always needed.
        mode: ``request.special_tokens_in_content`` where the request leaves it open.

    Raises:
        ParameterError: the mode is ``"refuse"``, and there is markup.
        TemplateError: the template refuses the messages.
    """
    mode = request.special_tokens_in_content or mode
    if mode == "parse":
        return render(request)
    texts = [
        _Item(index, path, text)
        for index, message in enumerate(request.messages)
        if message.role in _FOREIGN
        for path, text in _fields(message)
        if text
    ]
    cuts = _cuts(texts, markup()) if texts else {}
    if not cuts:
        return render(request)
    if mode == "refuse":
        _refuse(request.messages, texts, markup())
    seams = _Seams(markup())
    messages = _with_seams(request.messages, texts, cuts, seams)
    try:
        rendered = render(replace(request, messages=messages))
    except TemplateError as error:
        raise type(error)(seams.without(str(error))) from error
    return seams.taken_out(rendered)


# ---- the texts of a conversation that come from outside ---------------------------------------


#: The fields and indexes that lead from a message to one of its texts.
_Path = tuple[str | int, ...]


@dataclass(slots=True)
class _Item:
    """One text of ``messages[index]``."""

    index: int
    path: _Path
    text: str


def _fields(message: Message) -> Iterator[tuple[_Path, str]]:
    yield ("name",), message.name
    for i, part in enumerate(message.parts):
        if isinstance(part, Text):
            yield ("parts", i, "text"), part.text
        elif isinstance(part, ToolResult):
            yield ("parts", i, "name"), part.name
            yield ("parts", i, "call_id"), part.call_id
            for j, inner in enumerate(part.content):
                if isinstance(inner, Text):
                    yield ("parts", i, "content", j, "text"), inner.text


def _place(item: _Item, messages: Sequence[Message]) -> str:
    """As a user of OpenAI's form would write it: ``messages[2].content[0].text``."""
    parts: Sequence[Part] = messages[item.index].parts
    *_, field = path = item.path
    if field == "text":
        if len(path) > 3 and isinstance(result := parts[int(path[1])], ToolResult):
            parts = result.content
        field = "content" if len(parts) == 1 else f"content[{path[-2]}].text"
    elif field == "call_id":
        field = "tool_call_id"
    return f"messages[{item.index}].{field}"


def _changed(value: Any, path: _Path, text: str) -> Any:
    """A message, or a part of one, with another text at the end of a path."""
    if not path:
        return text
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return (*value[:key], _changed(value[key], rest, text), *value[key + 1 :])
    return replace(value, **{key: _changed(getattr(value, key), rest, text)})


# ---- where markup is, and where to cut it -----------------------------------------------------

#: Number of a text -> (offset of the cut, the markup that is cut there before its last character).
_Cuts = dict[int, list[tuple[int, str]]]


def _cuts(texts: Sequence[_Item], markup: Markup) -> _Cuts:
    """Cuts through all the markup that a prompt may contain because of these texts.

    Templates join texts (the parts of a message), sometimes after trimming them, and llama.cpp
    decodes tool results as JSON for some families. Markup may become whole only then.
    """
    cuts: dict[int, set[tuple[int, str]]] = {}
    whole = [item.text for item in texts]
    trimmed = [text.strip() for text in whole]
    for pieces in (whole, trimmed) if len(texts) > 1 and trimmed != whole else (whole,):
        starts = [0, *accumulate(map(len, pieces))]
        for at, found in markup.find("".join(pieces)):
            last = at + len(found) - 1
            number = bisect_right(starts, last) - 1
            offset = last - starts[number]
            if pieces is trimmed:
                offset += len(whole[number]) - len(whole[number].lstrip())
            cuts.setdefault(number, set()).add((offset, found))
    for number, text in enumerate(whole):
        for offset, found in _in_json(text, markup):
            cuts.setdefault(number, set()).add((offset, found))
    return {number: sorted(some) for number, some in cuts.items()}


def _in_json(text: str, markup: Markup) -> Iterator[tuple[int, str]]:
    """Markup that is there only when the text's escapes are read (``\\u003c|im_end|>``)."""
    if not markup.escapes.search(text) or text.lstrip("\ufeff \t\r\n")[:1] not in _JSON:
        return
    plain, places, at = [], list[int](), 0
    for match in _ESCAPE.finditer(text):
        plain.append(text[at : match.start()])
        places += range(at, match.start())
        code, char = match.groups()
        plain.append(chr(int(code, 16)) if code else _ESCAPED.get(char, char))
        places.append(match.start())
        at = match.end()
    plain.append(text[at:])
    places += range(at, len(text) + 1)
    for start, found in markup.find("".join(plain)):
        end = start + len(found)
        if places[end] - places[start] != len(found):
            yield places[end - 1], found


def _refuse(messages: Sequence[Message], texts: Sequence[_Item], markup: Markup) -> None:
    """Raise for the first markup in a message."""
    for index, group in groupby(texts, key=lambda item: item.index):
        items = list(group)
        for _, found in markup.find("".join(item.text for item in items)):
            places = (_place(item, messages) for item in items if found in item.text)
            what = "special token" if found in markup.tokens else "part of the chat template"
            raise ParameterError(
                f"{next(places, f'messages[{index}].content')} contains {found!r}, a {what}, and "
                'special_tokens_in_content is "refuse"; take it out, or pass "text", with which '
                "it is read as plain characters"
            )


# ---- seams ------------------------------------------------------------------------------------


class _Seams:
    """The letters that are put into markup, and removed from the prompt."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._numbers: dict[str, int] = {}
        # The first letter is no hexadecimal digit: no seam begins within another one.
        self._secret = f"Z{secrets.token_hex(12)}"
        # Filters may change the case.
        self._pattern = re.compile(f"{self._secret}([0-9a-f]{{6}})", re.IGNORECASE)

    def put(self, text: str, cuts: Sequence[tuple[int, str]]) -> str:
        """The text with a seam at each cut."""
        out, at = list[str](), 0
        for offset, found in cuts:
            # The same markup always gets the same seam: templates sort and compare.
            number = self._numbers.setdefault(found, len(self._numbers))
            out += (text[at:offset], f"{self._secret}{number:06x}")
            at = offset
        return "".join((*out, text[at:]))

    def without(self, text: str) -> str:
        """The text with its seams removed."""
        return self._pattern.sub("", text)

    def taken_out(self, rendered: RenderedChat) -> RenderedChat:
        """The rendered chat without seams; ``plain_ranges`` says where they were."""
        seams = list(self._pattern.finditer(rendered.prompt))
        prompt = self.without(rendered.prompt)
        ends = [match.end() for match in seams]
        removed = [0, *accumulate(match.end() - match.start() for match in seams)]
        known = list(self._numbers)
        cuts = (
            (match.start() - before, known[int(match[1], 16)])
            for match, before in zip(seams, removed, strict=False)
        )
        starts = rendered.message_starts
        return replace(
            rendered,
            prompt=prompt,
            generation_prompt=self.without(rendered.generation_prompt),
            message_starts=tuple(at - removed[bisect_right(ends, at)] for at in starts),
            plain_ranges=self._ranges(prompt, cuts),
        )

    def _ranges(self, prompt: str, cuts: Iterator[tuple[int, str]]) -> tuple[tuple[int, int], ...]:
        """Ascending and disjoint: where in the prompt the cut tokens stand."""
        ranges: list[tuple[int, int]] = []
        for at, found in sorted((at - len(found) + 1, found) for at, found in cuts):
            if at < 0 or found not in self._markup.tokens or not prompt.startswith(found, at):
                continue  # the template wrote it otherwise, or the tokenizer would not mind
            end = at + len(found)
            if ranges and at <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((at, end))
        return tuple(ranges)


def _with_seams(
    messages: Sequence[Message], texts: Sequence[_Item], cuts: _Cuts, seams: _Seams
) -> tuple[Message, ...]:
    out = list(messages)
    renamed: dict[str, str] = {}
    for number, some in cuts.items():
        item = texts[number]
        changed = seams.put(item.text, some)
        out[item.index] = _changed(out[item.index], item.path, changed)
        if item.path[-1] == "call_id":
            renamed[item.text] = changed
    # The ids of calls change in the same way as those of their results.
    for index, message in enumerate(out):
        for place, part in enumerate(message.parts):
            if isinstance(part, ToolCall) and part.id in renamed:
                path = ("parts", place, "id")
                out[index] = _changed(out[index], path, renamed[part.id])
    return tuple(out)
