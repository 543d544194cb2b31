"""The oracle of tests with media: the helper of libmtmd evaluates a prompt from its beginning.

A prompt is a list of parts: texts, pictures (uint8 ``(height, width, 3)``) and sounds (float32
``(samples,)``, of one channel, at the projector's rate). The helper splits it into chunks, encodes
the media among them and decodes all, into a memory that holds nothing else.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from llama_py._native import llama_h as C
from llama_py._native import mtmd_h as M
from llama_py.core import logs
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams
from tests.media.pictures import Picture, Sound

__all__ = ["Chunk", "MediaOracle", "Part", "Row", "helper_chunks", "helper_logits"]

Part = str | Picture | Sound
Row = npt.NDArray[np.float32]

_KINDS = {
    M.MTMD_INPUT_CHUNK_TYPE_TEXT: "text",
    M.MTMD_INPUT_CHUNK_TYPE_IMAGE: "image",
    M.MTMD_INPUT_CHUNK_TYPE_AUDIO: "audio",
}
_FLASH_ATTN = {
    None: C.LLAMA_FLASH_ATTN_TYPE_AUTO,
    False: C.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    True: C.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


class Chunk(NamedTuple):
    """What libmtmd made of a part of a prompt, or of what it wrote around one.

    Attributes:
        kind: text, image or audio.
        n_tokens: cells that it takes.
        n_pos: positions that it takes.
        tokens: the ids of a text; empty for media.
        positions: of each token of an image, from the chunk's first one: (t, x, y).
        non_causal: whether its tokens see each other, and not only those before them.
        id: of media: the SHA-256 of its pixels or samples, for all chunks of a part.
    """

    kind: str
    n_tokens: int
    n_pos: int
    tokens: tuple[int, ...]
    positions: tuple[tuple[int, int, int], ...]
    non_causal: bool
    id: str


def helper_logits(
    model_path: Path | str,
    mmproj_path: Path | str,
    parts: Sequence[Part],
    *,
    after: Sequence[int] = (),
    **settings: Any,
) -> Row:
    """Return the next token's logits after a prompt, float32 ``(n_vocab,)``, from a new context.

    Args:
        after: tokens that follow the prompt.
        settings: see ``MediaOracle``.
    """
    with MediaOracle(model_path, mmproj_path, **settings) as oracle:
        return oracle.logits(parts, after)


def helper_chunks(
    model_path: Path | str, mmproj_path: Path | str, parts: Sequence[Part], **settings: Any
) -> list[Chunk]:
    """Return the chunks of a prompt. ``settings``: see ``MediaOracle``."""
    with MediaOracle(model_path, mmproj_path, **settings) as oracle:
        return oracle.chunks(parts)


class MediaOracle:
    """Evaluates prompts, each in an empty memory, with one thread.

    By default flash attention is off and the cells are in F32, as in ``tests.memory.oracle``.

    Args:
        flash_attn: for the text model.
        encoder_flash_attn: for the encoder; None lets libmtmd decide.
        parse_special: whether texts may hold special tokens.
        add_special: whether libmtmd adds the tokens with which the model's prompts begin and end.
        embeds: the context gives vectors, of which ``last_vector`` returns one.
        limits: fields of ``mtmd_context_params``, such as ``image_max_tokens``.
    """

    def __init__(
        self,
        model_path: Path | str,
        mmproj_path: Path | str,
        *,
        n_ctx: int = 1024,
        n_batch: int = 512,
        n_ubatch: int = 512,
        flash_attn: bool = False,
        encoder_flash_attn: bool | None = None,
        type_k: int | None = 0,
        type_v: int | None = 0,
        swa_full: bool = True,
        parse_special: bool = True,
        add_special: bool = False,
        embeds: bool = False,
        **limits: int,
    ) -> None:
        self.parse_special, self.add_special = parse_special, add_special
        self.model = Model(model_path)
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=1,
            n_threads=1,
            flash_attn=flash_attn,
            swa_full=swa_full,
            type_k=type_k,
            type_v=type_v,
            embeddings=embeds,
            pooling_type=C.LLAMA_POOLING_TYPE_LAST if embeds else C.LLAMA_POOLING_TYPE_UNSPECIFIED,
        )
        self._media: M.mtmd_context_p | None = None
        try:
            self.context = Context(self.model, params)
            self._media = _open(self.model, Path(mmproj_path), encoder_flash_attn, limits)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the projector, the context and the model."""
        if self._media is not None:
            M.mtmd_free(self._media)
            self._media = None
        self.model.close()

    @property
    def media(self) -> M.mtmd_context_p:
        """The C pointer of the projector."""
        assert self._media is not None
        return self._media

    def logits(self, parts: Sequence[Part], after: Sequence[int] = ()) -> Row:
        """Return the next token's logits after a prompt and the tokens that follow it: a copy.

        The helper wants none behind media, so a prompt must end with text (that which libmtmd
        writes around media is enough), or with tokens that follow it.
        """
        position = self._evaluate(parts)
        return self.decode(after, position) if after else self._last()

    def last_vector(self, parts: Sequence[Part]) -> Row:
        """Return the vector of the last token of a prompt, float32 ``(n_embd,)``."""
        self._evaluate(parts)
        return self.context.pooled(0, self.model.n_embd_out)

    def greedy(self, parts: Sequence[Part], count: int) -> tuple[list[int], Row]:
        """Return the ``count`` most likely tokens after a prompt, and the last one's logits."""
        position, row = self._evaluate(parts), self._last()
        found = [int(row.argmax())]
        while len(found) < count:
            row = self.decode(found[-1:], position + len(found) - 1)
            found.append(int(row.argmax()))
        return found, row

    def decode(self, tokens: Sequence[int], position: int) -> Row:
        """Decode tokens behind what is in the memory; return the logits after them: a copy."""
        batch = Batch(len(tokens))
        outputs = np.zeros(len(tokens), np.int8)
        outputs[-1] = 1
        batch.set([*tokens], position, 0, outputs)
        assert self.context.decode(batch) == 0
        return self._last()

    def _last(self) -> Row:
        row: Row = self.context.logits(-1).copy()
        return row

    def chunks(self, parts: Sequence[Part]) -> list[Chunk]:
        """Return what libmtmd makes of a prompt."""
        with self._tokenized(parts) as chunks:
            return [self._describe(chunk) for chunk in _each(chunks)]

    def embeddings(self, parts: Sequence[Part]) -> list[npt.NDArray[np.float32]]:
        """Return what the encoder makes of each chunk of media, ``(n_tokens, n_embd)``."""
        width = int(C.llama_model_n_embd_inp(self.model.pointer))
        found = []
        with self._tokenized(parts) as chunks:
            for chunk in _each(chunks):
                if M.mtmd_input_chunk_get_type(chunk) != M.MTMD_INPUT_CHUNK_TYPE_TEXT:
                    assert M.mtmd_encode_chunk(self.media, chunk) == 0
                    shape = (int(M.mtmd_input_chunk_get_n_tokens(chunk)), width)
                    rows = M.mtmd_get_output_embd(self.media)
                    found.append(np.ctypeslib.as_array(rows, shape).copy())
        return found

    def _evaluate(self, parts: Sequence[Part]) -> int:
        """Decode a prompt into the empty memory; return the position behind it."""
        self.context.clear()
        position = ctypes.c_int32(0)
        with self._tokenized(parts) as chunks, logs.ErrorLines() as lines:
            code = M.mtmd_helper_eval_chunks(
                self.media,
                self.context.pointer,
                chunks,
                0,
                0,
                self.context.n_batch,
                True,
                ctypes.byref(position),
            )
        assert code == 0, f"{code}: {lines}"
        return position.value

    @contextmanager
    def _tokenized(self, parts: Sequence[Part]) -> Iterator[M.mtmd_input_chunks_p]:
        with ExitStack() as stack, logs.ErrorLines() as lines:
            chunks = M.mtmd_input_chunks_init()
            stack.callback(M.mtmd_input_chunks_free, chunks)
            inputs = [ctypes.pointer(self._input(part, stack)) for part in parts]
            array = (ctypes.POINTER(M.mtmd_input_part) * len(inputs))(*inputs)
            code = M.mtmd_tokenize_from_parts(
                self.media, chunks, array, len(inputs), self.add_special
            )
            assert code == 0, f"{code}: {lines}"
            yield chunks

    def _input(self, part: Part, stack: ExitStack) -> M.mtmd_input_part:
        if not isinstance(part, str):
            return M.mtmd_input_part(bitmap=_bitmap(part, stack))
        data = part.encode()
        text = M.mtmd_input_text(
            text=data, text_len=len(data), add_special=False, parse_special=self.parse_special
        )
        return M.mtmd_input_part(text=ctypes.pointer(text))

    def _describe(self, chunk: M.mtmd_input_chunk_p) -> Chunk:
        kind = _KINDS[M.mtmd_input_chunk_get_type(chunk)]
        return Chunk(
            kind,
            int(M.mtmd_input_chunk_get_n_tokens(chunk)),
            int(M.mtmd_input_chunk_get_n_pos(chunk)),
            _tokens(chunk),
            _positions(chunk) if kind == "image" else (),
            kind != "text" and bool(M.mtmd_decode_use_non_causal(self.media, chunk)),
            (M.mtmd_input_chunk_get_id(chunk) or b"").decode(),
        )


