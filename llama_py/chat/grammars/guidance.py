"""Constraints by the llguidance library (the extra ``structured``): JSON schemas at full speed.

llguidance works on the bytes of tokens. For each token it computes a bit mask over the vocabulary
in microseconds. Its view of a vocabulary is made once (about a second for 150 000 tokens) and kept.
A constraint follows one generated sequence: reasoning is not constrained, a tool call ends the
constraint (the tool grammar takes over), and everything else must fit the schema.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.chat.answer_marks import Wrapping
from llama_py.chat.calls.call_triggers import SPACE, CallOpening
from llama_py.chat.grammars.lark import lark_rules, slashes
from llama_py.chat.grammars.layout import AnswerWatch, Spaces
from llama_py.chat.reasoning import NO_REASONING, Reasoning
from llama_py.chat.schemas.bounds import pointer, role_of
from llama_py.chat.schemas.json_forms import LEAD, TRAIL, space_regex
from llama_py.chat.schemas.plain import with_nulls
from llama_py.chat.vocab import VocabLike
from llama_py.errors import GrammarError
from llama_py.params import TokenConstraint
from llama_py.tenants import Remembered

__all__ = [
    "Guide",
    "SchemaConstraint",
    "SchemaMaker",
    "available",
    "compiled_schema",
    "guide_for",
    "unsatisfiable",
]

#: Seconds for which parts of a schema are compiled by themselves, to find the one that is refused.
_SEARCH = 0.5
#: Where in the rules it was given llguidance finds a fault.
_PREFIX = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
#: Any text, as a regular expression.
_ANY = r"(.|\n)*"
#: White space behind the mark of a call, as the grammar of calls has it.
_CALL_SPACE = r"CALL_SPACE: / |\n{1,2}[ \t]{0,20}/"
#: For the parts of a schema that llguidance's own compiler turns into rules.
_JSON_OPTIONS = {"whitespace_pattern": space_regex()}
#: Every token that fits stays possible. Otherwise llguidance prescribes how to spell what the
#: grammar leaves no choice about, and the model would have to read its own words spelled oddly.
_HEAD = '%llguidance {"no_forcing": true}'
#: Compiled schemas that a vocabulary keeps, the latest ones.
_KEPT = 32
#: Seconds from which on a mask is worth the hand-over to another thread.
_SLOW = 200e-6
#: Characters from which on a schema is tried out before a reply begins.
_WORTH_TRYING = 4000
#: Row b: what to add to eight logits whose bits are those of b (bit 0 first).
_BIAS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 0,
    np.float32(-np.inf),
    np.float32(0),
)


def available() -> bool:
    """True if llguidance is installed."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        return False
    return True


