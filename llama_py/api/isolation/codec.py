"""``Codec``: what crosses the border between two processes of one model, as bytes.

Pickle writes it, because what crosses is Python's: frozen dataclasses, arrays, exceptions. But no
pickle is trusted, in neither direction: a file that takes over the process of its model must not
take over the one that calls it. Only the classes of a list are written or read, by their exact
names; they hold data, and making one does nothing. So a callable of a caller's cannot cross either,
and the error says which one it was.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llama_py import errors, params
from llama_py.api import facts
from llama_py.api.isolation import messages
from llama_py.api.kept import conversations
from llama_py.chat import reasoning, wrapping
from llama_py.chat.calls import openings
from llama_py.chat.grammars import guidance, layout
from llama_py.core import device_memory, projector
from llama_py.dialects import budget
from llama_py.embeddings import inputs
from llama_py.engine import media, metrics, request
from llama_py.errors import IsolationError, LlamaError, shown
from llama_py.media import decoding
from llama_py.options import drafters
from llama_py.states import state
from llama_py.states.disk import LlamaDiskCache

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["Codec"]

_PROTOCOL = 5

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
    decoding.Decoded,
    facts.ContextFacts,
    facts.EngineReport,
    messages.Ended,
    messages.Facts,
    metrics.Histogram,
    metrics.Metrics,
    openings.CallOpening,
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
    wrapping.Mark,
    wrapping.Wrapping,
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


#: By module and name, as pickle writes them.
_KNOWN: Mapping[tuple[str, str], Any] = {
    (each.__module__, each.__qualname__): each for each in (*_CLASSES, *_ERRORS)
}
#: Kinds of numbers that arrays may have; what else there is may refer to anything.
_NUMBERS = frozenset("biuf")


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

    def encode(self, value: Any) -> bytes:
        """Anything that may cross.

        Raises:
            IsolationError: something in it may not.
        """
        buffer = io.BytesIO()
        try:
            _Writer(buffer, self).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            raise IsolationError(
                f"what was given cannot be sent to the model's own process: {error}"
            ) from None
        return buffer.getvalue()

    @staticmethod
    def encode_plain(value: Any) -> bytes:
        """The same for lists, tuples, numbers, texts and bytes, in a fraction of the time."""
        return pickle.dumps(value, _PROTOCOL)

    def decode(self, data: bytes) -> Any:
        """What ``encode`` was given.

        Raises:
            LlamaError: it is nothing that ``encode`` writes.
        """
        try:
            return _Reader(io.BytesIO(data), self).load()
        except Exception as error:  # whatever bytes can do to a reader
            raise LlamaError(f"a message of another process cannot be read: {error}") from error


class _Writer(pickle.Pickler):
    """Writes what is on the list, and references to what the other process has of its own."""

    def __init__(self, buffer: io.BytesIO, codec: Codec) -> None:
        super().__init__(buffer, _PROTOCOL)
        self._codec = codec

    def reducer_override(self, obj: Any) -> Any:
        """Called for everything but numbers, texts and containers."""
        kind = type(obj)
        if obj is self._codec.vocab:
            return _vocab, ()
        if kind is guidance.SchemaMaker:
            return _schema, (self._codec.vocab, *obj.source)
        if kind is LlamaDiskCache:
            return _store, (str(obj.cache_dir), obj.capacity_bytes)
        if issubclass(kind, (np.ndarray, np.generic)) and obj.dtype.kind in _NUMBERS:
            return _array, (np.ascontiguousarray(obj).tobytes(), obj.dtype.str, obj.shape)
        if isinstance(obj, BaseException) and kind not in _ERRORS:
            return LlamaError, (f"{kind.__name__}: {obj}",)
        named = obj if callable(obj) and hasattr(obj, "__qualname__") else kind
        name = getattr(named, "__module__", ""), getattr(named, "__qualname__", "")
        if named not in _FUNCTIONS and _KNOWN.get(name) is not named:
            raise pickle.PicklingError(
                f"{shown(obj)} (a {kind.__name__}) stays in its process: functions and objects of "
                "a program do not cross; leave it out, or load the model without isolate"
            )
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what ``_Writer`` writes, and refuses everything else."""

    def __init__(self, buffer: io.BytesIO, codec: Codec) -> None:
        super().__init__(buffer)
        self._codec = codec

    def find_class(self, module: str, name: str, /) -> Any:
        """What is on the list."""
        known = _KNOWN.get((module, name))
        if known is None and module == __name__ and name == "_array":
            known = _array
        if known is None and module == __name__ and self._codec.builds:
            known = {"_schema": _schema, "_store": _store}.get(name)
            if name == "_vocab":
                return lambda: self._codec.vocab
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} has no business here")
        return known


# ---- what is called for what is read -------------------------------------------------------------


def _vocab() -> Vocab:
    raise LlamaError("this is a reference to the vocabulary of whoever reads it")


def _schema(vocab: Vocab, *source: Any) -> guidance.SchemaMaker:
    return guidance.compiled_schema(vocab, *source)


def _store(path: str, capacity_bytes: int) -> LlamaDiskCache:
    return LlamaDiskCache(path, capacity_bytes)


def _array(data: Any, kind: str, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(str(kind))
    if dtype.kind not in _NUMBERS:
        raise LlamaError(f"arrays of {dtype} do not cross")
    array = np.frombuffer(bytearray(data), dtype).reshape(shape)
    return array if shape else array[()]


_FUNCTIONS = (_vocab, _schema, _store, _array)
