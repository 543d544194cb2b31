"""Calls that a model writes as plain JSON, although its template has another form for them.

Small models do that most of the time: asked with ``tool_choice: auto``, they answer with
``{"name": …, "arguments": {…}}``, often in a Markdown fence, and nothing else. ``PlainCalls`` says
which replies are such calls, and ``PlainCallReader`` finds out while one is generated: it holds
back text only as long as all of the reply so far may be the beginning of a call.

Nothing is taken out of its text: words before or behind the JSON, a tool that was not declared, or
arguments that do not fit its schema make it an answer like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from llama_py.chat.conversation import Tool
from llama_py.chat.messages import ChatRequest
from llama_py.chat.schemas.fits import fits
from llama_py.chat.schemas.patterns import fitting_pattern
from llama_py.core.chat import schema_to_gbnf
from llama_py.core.grammar.sampler import spells
from llama_py.errors import GrammarError, LlamaError
from llama_py.params import GrammarSpec

__all__ = ["FoundCall", "PlainCallReader", "PlainCalls", "plain_calls_of", "with_vocab"]

#: How models call the fields of a call.
_NAMES = ("name", "function", "tool", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args")
#: Fields that say nothing.
_IDLE = ("type", "id")
#: What the type of a call may be.
_TYPES = ("function", "tool_call", "function_call")
#: What may stand behind the three marks that open a fence. Small models say Python, and mean JSON.
_LANGUAGES = ("", "json", "python", "tool_call")
_FENCE = "```"
_SPACE = " \t\r\n"
#: Keywords of a schema by which an object without properties may have some.
_OTHERS = (
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties"),
    *("$ref", "allOf", "anyOf", "oneOf", "if"),
)
#: The longest text that is compared with a pattern.
_LONGEST_MATCHED = 4096
#: Calls in a reply, and brackets within each other, that are still looked at.
_MOST_CALLS, _DEEPEST = 64, 100


def _no_pattern(pattern: str, text: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call; ``arguments`` is JSON text, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class PlainCalls:
    """The calls that a reply may consist of.

    Attributes:
        tools: those that may be called.
        several: a reply may be more than one call: a list of them, or one behind the other.
        matches: whether a pattern of a schema occurs in a text.
    """

    tools: tuple[Tool, ...]
    several: bool = True
    matches: Callable[[str, str], bool] = field(default=_no_pattern, compare=False)

    def find(self, text: str) -> tuple[FoundCall, ...]:
        """The calls that a whole reply consists of; () if it is anything else."""
        reader = PlainCallReader(self)
        passed = reader.feed(text)
        return () if passed else reader.end()[0]

    def settled(self, call: FoundCall) -> FoundCall | None:
        """The call as its tool is called; None if the arguments do not fit.

        Names that the tool does not declare do not fit, unless its schema allows for others: a
        call between marks cannot have them either. A tool without parameters is called without:
        in their place, small models repeat its schema.
        """
        try:
            arguments = json.loads(call.arguments, object_pairs_hook=_without_twins)
        except (ValueError, RecursionError):
            return None
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None or not isinstance(arguments, dict):
            return None
        schema: Any = tool.parameters
        lists_none = isinstance(schema, Mapping) and schema.get("properties") == {}
        if lists_none and not any(schema.get(key) for key in (*_OTHERS, "required")):
            return replace(call, arguments="{}")
        return call if fits(arguments, schema, self.matches, closed=True) else None


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a name occurs twice")
    return out


def plain_calls_of(request: ChatRequest, several: bool, *, own: bool = False) -> PlainCalls | None:
    """The calls that a reply may consist of in place of an answer; None if it may not.

    Args:
        several: it may have more than one call.
        own: plain JSON is the form of calls that the template itself asks for.
    """
    if own:
        return PlainCalls(request.callable_tools, several)
    free = request.uses_tools and request.tool_choice.mode == "auto" and request.schema is None
    if not free or request.json_calls is False or request.continue_final_message:
        return None
    return PlainCalls(request.callable_tools, several)


def with_vocab(calls: PlainCalls, vocab: Any) -> PlainCalls:
    """The same, with patterns of schemas looked at, as far as llama.cpp's grammars know them.

    A grammar takes a time that is bounded, which Python's regular expressions do not.
    """
    return replace(calls, matches=partial(_matches, vocab))


def _matches(vocab: Any, pattern: str, text: str) -> bool:
    plain = fitting_pattern(pattern)
    if plain is None or len(text) > _LONGEST_MATCHED:
        return True
    try:
        gbnf = schema_to_gbnf({"type": "string", "pattern": plain})
    except GrammarError:
        return True  # it would not be enforced either
    try:
        return spells(vocab, GrammarSpec(gbnf), json.dumps(text, ensure_ascii=False))
    except LlamaError:
        return False


class PlainCallReader:
    """Looks at one reply while it is generated. Belongs to one thread at a time."""

    def __init__(self, calls: PlainCalls) -> None:
        self._calls = calls
        self._scanner: _Scanner | None = _Scanner(calls)

    @property
    def holding(self) -> bool:
        """Whether text is held back."""
        return self._scanner is not None and bool(self._scanner.text.strip())

    def feed(self, text: str) -> str:
        """Add generated text; return what is certainly no call, with what was held back."""
        if self._scanner is None:
            return text
        return "" if self._scanner.goes_on(text) else self.give_up()

    def give_up(self) -> str:
        """The reply is no call, whatever comes; return what was held back."""
        scanner, self._scanner = self._scanner, None
        return scanner.text if scanner is not None else ""

    def end(self) -> tuple[tuple[FoundCall, ...], str]:
        """End the reply; return the calls that it is, or the text that was held back."""
        found = self._scanner.calls() if self._scanner is not None else ()
        settled = [call for each in found if (call := self._calls.settled(each)) is not None]
        if found and len(settled) == len(found):
            self._scanner = None
            return tuple(settled), ""
        return (), self.give_up()


# ---- one character after the other --------------------------------------------------------------


@dataclass(slots=True)
class _Object:
    """An object that is a call, or the part of one that names the function.

    Attributes:
        inner: it is such a part.
        key: the field whose value comes next.
        keys: its fields so far.
    """

    inner: bool = False
    key: str = ""
    keys: list[str] = field(default_factory=list)


class _Misfit(Exception):
    """This is not the beginning of a call."""


_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR = re.compile(r"[-+.\w]*")
_VALUE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_SCALAR_START = re.compile(r"-?[0-9.eE+-]*|t|tr|tru|f|fa|fal|fals|n|nu|nul|true|false|null")


class _Scanner:
    """Reads text as far as it can be read, and remembers where it is.

    ``_step`` reads one piece of the text (a bracket, a string, a number), and returns False where
    it needs more of the text to do so. So each character is read once, however it comes.

    Attributes:
        text: the reply so far.
    """

    def __init__(self, calls: PlainCalls) -> None:
        self.text = ""
        self._names = {tool.name for tool in calls.tools}
        self._several = calls.several
        self._at = 0
        self._fenced = self._closed = False
        self._listed: bool | None = None  # None until the first bracket; then: whether in a list
        self._list_ended = False
        self._comma = False  # one was read, behind a call
        self._open: list[_Object | str] = []  # objects of calls, and brackets of other values
        self._wants = "start"
        self._string: int | None = None  # where the string began that is being read
        self._arguments = 0  # where those of the call began
        self._name, self._given = "", ""
        self._found: list[FoundCall] = []

    def goes_on(self, text: str) -> bool:
        """Add text; whether all of it may still be the beginning of a call."""
        self.text += text
        try:
            while self._at < len(self.text) and self._step():
                pass
        except _Misfit:
            return False
        return True

    def calls(self) -> tuple[FoundCall, ...]:
        """The calls that the whole text is; () if something is missing."""
        whole = not self._open and self._fenced == self._closed
        ended = (self._listed is False and not self._comma) or self._list_ended
        return tuple(self._found) if whole and ended and self._wants == "start" else ()

    # ---- around the calls ----------------------------------------------------------------------

    def _step(self) -> bool:
        if self._string is not None:
            return self._read_string()
        letter = self.text[self._at]
        if letter in _SPACE:
            self._at += 1
            return True
        if self._open:
            return self._inside(letter)
        if letter == "`":
            return self._read_fence()
        self._at += 1
        if self._closed or self._list_ended:
            raise _Misfit
        more = self._several and len(self._found) < _MOST_CALLS
        may_begin = not self._found or (more and (self._comma or not self._listed))
        if self._listed is None and letter == "[":
            self._listed = True
        elif letter == "{" and may_begin:
            self._listed, self._comma = bool(self._listed), False
            self._open.append(_Object())
            self._wants = "key or end"
            self._name = self._given = ""
        elif letter == "," and self._found and not self._comma and (self._listed or self._several):
            self._comma = True  # Llama 3 writes some between calls without a list, too
        elif letter == "]" and self._listed and self._found and not self._comma:
            self._list_ended = True
        else:
            raise _Misfit
        return True

    def _read_fence(self) -> bool:
        rest = self.text[self._at :]
        whole = rest.startswith(_FENCE)
        if not whole and not _FENCE.startswith(rest):
            raise _Misfit
        if self._listed is not None:  # it closes
            if not self._fenced or self._closed or (self._listed and not self._list_ended):
                raise _Misfit
            if whole:
                self._closed = True
                self._at += len(_FENCE)
            return whole
        if self._fenced:
            raise _Misfit
        head = rest[len(_FENCE) :].lstrip(" \t") if whole else ""
        language = re.match(r"\w*", head)
        word = language[0] if language else ""
        if not any(name.startswith(word.lower()) for name in _LANGUAGES):
            raise _Misfit
        if len(word) == len(head):
            return False  # the word may go on
        if word.lower() not in _LANGUAGES:
            raise _Misfit
        self._fenced = True
        self._at += len(rest) - len(head) + len(word)
        return True

    # ---- within a call -------------------------------------------------------------------------

    def _inside(self, letter: str) -> bool:
        if "key" in self._wants and letter == '"':
            self._string = self._at
            self._at += 1
        elif self._wants == ":" and letter == ":":
            self._wants = "value"
            self._at += 1
        elif "value" in self._wants and letter not in "]},:":
            return self._read_value(letter)
        elif "," in self._wants and letter == ",":
            self._wants = "value" if self._open[-1] == "[" else "key"
            self._at += 1
        elif "end" in self._wants and letter in "]}":
            self._at += 1
            self._close(letter)
        else:
            raise _Misfit
        return True

    def _read_value(self, letter: str) -> bool:
        self._check_kind(letter)
        if letter == '"':
            self._string = self._at
        elif letter in "[{":
            if len(self._open) > _DEEPEST:
                raise _Misfit
            top = self._open[-1]
            if isinstance(top, _Object) and top.key == "function":
                self._open.append(_Object(inner=True))
            else:
                if isinstance(top, _Object):
                    self._arguments = self._at
                self._open.append(letter)
            self._wants = "key or end" if letter == "{" else "value or end"
        else:
            return self._read_scalar()
        self._at += 1
        return True

    def _read_scalar(self) -> bool:
        match = _SCALAR.match(self.text, self._at)
        word = match[0] if match else ""
        if self._at + len(word) == len(self.text):
            if not _SCALAR_START.fullmatch(word) or len(word) > 1000:
                raise _Misfit
            return False
        if not _VALUE.fullmatch(word):
            raise _Misfit
        self._at += len(word)
        self._wants = ", or end"
        return True

    def _check_kind(self, letter: str) -> None:
        """Whether a field of a call may have a value that begins so."""
        top = self._open[-1]
        if not isinstance(top, _Object):
            return
        if top.key in _ARGUMENTS:
            allowed = "{"
        elif top.key == "function" and not top.inner and not self._name:
            allowed = '"{'
        else:
            allowed = '"'
        if letter not in allowed:
            raise _Misfit

    # ---- strings -------------------------------------------------------------------------------

    def _read_string(self) -> bool:
        match = _TEXT.match(self.text, self._at)
        self._at = match.end() if match else self._at
        self._check_so_far()
        rest = self.text[self._at : self._at + 6]
        if rest.startswith('"'):
            self._at += 1
            start, self._string = self._string or 0, None
            self._take_string(self.text[start : self._at])
            return True
        if rest and not _CUT_ESCAPE.fullmatch(rest):
            raise _Misfit
        return False

    def _check_so_far(self) -> None:
        """Whether the name of a field, or of a tool, may begin so."""
        top = self._open[-1]
        if not isinstance(top, _Object) or self._string is None:
            return
        expected: Iterable[str]
        if "key" in self._wants:
            expected = (*_NAMES, *_ARGUMENTS, *_IDLE)
        elif top.key == "type":
            expected = _TYPES
        elif top.key in _NAMES:
            expected = self._names
        else:
            return
        so_far = self.text[self._string + 1 : self._at]
        if not any(text.startswith(so_far) for text in expected):
            raise _Misfit

    def _take_string(self, quoted: str) -> None:
        top = self._open[-1]
        is_key = "key" in self._wants
        self._wants = ":" if is_key else ", or end"
        if not isinstance(top, _Object):
            return
        text = str(json.loads(quoted))
        if is_key:
            known = (*_NAMES, *_ARGUMENTS, *_IDLE)
            twice = text in top.keys or (text in _ARGUMENTS and bool(self._given))
            if text not in known or twice or (top.inner and text == "function"):
                raise _Misfit
            top.key = text
            top.keys.append(text)
        elif top.key in _NAMES:
            if text not in self._names or self._name:
                raise _Misfit
            self._name = text
        elif top.key == "type" and text not in _TYPES:
            raise _Misfit

    # ---- ends ----------------------------------------------------------------------------------

    def _close(self, letter: str) -> None:
        top = self._open.pop()
        if (letter == "]") != (top == "["):
            raise _Misfit
        self._wants = ", or end"
        if isinstance(top, _Object):
            if not top.inner:  # the call ends
                if not self._name or not self._given:
                    raise _Misfit
                self._found.append(FoundCall(self._name, self._given))
                self._wants = "start"
        elif isinstance(self._open[-1], _Object):
            self._given = self.text[self._arguments : self._at]