def unsatisfiable(error: GrammarError) -> bool:
    """True if llguidance refused a schema because no value fits it. No other engine is tried."""
    return "nsatisfiable" in str(error)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The vocabulary in the form that llguidance asks for."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, text: bytes | str) -> list[int]:
        # Asked for at the start only: nothing is forced (_HEAD), so nothing has to be spelled.
        raw = text if isinstance(text, bytes) else text.encode()
        return [self.tokens.index(bytes([byte])) for byte in raw]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled schema, from which each sequence gets a copy."""

    matcher: Any
    lock: threading.Lock

    def copy(self) -> Any:
        with self.lock:  # copying while another copy is made is not promised to be safe
            return self.matcher.deep_copy()


class SchemaMaker:
    """Makes the constraints of one schema; call it once for each generated sequence.

    Attributes:
        source: schema, reasoning and calls, from which another process that has the vocabulary
            makes the same (``compiled_schema``).
    """

    __slots__ = ("_compiled", "_guide", "source")

    def __init__(
        self,
        guide: Guide,
        compiled: _Compiled,
        source: tuple[Any, Reasoning, tuple[CallOpening, ...]],
    ) -> None:
        self._guide = guide
        self._compiled = compiled
        self.source = source

    def __call__(self) -> TokenConstraint:
        """The constraint of one sequence."""
        return SchemaConstraint(self._compiled.copy(), self._guide, self.source[1])


class Guide:
    """llguidance for one vocabulary.

    Raises:
        GrammarError: llguidance is not installed, or does not take the vocabulary.
    """

    def __init__(self, vocab: VocabLike) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise GrammarError(
                "this needs llguidance: install llama-py[structured], or ask for the gbnf backend"
            ) from error
        pieces = [vocab.token_to_piece(token, True) for token in range(vocab.n_tokens)]
        # User-defined tokens are markers (<think>) as well as plain text (runs of spaces).
        markers = [
            token
            for token, piece in enumerate(pieces)
            if vocab.is_control(token)
            or (piece.startswith(b"<") and piece.endswith(b">") and vocab.is_special(token))
        ]
        self.n_tokens = vocab.n_tokens
        self.piece: Callable[[int], bytes] = pieces.__getitem__
        self._compiled: Remembered[Any, _Compiled] = Remembered(_KEPT)
        self.eog = frozenset(vocab.eog_tokens()) or frozenset({vocab.eos})
        self.spaces = Spaces(vocab.n_tokens, self.piece, self.eog)
        single = {piece: token for token, piece in enumerate(pieces) if len(piece) == 1}
        self._single = {byte: single.get(bytes([byte])) for byte in b'{["'}
        self._special = {pieces[token]: token for token in markers}
        texts = [re.escape(piece.decode("utf-8", "replace")) for piece in self._special if piece]
        self._markers = re.compile(f"({'|'.join(texts)})") if texts else None
        table = _Tokens(pieces, markers, vocab.eos)
        try:
            self._tokenizer = LLTokenizer(
                TokenizerWrapper(table), n_vocab=vocab.n_tokens, eos_token=sorted(self.eog)
            )
        except ValueError as error:
            raise GrammarError(f"llguidance does not take this vocabulary: {error}") from error

    def compile(
        self,
        schema: Any,
        *,
        reasoning: Reasoning = NO_REASONING,
        calls: Sequence[CallOpening] = (),
    ) -> SchemaMaker:
        """What makes constraints; call it once for each generated sequence.

        Args:
            schema: the JSON schema of the answer.
            reasoning: the block of reasoning that may come first, which nothing restricts.
            calls: what begins a tool call in place of the answer, or of the end of the reasoning.

        Raises:
            GrammarError: the schema uses a keyword that llguidance does not implement.
        """
        body = {} if schema is True else with_nulls(schema)
        if not isinstance(body, dict):
            raise GrammarError(f"the JSON schema is {schema!r}; expected an object")
        frame = partial(self._frame, reasoning, tuple(calls))
        key = (_with_options(body), frame.args)
        known = self._compiled.get(key)
        compiled = known or _Compiled(self._compile(body, frame), threading.Lock())
        if known is None:
            self._compiled.put(key, compiled)

        return SchemaMaker(self, compiled, (schema, reasoning, tuple(calls)))

    def _compile(self, body: dict[str, Any], frame: Callable[[list[str]], list[str]]) -> Any:
        """The matcher of a schema, to be copied for each sequence."""
        plain, problem = self._matcher(frame([f"answer: %json {_with_options(body)}"]))
        if problem:
            raise self._refused(problem, body)
        # Our rules for the same schema leave the model its spelling, which %json would prescribe.
        rules = lark_rules(body, "answer", _JSON_OPTIONS)
        if rules is None:
            return plain
        free, problem = self._matcher(frame(rules))
        return plain if problem else free

    def _refused(self, problem: str, schema: Mapping[str, Any]) -> GrammarError:
        """llguidance's objection, with the place of the innermost part that it objects to."""
        shelves = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        node, path, until = schema, "#", perf_counter() + _SEARCH
        seen: set[int] = set()

        def fails(part: Any) -> bool:
            if not isinstance(part, Mapping) or id(part) in seen or perf_counter() > until:
                return False
            seen.add(id(part))
            _, found = self._matcher([f"start: %json {_with_options({**shelves, **part})}"])
            return _objection(found) == _objection(problem)

        while True:
            inner = _schemas_in(node, shelves)
            where, node = next((each for each in inner if fails(each[1])), ("", node))
            if not where:
                break
            path = where if where.startswith("#") else f"{path}/{where}"
        return GrammarError(
            f"the JSON schema cannot be enforced: {_objection(problem)} (at {path})"
        )

    def _matcher(self, rules: Iterable[str]) -> tuple[Any, str]:
        """A matcher, and llguidance's objection to the schema ("" if there is none)."""
        from llguidance import LLMatcher, LLParserLimits

        lark = "\n".join([_HEAD, *rules])
        limits = LLParserLimits(verbose_errors=False)
        grammar = LLMatcher.grammar_from_lark(lark)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        problem = matcher.get_error() or ""
        if problem or not ('"pattern' in lark or len(lark) > _WORTH_TRYING):
            return matcher, problem
        for opening in (b'{"', b"[", b'"'):  # some limits show up in the first step
            trial = matcher.deep_copy()
            for byte in opening:
                token = self._single[byte]
                if token is None or not trial.try_consume_tokens([token]):
                    break
                trial.compute_bitmask()
            if trial.is_error():
                return matcher, str(trial.get_error())
        return matcher, ""

    def _mark(self, text: str) -> str:
        """A mark in Lark: special tokens by their ids, other text as strings."""
        parts = self._markers.split(text) if self._markers else [text]
        found = [(part, self._special.get(part.encode())) for part in parts if part]
        return " ".join(json.dumps(part) if n is None else f"<[{n}]>" for part, n in found)

    def _frame(
        self, reasoning: Reasoning, calls: Sequence[CallOpening], answer: Iterable[str]
    ) -> list[str]:
        """The rules of an answer, together with those for the reasoning and calls around it."""
        rules = [*answer, f"LEAD: /{LEAD}/", f"TRAIL: /{TRAIL}/"]
        rest, direct = map(self._wrapped, (reasoning.wrapping, reasoning.direct))
        if calls:
            # The constraint ends with the mark of a call. What follows it is here for the token
            # that ends the mark, and may begin that: it has to be what the grammar of calls, which
            # takes over, goes on with.
            rules.append(_CALL_SPACE)
            openings = []
            for number, opening in enumerate(calls):
                rules.append(f'mark{number}[capture="call"]: {self._spelled(opening.mark)}')
                before = [f"({self._spelled(text)})?" for text in opening.before]
                behind = _lark_behind(opening.behind)
                openings.append(" ".join([*before, f"mark{number}", behind]))
            rules.append(f"call: {' | '.join(openings)}")
            rest, direct = f"(call | {rest})", f"(call | {direct})"
        if not reasoning.possible:
            return [f"start: LEAD? {direct}", *rules]
        rules += self._thoughts(reasoning)
        ways = f"thought LEAD? {rest}"
        if reasoning.inside:
            return [f"start: {ways}", *rules]
        opened = f"LEAD? {self._spelled(reasoning.start)} ({ways})"
        return [f"start: {opened} | LEAD? {direct}", *rules]

    def _wrapped(self, wrapping: Wrapping) -> str:
        """An answer in Lark, with the marks that its family writes around it."""
        parts = ["answer TRAIL?"]
        if wrapping.before:
            opening = f"{self._spelled(wrapping.before)} LEAD?"
            parts.insert(0, opening if wrapping.needed else f"({opening})?")
        for mark in wrapping.after:
            parts.append(f"({self._spelled(mark.text)}){'' if mark.needed else '?'}")
        return " ".join(parts)

    def _thoughts(self, reasoning: Reasoning) -> list[str]:
        """Rules of reasoning with its end: ``thought``.

        A mark ends it as special tokens, and as the text that other tokens spell. All other special
        tokens may be part of it, but for those that end a reply.
        """
        marks = "|".join(slashes(re.escape(mark)) for mark in reasoning.marks)
        rules = [f"FREE: /{_ANY}/ & ~/{_ANY}({marks}){_ANY}/"]
        rules += self._ended(reasoning.end, marks)
        ending = {self._first_special(mark) for mark in reasoning.marks}
        others = sorted({*self._special.values()} - ending - self.eog)
        between = f"(FREE <[{','.join(map(str, others))}]>)*" if others else '""'
        return [*rules, f"between: {between}"]

    def _ended(self, end: str, marks: str) -> list[str]:
        """The rule of reasoning that ends with this mark."""
        text = slashes(re.escape(end))
        as_text = f"THOUGHT: /{_ANY}({text})/ & ~/{_ANY}({marks})(.|\\n)+/"
        special = self._first_special(end) is not None
        ways = [f"FREE {self._mark(end)}", "THOUGHT"] if special else ["THOUGHT"]
        return [as_text, f"thought: between ({' | '.join(ways)})"]

    def _first_special(self, text: str) -> int | None:
        """The first special token in a text."""
        found = self._markers.search(text) if self._markers else None
        return self._special[found[0].encode()] if found else None

    def _spelled(self, text: str) -> str:
        """A mark in Lark, as special tokens or as the same text in others."""
        if self._first_special(text) is None:
            return json.dumps(text)
        return f"({self._mark(text)} | {json.dumps(text)})"


