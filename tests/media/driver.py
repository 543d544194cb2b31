"""The operations of ``tests.memory.driver`` with pictures and sounds in the messages.

The oracle evaluates words as ever, and pictures by libmtmd's own helper, in a context of its own:
its vectors, its positions, its order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llama_py import Image, Llama
from llama_py._native import mtmd_h as M
from llama_py.core import logs
from llama_py.core.projector import Chunks, Projector
from llama_py.memory.positions import media_length
from tests.media import pictures
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.memory.driver import N_CTX, Driver, text_of
from tests.memory.oracle import Oracle, Row

__all__ = ["MediaDriver", "PictureOracle"]

#: Words of ``tests.memory.driver`` that are pictures here.
PICTURES = {6: pictures.disc(), 7: pictures.stripes(), 9: pictures.gradient(70, 42)}


class PictureOracle(Oracle):
    """See the module.

    Attributes:
        chunks: what libmtmd makes of each picture, and the number of a chunk, by the ids that stand
            for its cells.
    """

    def __init__(self, path: Path, projector: Path, *, n_ctx: int, flash_attn: bool) -> None:
        super().__init__(path, n_ctx=n_ctx, flash_attn=flash_attn)
        self.projector = Projector(self.model, projector, n_threads=1)
        self.chunks: dict[bytes, tuple[Chunks, int]] = {}

    def learn(self, llm: Llama) -> None:
        """Ask which ids stand for which pictures."""
        media = llm.runtime.loaded.media
        assert media is not None
        for picture in PICTURES.values():
            medium = media.encoder.read(Image(picture).data, "a picture")
            own = self.projector.split_pixels(picture, "a picture")
            for key, stretch in medium.stretches.items():
                self.chunks[key] = (own, stretch.cells.index)

    def _evaluate(self, tokens: Sequence[int], runs: Sequence[Sequence[int]] | None) -> Row:
        self.context.clear()
        self.position = 0
        for part in (part for run in runs or [tokens] for part in _parts(run)):
            if part[0] >= 0:
                self._decode(part, self.position)
                self.position += len(part)
                row = self.context.logits(len(part) - 1)
            else:
                self._show(np.array(part, np.int32).tobytes())
        assert tokens[-1] >= 0  # something was said behind the last picture
        return row

    def _show(self, key: bytes) -> None:
        chunks, index = self.chunks[key]
        behind = ctypes.c_int32(self.position)
        with logs.ErrorLines() as lines:
            code = M.mtmd_helper_eval_chunk_single(
                self.projector.pointer,
                self.context.pointer,
                M.mtmd_input_chunks_get(chunks.pointer, index),
                self.position,
                0,
                self.context.n_batch,
                False,
                ctypes.byref(behind),
            )
        assert code == 0, f"{code}: {lines}"
        self.position = behind.value

    def greedy(
        self, tokens: Sequence[int], count: int, runs: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], Row]:
        row = self._evaluate(tokens, runs)
        found = [int(row.argmax())]
        while len(found) < count:
            self._decode(found[-1:], self.position)
            self.position += 1
            row = self.context.logits(0)
            found.append(int(row.argmax()))
        return found, row.copy()


def _parts(run: Sequence[int]) -> Iterator[Sequence[int]]:
    """A run in words and pictures."""
    ids, at, begin = np.array(run, np.int32), 0, 0
    while at < len(run):
        if run[at] >= 0:
            at += 1
            continue
        if begin < at:
            yield run[begin:at]
        begin = at + media_length(ids, at)
        yield run[at:begin]
        at = begin
    if begin < len(run):
        yield run[begin:]


class MediaDriver(Driver):
    """See the module.

    Args:
        kind, projector: names of a tiny model and of a tiny projector.
        settings: those of ``Driver``.
    """

    def __init__(self, kind: str, projector: str, directory: Path, **settings: Any) -> None:
        self.projector = tiny_projector(projector)
        super().__init__(media_model(kind), directory, **settings)

    def make_oracle(self, flash_attn: bool) -> Oracle:
        return PictureOracle(self.path, self.projector, n_ctx=N_CTX, flash_attn=flash_attn)

    def load(self) -> Llama:
        self.options["mmproj"] = self.projector
        llm = super().load()
        assert isinstance(self.oracle, PictureOracle)
        self.oracle.learn(llm)
        return llm

    def say(self, words: Sequence[int]) -> Any:
        content: list[str | Mapping[str, Any] | Image] = []
        for word in words:
            content.append(Image(PICTURES[word]) if word in PICTURES else text_of([word]))
        return content
