"""``Computer``: the contexts in which one batch of embeddings of a model is computed at a time.

They are made when they are needed first, as small as the inputs allow, and made anew, larger, when
a longer one comes: what llama.cpp reserves grows with the square of the longest input. llama.cpp
ends the process if an encoder gets more tokens than its context computes at once, so nothing is
handed to it before the context has been made for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from llama_py.core.batch import Batch
from llama_py.core.context import Context, default_n_ctx
from llama_py.core.host.core_turns import Share
from llama_py.core.host.machine import usable_cores
from llama_py.embeddings.inputs import Input, MediaInput, Tokens, VectorPiece
from llama_py.embeddings.pooling import POOLINGS, Rows
from llama_py.errors import DecodeError, ParameterError
from llama_py.params import ContextParams

if TYPE_CHECKING:
    from llama_py.core.lora import LoraAdapter
    from llama_py.core.model import Model

__all__ = ["Computer", "Setup", "check_embeds", "longest_input", "on_gpu", "threads_and_computers"]

#: Inputs in one batch. A recurrent state takes memory for each of them.
_MOST_INPUTS, _MOST_RECURRENT = 64, 8
#: Architectures whose positions are rows of a table: a position past it would end the process.
_LEARNED_POSITIONS = frozenset({"bert", "gpt2", "mpt", "starcoder"})
#: Tokens from which on attention as a matrix takes too much memory.
_MUCH_ATTENTION = 2048
#: Bytes of weights up to which one thread is quicker than several, which wait for each other.
_WORTH_THREADS = 4 << 20
#: Bytes of weights up to which batches are computed side by side, and how many at most.
_SIDE_BY_SIDE, _MOST_COMPUTERS = 1 << 30, 8
_F32 = 0
_NON_CAUSAL = 1


@dataclass(frozen=True)
class Setup:
    """How the contexts are made.

    Attributes:
        params: what they have in common with the context that generates; ``n_ctx`` is the longest
            input, 0 for what the model was trained with, and ``n_ubatch`` the tokens of a batch.
        adapters: LoRA adapters to apply, each with its scale.
    """

    params: ContextParams
    adapters: tuple[tuple[LoraAdapter, float], ...] = ()


def check_embeds(model: Model) -> None:
    """Raise ``ParameterError`` for a model that has no embeddings of a text."""
    kind = "an encoder and a decoder" if model.has_encoder and not model.is_encoder else ""
    kind = "a diffusion model" if model.is_diffusion else kind
    if kind:
        raise ParameterError.about_model(
            model.path,
            f"is {kind} ({model.architecture}), which gives no embeddings; load an encoder (BERT, "
            "a T5 encoder) or a decoder",
        )


def longest_input(model: Model, params: ContextParams) -> int:
    """Tokens of the longest input that can be embedded.

    Raises:
        ParameterError: ``n_ctx`` is more than the model has positions for.
    """
    trained = max(1, model.n_ctx_train)
    if model.architecture in _LEARNED_POSITIONS and params.n_ctx > trained:
        raise ParameterError(
            f"n_ctx={params.n_ctx} is more than the {trained} positions that this model knows"
        )
    if params.n_ctx:
        return params.n_ctx
    return trained if model.is_encoder else default_n_ctx(model, params)


def threads_and_computers(model: Model, params: ContextParams) -> tuple[int, int]:
    """Threads to compute with on the CPU, and computers among which to divide them.

    Threads of one batch wait for each other after each of its hundreds of operations, those of
    several batches do not. What a large model needs for one of them is too much for many, and its
    operations take longer.
    """
    threads = params.n_threads_batch or params.n_threads
    if threads is None:
        threads = _usual_threads(model)
    alone = on_gpu(model) or not model.is_encoder or model.size_bytes > _SIDE_BY_SIDE
    return threads, 1 if alone else min(threads, _MOST_COMPUTERS)


def _usual_threads(model: Model) -> int:
    return usable_cores() if model.size_bytes > _WORTH_THREADS else 1


def on_gpu(model: Model) -> bool:
    """Whether it is a GPU that computes."""
    return bool(model.devices)


class Computer:
    """Computes batches of embeddings. It is used by one thread at a time.

    Args:
        share: of the cores; computers with the same one compute at once.

    Attributes:
        threads: those to compute the next batch with; None: as the model's parameters say.
    """

    def __init__(self, model: Model, setup: Setup, share: Share | None = None) -> None:
        self._model = model
        self._setup = setup
        self._share = share or Share()
        self.threads: int | None = None
        self._contexts: dict[bool, Context] = {}
        few = model.is_recurrent or model.is_hybrid
        self.most_inputs = _MOST_RECURRENT if few else _MOST_INPUTS
        self._in_f32 = model.metadata.get("general.file_type", "0") == "0"
        #: Whether a long input may be computed piece by piece.
        self._in_pieces = model.is_causal and setup.params.attention_type != _NON_CAUSAL

    def rows(self, inputs: Sequence[Input]) -> list[Rows]:
        """The vectors of the tokens of each input, float32 ``(n_tokens, n_embd_out)``.

        Raises:
            DecodeError: llama.cpp could not compute them.
            ContextCreationError: there is too little memory.
        """
        context = self._context(inputs, ranks=False)
        texts = [each for each in inputs if not isinstance(each, MediaInput)]
        found: list[Rows] = []
        if len(texts) == 1 and len(texts[0]) > context.n_ubatch:
            found = [self._piece_by_piece(context, texts)]
        elif texts:
            self._run(context, texts)
            ends = np.cumsum([len(each) for each in texts])
            found = np.split(context.embeddings(int(ends[-1])), ends[:-1])
        of_texts = iter(found)
        return [
            self._piece_by_piece(context, each.pieces)
            if isinstance(each, MediaInput)
            else next(of_texts)
            for each in inputs
        ]

    def scores(self, inputs: Sequence[Input]) -> list[Rows]:
        """The outputs of the classification head for each input: float32 ``(n_labels,)``.

        None of them has pictures.
        """
        context = self._context(inputs, ranks=True)
        self._run(context, [each for each in inputs if not isinstance(each, MediaInput)])
        width = self._model.n_labels
        return [context.pooled(seq, width) for seq in range(len(inputs))]

    def abort(self) -> None:
        """End the batch that is being computed, and the next one. Any thread may say so."""
        for context in [*self._contexts.values()]:
            context.abort.ask()

    def close(self) -> None:
        """Free the contexts."""
        while self._contexts:
            self._contexts.popitem()[1].close()

    # -- running ----------------------------------------------------------------------------------

    def _run(self, context: Context, inputs: Sequence[Tokens]) -> None:
        context.clear(data=False)
        batch = Batch(sum(map(len, inputs)))
        for seq, tokens in enumerate(inputs):
            batch.add(tokens, 0, seq, True)
        self._decode(context, batch)

    def _piece_by_piece(self, context: Context, pieces: Sequence[Tokens | VectorPiece]) -> Rows:
        context.clear(data=False)
        found: list[Rows] = []
        place = 0
        for piece in pieces:
            if isinstance(piece, VectorPiece):
                found += self._rows_of_vectors(context, piece, place)
                place += piece.cells.positions
                continue
            for start in range(0, len(piece), context.n_ubatch):
                tokens = piece[start : start + context.n_ubatch]
                batch = Batch(len(tokens))
                batch.add(tokens, place + start, 0, True)
                self._decode(context, batch)
                found.append(context.embeddings(len(tokens)))
            place += len(piece)
        return np.concatenate(found)

    def _rows_of_vectors(self, context: Context, piece: VectorPiece, place: int) -> Iterator[Rows]:
        places = piece.cells.placed(place)
        for start in range(0, len(piece.rows), context.n_batch):
            part = slice(start, start + context.n_batch)
            vectors = piece.rows[part]
            with context.in_use():
                code = context.decode_vectors(
                    vectors, places[:, part], 0, output=True, causal=piece.cells.causal
                )
                if code == 0:
                    context.synchronize()
            _check(code, len(vectors))
            yield context.embeddings(len(vectors))

    def _decode(self, context: Context, batch: Batch) -> None:
        with context.in_use():  # another thread may close the model meanwhile
            encodes = self._model.has_encoder
            code = context.encode(batch) if encodes else context.decode(batch)
            if code == 0:
                context.synchronize()
        _check(code, len(batch))

    # -- contexts ---------------------------------------------------------------------------------

    def _context(self, inputs: Sequence[Input], *, ranks: bool) -> Context:
        """A context that takes these inputs at once, or a single one piece by piece."""
        context = self._contexts.get(ranks)
        needed = sum(map(len, inputs))
        if context is None or needed > context.n_ctx:
            if context is not None:
                del self._contexts[ranks]
                context.close()  # before the next one is made: there may be no room for both
            context = Context(self._model, self._params(needed, ranks))
            context.share = self._share
            if self._setup.adapters:
                context.set_adapters([*self._setup.adapters])
            self._contexts[ranks] = context
        threads = self.threads
        if threads is not None and threads != context.n_threads_batch:
            context.set_threads(threads, threads)
        return context

    def _params(self, needed: int, ranks: bool) -> ContextParams:
        params = self._setup.params
        size = max(params.n_ubatch, 256, 1 << (needed - 1).bit_length())
        at_once = params.n_ubatch if self._in_pieces and not ranks else size
        flash = params.flash_attn
        exact = not on_gpu(self._model) and not flash
        if flash is None and exact:
            # On a CPU flash attention rounds to F16, as weights do that are not in F32.
            exact = self._in_f32 and size <= _MUCH_ATTENTION
            flash = False if exact else None
        threads = self.threads or params.n_threads or _usual_threads(self._model)
        return replace(
            params,
            n_ctx=size,
            n_batch=at_once,
            n_ubatch=at_once,
            n_seq_max=min(self.most_inputs, at_once),
            n_threads=threads,
            n_threads_batch=self.threads or params.n_threads_batch or threads,
            pooling_type=POOLINGS["rank" if ranks else "none"],
            embeddings=True,
            flash_attn=flash,
            type_k=_F32 if exact and params.type_k is None else params.type_k,
            type_v=_F32 if exact and params.type_v is None else params.type_v,
        )


def _check(code: int, count: int) -> None:
    """Raise unless a batch was computed."""
    if code != 0:
        raise DecodeError(
            f"llama.cpp could not embed a batch of {count} tokens (code {code}); the next call "
            "works",
            code,
        )