def _open(
    model: Model, path: Path, flash_attn: bool | None, limits: dict[str, int]
) -> M.mtmd_context_p:
    logs.install_for_media()
    params = M.mtmd_context_params_default()
    params.n_threads, params.print_timings, params.warmup = 1, False, False
    params.flash_attn_type = _FLASH_ATTN[flash_attn]
    for name, value in limits.items():
        setattr(params, name, value)
    with logs.ErrorLines() as lines:
        media = M.mtmd_init_from_file(str(path).encode(), model.pointer, params)
    assert media, f"{path}: {lines}"
    return media


def _bitmap(part: Picture | Sound, stack: ExitStack) -> M.mtmd_bitmap_p:
    """Copy a picture or a sound for libmtmd; without an id, all would look equal."""
    data = np.ascontiguousarray(part)
    if data.dtype == np.uint8:
        height, width, _ = data.shape
        bitmap = M.mtmd_bitmap_init(width, height, data.ctypes.data)
    else:
        assert data.dtype == np.float32
        bitmap = M.mtmd_bitmap_init_from_audio(len(data), data.ctypes.data)
    stack.callback(M.mtmd_bitmap_free, bitmap)
    M.mtmd_bitmap_set_id(bitmap, hashlib.sha256(data.tobytes()).hexdigest().encode())
    return bitmap


def _each(chunks: M.mtmd_input_chunks_p) -> Iterator[M.mtmd_input_chunk_p]:
    for index in range(M.mtmd_input_chunks_size(chunks)):
        yield M.mtmd_input_chunks_get(chunks, index)


def _tokens(chunk: M.mtmd_input_chunk_p) -> tuple[int, ...]:
    count = ctypes.c_size_t()
    tokens = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return tuple(int(tokens[index]) for index in range(count.value))


def _positions(chunk: M.mtmd_input_chunk_p) -> tuple[tuple[int, int, int], ...]:
    image = M.mtmd_input_chunk_get_tokens_image(chunk)
    found = (
        M.mtmd_image_tokens_get_decoder_pos(image, 0, index)
        for index in range(M.mtmd_input_chunk_get_n_tokens(chunk))
    )
    return tuple((place.t, place.x, place.y) for place in found)
