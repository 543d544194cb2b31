"""``Codec``: what crosses the border between two processes of one model, as bytes.

It is MessagePack: numbers, texts, bytes, lists and dictionaries as ever, and everything else as one
of ``_Kind``. A file that takes over the process of its model must not take over the one that calls
it: objects are those of the classes on a list, by their place there, and reading one sets its
fields; exceptions are those of another list. Arrays, and long byte strings, lie behind the
structure that refers to them, so that nothing is taken by a length that a message says. A callable
of a caller's cannot cross either, and the error says which one it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from llama_py import errors, params
from llama_py.api import facts
from llama_py.api.isolation import messages
from llama_py.api.isolation.connection import Frame
from llama_py.api.kept import conversations
from llama_py.chat import answer_marks, reasoning
from llama_py.chat.calls import call_triggers
from llama_py.chat.grammars import guidance, layout
from llama_py.core import device_memory, projector
from llama_py.dialects import budget
from llama_py.embeddings import inputs
from llama_py.engine import media, metrics, request
from llama_py.errors import IsolationError, LlamaError, shown
from llama_py.media import arrays
from llama_py.options import drafters
from llama_py.states import state
from llama_py.states.disk import LlamaDiskCache

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["Codec"]

_CLASSES: tuple[Any, ...] = (
    budget.BudgetMaker,
    conversations.HeldConversation,
    conversations.Work,
    device_memory.DeviceMemory,
    drafters.DraftModel,
    drafters.MTP,
    drafters.PromptLookup,
    drafters.Speculative,
    inputs.MediaInput,
    inputs.VectorPiece,
    layout.WatchedAnswer,
    media.MediaCells,
    media.Medium,
    media.PlacedMedium,
    media.Waiting,
    arrays.Decoded,
    facts.ContextFacts,
    facts.EngineReport,
    messages.Ended,
    messages.Facts,
    metrics.Histogram,
    metrics.Metrics,
    call_triggers.CallOpening,
    params.GenerationParams,
    params.GrammarSpec,
    params.SamplingParams,
    projector.Cells,
    reasoning.Reasoning,
    request.GenerationRequest,
    request.Prompt,
    request.TokenLogprobs,
    state.Checkpoint,
    state.Segment,
    state.StoredState,
    answer_marks.Mark,
    answer_marks.Wrapping,
)
_ERRORS: tuple[type[BaseException], ...] = (
    *(getattr(errors, name) for name in errors.__all__),
    ArithmeticError,
    AttributeError,
    KeyError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class _Kind(IntEnum):
    """Types written as extensions of MessagePack."""

    TUPLE = 0  # its items
    SET = 1
    FROZEN_SET = 2
    OBJECT = 3  # index of its class, values of its fields
    ERROR = 4  # index of its class, arguments, attributes
    ARRAY = 5  # position behind the structure, index of its dtype, shape
    BYTES = 6  # position behind the structure, length
    VOCAB = 7  # the reader's own
    SCHEMA = 8  # its source
    STORE = 9  # its directory, bytes


_CONTAINERS = {_Kind.TUPLE: tuple, _Kind.SET: set, _Kind.FROZEN_SET: frozenset}
_KIND_OF: dict[type[Any], _Kind] = {value: kind for kind, value in _CONTAINERS.items()}
_CLASS_INDEX = {each: index for index, each in enumerate(_CLASSES)}
_ERROR_INDEX = {each: index for index, each in enumerate(_ERRORS)}
#: Kinds of numbers that arrays may have; what else there is may refer to anything.
_DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
#: Byte strings that are longer lie behind the structure, where arrays begin at multiples of 64.
_LONG, _ALIGNED = 4096, 64
#: How deep extensions may lie in each other: each takes 40 KB of the stack.
_DEPTH = 32
#: Items of a list that comes to the process that calls, which has room for them before they come.
_ITEMS = 1 << 20
#: Extensions of a message that comes there: each takes microseconds.
_EXTENSIONS = 1 << 19


#: Classes whose objects begin anew in the other process, where nothing of theirs is there yet.
_ANEW = frozenset({media.Waiting})


def _names_of(cls: type[Any]) -> tuple[str, ...]:
    if cls in _ANEW:
        return ()
    if is_dataclass(cls):
        return tuple(each.name for each in fields(cls))
    return tuple(cls.__dict__.get("__slots__") or vars(cls()))


_NAMES = tuple(map(_names_of, _CLASSES))


class Codec:
    """Objects to bytes and back.

    Args:
        vocab: this process's vocabulary of the model, of which the other one has its own. It may be
            set later.
        builds: what is read may have schemas compiled and stores opened here: in the process of the
            model, which is asked to, and not in the one that asks.
    """

    def __init__(self, vocab: Vocab | None = None, *, builds: bool = False) -> None:
        self.vocab = vocab
        self.builds = builds

    def encode(self, value: Any) -> Frame:
        """Anything that may cross.

        Raises:
            IsolationError: something in it may not.
        """
        try:
            return _Writer(self.vocab).frame(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise IsolationError(
                f"what was given cannot be sent to the model's own process: {error}"
            ) from None

    @staticmethod
    def encode_plain(value: Any) -> Frame:
        """The same for tuples, numbers, texts and bytes, in less time; tuples arrive as lists."""
        return (_PLAIN.pack(value),)

    def decode(self, message: tuple[bytes | bytearray, bytes | bytearray]) -> Any:
        """The value that ``encode`` was given: the structure, and the arrays behind it.

        Raises:
            LlamaError: it is nothing that ``encode`` writes.
        """
        try:
            return _Reader(self, message[1]).read(message[0])
        except Exception as error:  # whatever bytes can do to a reader
            raise LlamaError(f"a message of another process cannot be read: {error}") from error


#: Shared by threads: it calls nothing, so it is not interrupted.
_PLAIN = msgpack.Packer(unicode_errors="surrogatepass")


def _packed(value: Any, default: Callable[[Any], Any]) -> bytes:
    packed: bytes = msgpack.packb(
        value, default=default, strict_types=True, unicode_errors="surrogatepass"
    )
    return packed


class _Writer:
    """Writes what is on the lists, and references to what the other process has of its own."""

    def __init__(self, vocab: Vocab | None) -> None:
        self._vocab = vocab
        self._behind: list[bytes | memoryview[Any]] = []
        self._length = 0
        self._known: dict[int, int] = {}

    def frame(self, value: Any) -> Frame:
        return (_packed(value, self._extension), *self._behind)

    def _extension(self, value: Any) -> Any:
        """Called for everything that MessagePack has no word for."""
        kind = type(value)
        if value is self._vocab:
            return self._made(_Kind.VOCAB)
        if (container := _KIND_OF.get(kind)) is not None:
            return self._made(container, *value)
        if (index := _CLASS_INDEX.get(kind)) is not None:
            return self._made(_Kind.OBJECT, index, *(getattr(value, n) for n in _NAMES[index]))
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value))
        if isinstance(value, IntEnum):
            return int(value)
        if isinstance(value, BaseException):
            return self._error(value)
        if kind is guidance.SchemaMaker:
            return self._made(_Kind.SCHEMA, *value.source)
        if kind is LlamaDiskCache:
            return self._made(_Kind.STORE, str(value.cache_dir), value.capacity_bytes)
        raise TypeError(
            f"{shown(value)} (a {kind.__name__}) stays in its process: functions and objects of "
            "a program do not cross; leave it out, or load the model without isolate"
        )

    def _made(self, kind: _Kind, *contents: Any) -> msgpack.ExtType:
        parts = [
            self._long(each) if type(each) is bytes and len(each) > _LONG else each
            for each in contents
        ]
        return msgpack.ExtType(kind, _packed(parts, self._extension))

    def _error(self, error: BaseException) -> msgpack.ExtType:
        kind: type[BaseException] = type(error)
        reduced: Any = error.__reduce__()
        made, arguments, *state = reduced
        if kind not in _ERROR_INDEX or made is not kind:
            kind, arguments, state = LlamaError, (f"{kind.__name__}: {error}",), []
        return self._made(_Kind.ERROR, _ERROR_INDEX[kind], arguments, state[0] if state else {})

    def _array(self, array: np.ndarray[Any, Any]) -> msgpack.ExtType:
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"an array of {array.dtype} does not cross")
        where = self._put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return self._made(_Kind.ARRAY, where, _DTYPES.index(array.dtype.str), array.shape)

    def _long(self, data: bytes) -> msgpack.ExtType:
        if id(data) not in self._known:
            self._known[id(data)] = self._put(data)
        return self._made(_Kind.BYTES, self._known[id(data)], len(data))

    def _put(self, data: bytes | memoryview[Any]) -> int:
        """Where it lies behind the structure."""
        where, rest = self._length, -len(data) % _ALIGNED
        self._behind += (data, bytes(rest)) if rest else (data,)
        self._length += len(data) + rest
        return where


class _Reader:
    """Reads what ``_Writer`` writes, and refuses everything else."""

    def __init__(self, codec: Codec, behind: bytes | bytearray) -> None:
        self._codec = codec
        self._behind = behind
        self._depth = self._count = 0
        self._known: dict[int, bytes] = {}
        self._copied = 0

    def read(self, data: bytes | bytearray) -> Any:
        return msgpack.unpackb(
            data,
            ext_hook=self._extension,
            strict_map_key=not self._codec.builds,
            max_array_len=len(data) if self._codec.builds else min(len(data), _ITEMS),
            unicode_errors="surrogatepass",
        )

    def _extension(self, code: int, data: bytes) -> Any:
        kind = _Kind(code)
        if self._depth >= _DEPTH:
            raise ValueError("it is nested too deeply")
        self._depth, self._count = self._depth + 1, self._count + 1
        if self._count > _EXTENSIONS and not self._codec.builds:
            raise ValueError("it is made of too many parts")
        contents = self.read(data)
        self._depth -= 1
        if (container := _CONTAINERS.get(kind)) is not None:
            return container(contents)
        if kind is _Kind.OBJECT:
            return self._object(*contents)
        if kind is _Kind.ARRAY:
            return self._array(*contents)
        if kind is _Kind.BYTES:
            return self._bytes(*contents)
        if kind is _Kind.ERROR:
            return _error(*contents)
        if not self._codec.builds:
            raise ValueError(f"{kind.name} is not allowed here")
        return self._built(kind, contents)

    def _built(self, kind: _Kind, contents: list[Any]) -> Any:
        vocab = self._codec.vocab
        if kind is _Kind.VOCAB:
            return vocab
        if kind is _Kind.STORE:
            return LlamaDiskCache(*contents)
        if vocab is None:
            raise LlamaError("the model is not loaded yet")
        return guidance.compiled_schema(vocab, *contents)

    def _object(self, index: int, *values: Any) -> Any:
        if _CLASSES[index] in _ANEW:
            return _CLASSES[index]()
        value = object.__new__(_CLASSES[index])
        for name, each in zip(_NAMES[index], values, strict=True):
            object.__setattr__(value, name, each)
        if not self._codec.builds and hasattr(value, "__post_init__"):
            value.__post_init__()
        return value

    def _array(self, where: int, kind: int, shape: tuple[int, ...]) -> Any:
        count = math.prod(shape)
        if count < 0:
            raise ValueError(f"an array of {count} numbers")
        array = np.frombuffer(self._behind, _DTYPES[kind], count, where).reshape(shape)
        return array if shape else array[()]

    def _bytes(self, where: int, length: int) -> bytes:
        """A copy; what is referred to more than once is copied once."""
        if where not in self._known:
            self._copied += length
            if not 0 <= where <= where + length <= len(self._behind) >= self._copied:
                raise ValueError(f"{length} bytes at {where} of {len(self._behind)}")
            self._known[where] = bytes(memoryview(self._behind)[where : where + length])
        return self._known[where]


def _error(index: int, arguments: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = _ERRORS[index](*arguments)
    error.__dict__.update(state)
    return error
