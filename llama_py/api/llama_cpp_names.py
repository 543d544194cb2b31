"""Names that ``Llama`` has beside its own: llama-cpp-python's, and those of ``llm.cache``.

Each is a thin wrapper, and nothing in this package uses them. They are here and not in ``compat``
because the public ``Llama`` has them, and ``compat`` stands above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from llama_py.errors import MissingPackageError
from llama_py.options import PromptOptions
from llama_py.params import check_number

# numpy is not needed to load a model: api/opening.py says why nothing else is imported before.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llama_py.api.kept.model_cache import ModelCache, Prewarmed
    from llama_py.api.kept.reports import CacheReport
    from llama_py.api.kept.states import LlamaState, SnapshotInfo
    from llama_py.api.overflow import OverflowReport
    from llama_py.api.runtime import Runtime
    from llama_py.core.vocab import Vocab
    from llama_py.memory.sequences import ReuseInfo
    from llama_py.states.store import StateStore

__all__ = [
    "CacheNames",
    "LlamaCppNames",
    "LlamaTokenizer",
    "logits_to_logprobs",
    "longest_token_prefix",
    "with_openai_types",
]


class LlamaTokenizer:
    """The return value of ``Llama.tokenizer()``: the vocabulary by llama-cpp-python's names.

    Unlike ``Llama.tokenize``, it reads the texts of special tokens as those tokens by default.
    """

    def __init__(self, llm: LlamaCppNames) -> None:
        self._vocab = llm.vocab

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of ``text``."""
        return self._vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of ``tokens``, as ``Llama.detokenize`` gives them."""
        return self._vocab.detokenize_prompt(tokens, special=special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """``tokenize`` of a string; lone surrogates, which have no bytes, are left out."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """``detokenize`` to a string; bytes that are not UTF-8 are left out."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


def with_openai_types(reply: Any) -> Any:
    """A chat completion, or a stream of its chunks, as objects of the package ``openai``.

    Raises:
        MissingPackageError: ``openai`` is not installed; also an ``ImportError``.
    """
    try:
        from openai.types.chat import ChatCompletion, ChatCompletionChunk
    except ImportError as error:
        raise MissingPackageError(
            "create_chat_completion_openai_v1 needs the package openai: pip install openai "
            f"({error})"
        ) from error
    if isinstance(reply, dict):
        return ChatCompletion(**reply)
    return _converted(reply, ChatCompletionChunk)


def logits_to_logprobs(logits: ArrayLike, axis: int = -1) -> NDArray[np.float32]:
    """Natural logarithms of the probabilities (log-softmax), float32, of the same shape.

    A logit of ``-inf`` stays ``-inf``.
    """
    import numpy as np

    row = np.asarray(logits, np.float32)
    top = row.max(axis=axis, keepdims=True)
    shifted = row - np.where(np.isfinite(top), top, np.float32(0))
    with np.errstate(divide="ignore"):  # a row of -inf has no probabilities
        sums = np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    result: NDArray[np.float32] = shifted - sums
    return result


def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    for count, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return count
    return min(len(a), len(b))


def _converted(chunks: Iterator[Any], kind: Any) -> Iterator[Any]:
    """Typed chunks; leaving the iterator ends the request, as it does for dictionaries."""
    try:
        for chunk in chunks:
            yield kind(**chunk)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


class LlamaCppNames:
    """Names of ``Llama`` for code that was written for llama-cpp-python."""

    runtime: Runtime

    if TYPE_CHECKING:

        @property
        def vocab(self) -> Vocab: ...

    def n_embd(self) -> int:
        """Width of the embeddings."""
        return self.runtime.port.model.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.vocab.n_tokens

    def token_eos(self) -> int:
        """The end-of-sequence token, -1 if there is none."""
        return self.vocab.eos

    def token_bos(self) -> int:
        """The beginning-of-sequence token, -1 if there is none."""
        return self.vocab.bos

    def token_nl(self) -> int:
        """The newline token, -1 if there is none."""
        return self.vocab.nl

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """``create_chat_completion`` with the types of the package ``openai``.

        Returns:
            A ``ChatCompletion``; with ``stream=True`` an iterator of ``ChatCompletionChunk``.

        Raises:
            MissingPackageError: ``openai`` is not installed; also an ``ImportError``.
        """
        llm: Any = self
        return with_openai_types(llm.create_chat_completion(*args, **kwargs))

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object of its own."""
        return LlamaTokenizer(self)

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """``eval_tokens`` as an array, int32 ``(n_tokens,)``; a copy."""
        import numpy as np

        return np.array(self.runtime.by_hand.tokens, np.intc)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of ``scores`` as lists; without ``logits_all`` only the last one."""
        by_hand = self.runtime.by_hand
        every = by_hand.logits_all
        rows = by_hand.scores if every else by_hand.scores[-1:]
        return deque(rows.tolist(), maxlen=None if every else 1)

    def set_seed(self, seed: int) -> None:
        """The seed of later calls that give none of their own."""
        check_number("seed", seed, integer=True)
        self.runtime.settings.seed = seed

    logits_to_logprobs = staticmethod(logits_to_logprobs)
    longest_token_prefix = staticmethod(longest_token_prefix)


class CacheNames:
    """Names of ``Llama`` for methods of ``llm.cache`` and ``llm.states``; some are
    llama-cpp-python's."""

    runtime: Runtime
    cache: ModelCache

    @property
    def cache_info(self) -> ReuseInfo:
        """``cache.info``."""
        return self.cache.info

    @property
    def last_overflow(self) -> OverflowReport | None:
        """``dropped`` of the reply that ``cache.info`` speaks of."""
        return self.runtime.last.outcome.dropped if self.runtime.last.outcome is not None else None

    def memory_report(self) -> CacheReport:
        """``cache.report()``."""
        return self.cache.report()

    def set_cache(self, cache: StateStore | None) -> None:
        """``states.set_store(cache)``."""
        self.cache.set_store(cache)

    def save_state(self) -> LlamaState:
        """``states.save()``."""
        return self.cache.save()

    def load_state(self, state: LlamaState) -> None:
        """``states.restore(state)``."""
        self.cache.restore(state)

    def snapshot(self, name: str, length: int | None = None) -> SnapshotInfo:
        """``states.save(name, length)``."""
        return self.cache.snapshot(name, length)

    def restore(self, name: str) -> SnapshotInfo:
        """``states.restore(name)``."""
        return self.cache.restore(name)

    def snapshots(self) -> list[SnapshotInfo]:
        """``states.list()``."""
        return self.cache.list()

    def drop_snapshot(self, name: str) -> None:
        """``states.drop(name)``."""
        self.cache.drop(name)

    def prewarm(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        pin: bool = True,
        **options: Unpack[PromptOptions],
    ) -> Prewarmed:
        """``cache.prewarm(messages, pin=pin, ...)``."""
        return self.cache.prewarm(messages, pin=pin, **options)

    def reset(self, *, cancel: bool = False) -> None:
        """``cache.reset(cancel=cancel)``."""
        self.cache.reset(cancel=cancel)