def _lark_behind(texts: Iterable[str | None]) -> str:
    """What follows the mark of a call, in Lark."""
    return " ".join("CALL_SPACE?" if text is SPACE else json.dumps(text) for text in texts)


def _with_options(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS})


def _objection(problem: str) -> str:
    """llguidance's message, without the place in the rules that it was given."""
    first, _, rest = _PREFIX.sub("", problem).partition("\n")
    reason = re.search(r"^error: (.*)", rest, re.MULTILINE)
    return f"{first[:300]} {reason[1][:200]}" if reason and first.endswith(":") else first[:300]


def _schemas_in(node: Mapping[str, Any], shelves: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas within a schema, and where they stand in it; for a reference, its target."""
    for key, value in node.items():
        role = role_of(key, "schema")
        if key == "$ref":
            _, shelf, name = (*str(value).split("/", 2), "", "")[:3]
            yield str(value), shelves.get(shelf, {}).get(name)
        elif key in shelves or role not in ("schema", "properties", "table"):
            continue
        elif isinstance(value, list):
            yield from ((f"{key}/{i}", part) for i, part in enumerate(value))
        elif role == "schema":
            yield key, value
        elif isinstance(value, Mapping):
            yield from ((f"{key}/{pointer(name)}", part) for name, part in value.items())


class SchemaConstraint:
    """A ``TokenConstraint`` by llguidance. Belongs to one generated sequence."""

    def __init__(self, matcher: Any, guide: Guide, reasoning: Reasoning = NO_REASONING) -> None:
        self._watch = AnswerWatch(guide.piece, reasoning, lambda: guide.spaces)
        self._matcher = matcher
        self._eog = guide.eog
        self._n = guide.n_tokens
        # llguidance writes whole 32-bit words.
        self._bits = np.zeros((self._n + 31) // 32, dtype=np.int32)
        self._bytes = self._bits.view(np.uint8)
        self._bias = np.empty((len(self._bytes), 8), dtype=np.float32)
        self._address, self._size = self._bits.ctypes.data, self._bits.nbytes
        self._free = False
        self._ended = False
        self._ahead: _Ahead | None = None
        self._slow = False

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to ``-inf``, in place. Shape ``(n_vocab,)``."""
        if self._free:
            return
        if self._ahead is None:
            self._fill()
        else:
            self._ahead.result()
            self._ahead = None
        np.take(_BIAS, self._bytes, axis=0, out=self._bias, mode="clip")
        row = logits[: self._n]
        own = int(row.argmax())
        np.add(row, self._bias.reshape(-1)[: self._n], out=row)
        logits[self._n :] = -np.inf
        self._watch.trim(row, own)

    def _fill(self) -> None:
        """Compute the bits of the next token, with the interpreter lock released."""
        start = perf_counter()
        self._matcher.unsafe_compute_mask_ptr(self._address, self._size)
        if self._matcher.is_error():
            raise GrammarError(f"the reply cannot go on: {_reason(self._matcher)}")
        self._slow = perf_counter() - start > _SLOW

    def accept(self, token: int) -> None:
        """Advance past a sampled token.

        Most masks take microseconds. A few take milliseconds, usually several in a row (in a string
        of limited length, for example). Then the next one is computed while the model decodes.

        Raises:
            GrammarError: the token was not allowed.
        """
        if self._free or self._ended:
            return
        if self._ahead is not None:
            self._ahead.result()  # not read: the tokens were drafted, or forced
            self._ahead = None
        if token in self._eog and self._matcher.is_accepting():
            self._ended = True
        elif not self._matcher.consume_token(token):
            raise GrammarError(
                f"token {token} does not fit the JSON schema: {_reason(self._matcher)}"
            )
        elif self._matcher.get_capture("call") is not None:
            self._free = True  # a tool call began: its own grammar goes on
        self._watch.accept(token)
        if self._slow and not (self._free or self._ended):
            self._ahead = _Ahead(self._fill)
            with suppress(RuntimeError):  # no thread can be started: who needs it computes it
                _workers().submit(self._ahead.compute)

    @property
    def finished(self) -> bool:
        """True if only an end-of-generation token may follow."""
        return self._ended or (not self._free and bool(self._matcher.is_stopped()))


def _reason(matcher: Any) -> str:
    """llguidance's error message without the dump of its parser's state."""
    return str(matcher.get_error()).partition("\n")[0][:200]


class _Ahead:
    """Something that a worker computes, or whoever needs it, if no worker has begun."""

    def __init__(self, compute: Callable[[], None]) -> None:
        self._once = [compute]  # who takes it out computes
        self._done = Future[None]()

    def compute(self) -> None:
        try:
            compute = self._once.pop()
        except IndexError:
            return
        try:
            compute()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def result(self) -> None:
        """Return when it is computed; raises what that raised."""
        self.compute()
        self._done.result()


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="llama_py-mask")


