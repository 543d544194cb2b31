"""``Projector``: libmtmd's encoder of pictures and sounds for one model (an ``mmproj`` file).

A picture becomes *chunks*: stretches of text tokens that open, close and separate, and
stretches of *cells*, for each of which the encoder computes a vector of the model's width. Large
pictures have several of the latter.

Splitting may be called from any thread. Encoding is one at a time, behind a lock: it has its own
graph and its own buffers, and takes no turn of a context.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py._native import llama_h
from llama_py._native import mtmd_h as M
from llama_py.core import logs
from llama_py.core.handle import Handle
from llama_py.core.model import Model, ModelFiles
from llama_py.core.trial_load import rehearse
from llama_py.errors import InvalidModelError, MediaError, ParameterError
from llama_py.gguf.check import naming, read_gguf
from llama_py.gguf.reader import GGUFHeader

__all__ = ["Cells", "Chunks", "Projector"]

_TRIAL = "llama_py.core.projector_trial"
#: Types of which a picture is another one in another place of the prompt: padded, or numbered.
_PLACED = frozenset({"deepseek4v", "hunyuanvl"})
#: A sound of fewer samples makes libmtmd end the process.
_FEWEST_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class Cells:
    """A stretch of cells for which there are vectors.

    Attributes:
        index: the chunk's number among those of its picture or sound.
        count: cells.
        positions: positions that they take together.
        flat: all of them have the position of the first one (pictures with M-RoPE).
        causal: each sees only those before it; else all see all others, within one micro-batch.
        grid: int32 ``(p, count)``, their positions if the first one is 0, one row (or with M-RoPE
            four: time, row, column, and one that is not used).
        moves: int32 ``(p, count)``, 1 where that moves with the position of the first.
    """

    index: int
    count: int
    positions: int
    flat: bool
    causal: bool
    grid: NDArray[np.int32] = field(repr=False)
    moves: NDArray[np.int32] = field(repr=False)

    def placed(self, start: int) -> NDArray[np.int32]:
        """Their positions, int32 ``(p, count)``, if the first one is ``start``."""
        return np.ascontiguousarray(self.grid + start * self.moves)


class Chunks(Handle[M.mtmd_input_chunks_p]):
    """An encoded picture or sound.

    Attributes:
        digest: of the pixels or samples, in whatever format they came.
        parts: in order, lists of text tokens, and ``Cells``.
        decoded_bytes: of the pixels or samples.
        nbytes: of memory that they take, at most.
    """

    def __init__(
        self, pointer: M.mtmd_input_chunks_p, projector: Projector, data: NDArray[Any]
    ) -> None:
        super().__init__(pointer, M.mtmd_input_chunks_free, projector)
        sound = data.ndim == 1
        found = hashlib.sha256(repr((sound, len(data) if sound else data.shape[1])).encode())
        found.update(data.data)
        self.digest = found.digest()
        self.decoded_bytes = data.nbytes
        self.parts = [
            projector.describe(M.mtmd_input_chunks_get(pointer, index), index)
            for index in range(M.mtmd_input_chunks_size(pointer))
        ]
        cells = [part.count for part in self.parts if isinstance(part, Cells)]
        self.nbytes = data.nbytes if sound else sum(map(projector.prepared_bytes, cells))


class Projector(Handle[M.mtmd_context_p]):
    """An encoder that was loaded for ``model``.

    Attributes:
        path: the file.
        sees, hears: what it can encode.
        sample_rate: samples per second of the sounds it wants, 0 if it hears nothing.
        fingerprint: identifies its weights and settings.

    Args:
        use_gpu: compute on a GPU, if there is one.
        n_threads: of the CPU.
        rehearsed: it was tried in a process of its own (``trial_load``); else it is now.
        image_min_tokens, image_max_tokens: cells of a picture, for encoders of pictures of any
            size; None: what the file says.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it is not a projector
            for this model; libmtmd's reason is in the message.
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        *,
        use_gpu: bool = True,
        n_threads: int = 4,
        image_min_tokens: int | None = None,
        image_max_tokens: int | None = None,
        rehearsed: bool = False,
    ) -> None:
        self.model = model
        self.path = Path(path)
        logs.install_for_media()
        with naming(self.path, "projector"):
            header = read_gguf(self.path)
        files = _files(self.path, header)
        if not rehearsed:
            known_by = f"{files.digest} {model.fingerprint}"
            arguments = (os.fspath(model.path), os.fspath(self.path))
            rehearse(_TRIAL, arguments, known_by, f"the projector {path}")
        side, patch = (
            header.scalars.get(f"clip.vision.{each}_size") for each in ("image", "patch")
        )
        self._side, self._patch = int(side or 0), int(patch or 0)
        params = M.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, n_threads
        params.print_timings = params.warmup = False
        params.flash_attn_type = llama_h.LLAMA_FLASH_ATTN_TYPE_AUTO
        params.image_min_tokens = -1 if image_min_tokens is None else image_min_tokens
        params.image_max_tokens = -1 if image_max_tokens is None else image_max_tokens
        with logs.ErrorLines() as lines, model.in_use() as parent:
            pointer = M.mtmd_init_from_file(os.fsencode(self.path), parent, params)
            if not pointer:
                raise InvalidModelError(
                    f"libmtmd cannot load the projector {path} for {model.path}: {lines}"
                )
            super().__init__(pointer, M.mtmd_free, model)
        try:
            files.check()
            limits = f"{image_min_tokens} {image_max_tokens}"
            self.fingerprint = hashlib.sha256(f"{files.digest} {limits}".encode()).hexdigest()
            self.sees = bool(M.mtmd_support_vision(pointer))
            self.hears = bool(M.mtmd_support_audio(pointer))
            self.sample_rate = max(0, int(M.mtmd_get_audio_sample_rate(pointer)))
            self._mrope = bool(M.mtmd_decode_use_mrope(pointer))
            self._width = int(llama_h.llama_model_n_embd_inp(model.pointer))
            self._encoding = threading.Lock()
        except BaseException:
            self.close()
            raise

    # -- pictures and sounds --------------------------------------------------------------------

    def check_kind(self, sound: bool, where: str) -> None:
        """Raise ``ParameterError`` unless this can encode a sound, or a picture."""
        if not (self.hears if sound else self.sees):
            kind, does = ("sound", "sees") if sound else ("picture", "hears")
            raise ParameterError(
                f"{where} is a {kind}, and the projector {self.path.name} {does} only"
            )

    def split_pixels(self, pixels: NDArray[np.uint8], where: str) -> Chunks:
        """The chunks of a picture, uint8 ``(height, width, 3)``, red, green and blue.

        Raises:
            MediaError, ParameterError: it cannot be used.
        """
        self.check_kind(False, where)
        height, width, _ = pixels.shape
        data = np.ascontiguousarray(pixels)
        address = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return self._tokenized(M.mtmd_bitmap_init(width, height, address), data, where)

    def split_samples(self, samples: NDArray[np.float32], where: str) -> Chunks:
        """The chunks of a sound, float32 ``(n,)``, mono, at ``sample_rate``.

        Raises:
            MediaError, ParameterError: it cannot be used.
        """
        self.check_kind(True, where)
        if len(samples) < _FEWEST_SAMPLES:
            raise MediaError(
                f"{where} has {len(samples)} samples at {self.sample_rate} Hz; at least "
                f"{_FEWEST_SAMPLES} are needed"
            )
        if not np.isfinite(samples).all():
            raise MediaError(f"{where} has samples that are not numbers")
        data = np.ascontiguousarray(samples, np.float32)
        address = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return self._tokenized(M.mtmd_bitmap_init_from_audio(len(data), address), data, where)

    def prepared_bytes(self, cells: int) -> int:
        """Of the pixels that become a stretch of cells, as floats: a bound."""
        return 12 * max(self._side**2, cells * (4 * self._patch) ** 2)

    def _tokenized(self, bitmap: M.mtmd_bitmap_p | None, data: NDArray[Any], where: str) -> Chunks:
        if not bitmap:
            raise MediaError(f"{where} cannot be used: there is too little memory for it")
        try:
            part = M.mtmd_input_part(None, bitmap)
            parts = (ctypes.POINTER(M.mtmd_input_part) * 1)(ctypes.pointer(part))
            chunks = M.mtmd_input_chunks_init()
            with logs.ErrorLines() as reasons:
                code = M.mtmd_tokenize_from_parts(self.pointer, chunks, parts, 1, False)
            if code != 0:
                M.mtmd_input_chunks_free(chunks)
                raise MediaError(f"{where} cannot be used: {str(reasons) or code}")
            return Chunks(chunks, self, data)
        finally:
            M.mtmd_bitmap_free(bitmap)

    # -- chunks ---------------------------------------------------------------------------------

    def describe(self, chunk: Any, index: int) -> list[int] | Cells:
        """The tokens of a chunk, or its cells."""
        kind = M.mtmd_input_chunk_get_type(chunk)
        if kind == M.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = ctypes.c_size_t()
            tokens = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.pointer(count))
            found = [int(tokens[place]) for place in range(count.value)]
            if min(found, default=0) < 0:
                raise InvalidModelError(
                    f"{self.model.path} lacks tokens that the projector {self.path} puts around "
                    "pictures: they do not belong together"
                )
            return found
        grid, moves = self._grid(chunk, kind)
        return Cells(
            index,
            grid.shape[1],
            int(M.mtmd_input_chunk_get_n_pos(chunk)),
            len(grid) > 1 and grid.shape[1] > 1 and not grid[0].any(),
            not M.mtmd_decode_use_non_causal(self.pointer, chunk),
            grid,
            moves,
        )

    def _grid(self, chunk: Any, kind: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        count = int(M.mtmd_input_chunk_get_n_tokens(chunk))
        if not self._mrope or kind != M.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            rows = 4 if self._mrope else 1
            row = np.arange(count, dtype=np.int32)
            return np.tile(row, (rows, 1)), np.ones((rows, count), np.int32)
        image = M.mtmd_input_chunk_get_tokens_image(chunk)
        at0, at1 = (np.zeros((count, 4), np.int32) for _ in range(2))
        for start, places in ((0, at0), (1, at1)):
            room = (M.mtmd_decoder_pos * count)()
            M.mtmd_helper_image_get_decoder_pos(image, start, room)
            for place, each in enumerate(room):
                places[place] = (each.t, each.y, each.x, each.z)
        return np.ascontiguousarray(at0.T), np.ascontiguousarray((at1 - at0).T)

    def encode(self, chunks: Chunks, index: int) -> NDArray[np.float32]:
        """The vectors of the cells of a chunk, float32 ``(count, n_embd_inp)``: a copy.

        Raises:
            MediaError: the encoder failed, or made no finite numbers.
        """
        with self._encoding, self.in_use() as pointer, chunks.in_use() as parts:
            chunk = M.mtmd_input_chunks_get(parts, index)
            with logs.ErrorLines() as lines:
                code = M.mtmd_encode_chunk(pointer, chunk)
            if code != 0:
                raise MediaError(f"a picture or sound could not be encoded: {str(lines) or code}")
            rows = np.empty((int(M.mtmd_input_chunk_get_n_tokens(chunk)), self._width), np.float32)
            ctypes.memmove(rows.ctypes.data, M.mtmd_get_output_embd(pointer), rows.nbytes)
        if not np.isfinite(rows).all():
            raise MediaError(
                f"the projector {self.path.name} made vectors that are NaN or infinite: its file "
                "may be damaged, or made for another model"
            )
        return rows


def _files(path: Path, header: GGUFHeader) -> ModelFiles:
    """The file, by which its weights are identified.

    Raises:
        InvalidModelError: it is not a GGUF file, or not one of a projector.
    """
    kind = header.scalars.get("general.architecture")
    if kind != "clip":
        raise InvalidModelError(
            f"{path} is not a projector: its architecture is {kind!r}, and theirs is 'clip'; a "
            "projector's file is usually called mmproj-....gguf"
        )
    projector = {header.scalars.get(f"clip.{kind}projector_type") for kind in ("", "vision.")}
    if projector & _PLACED:
        raise InvalidModelError(
            f"{path} is a projector of the type {', '.join(map(str, projector & _PLACED))}, whose "
            "pictures depend on what stands before them in the prompt; that is not supported"
        )
    starts = (header.data_offset + tensor.offset for tensor in header.tensors)
    return ModelFiles({path: (header.data_offset, *starts)})