_GUIDES: WeakKeyDictionary[VocabLike, Guide] = WeakKeyDictionary()
_GUIDES_LOCK = threading.Lock()
_MAKING: WeakKeyDictionary[VocabLike, threading.Lock] = WeakKeyDictionary()


def _begin_anew() -> None:
    """In a forked child: the lock may be held, and the threads are gone."""
    global _GUIDES_LOCK, _GUIDES, _MAKING
    _GUIDES_LOCK, _GUIDES, _MAKING = threading.Lock(), WeakKeyDictionary(), WeakKeyDictionary()
    _workers.cache_clear()


forks.after_in_child(_begin_anew)


def guide_for(vocab: VocabLike) -> Guide:
    """The guide of a vocabulary, made at its first use without blocking other vocabularies."""
    with _GUIDES_LOCK:
        making = _MAKING.setdefault(vocab, threading.Lock())
    with making:
        guide = _GUIDES.get(vocab)
        if guide is None:
            guide = _GUIDES[vocab] = Guide(vocab)
        return guide


def compiled_schema(
    vocab: VocabLike, schema: Any, reasoning: Reasoning, calls: Sequence[CallOpening]
) -> SchemaMaker:
    """The ``SchemaMaker`` of a source, for a vocabulary."""
    return guide_for(vocab).compile(schema, reasoning=reasoning, calls=calls)
