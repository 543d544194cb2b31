"""``ModelMedia``: pictures and sounds of a model's calls, and the projector that encodes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llama_py.core.model import Model
from llama_py.errors import LlamaError, MediaError, ParameterError
from llama_py.gguf.reader import read_header
from llama_py.media.limits import MediaLimits

# What only pictures and sounds need is imported with a projector: api/opening.py says why.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama_py.chat.conversation import AudioPart, ImagePart
    from llama_py.engine.media import MediaCells, MediaEncoder, Medium
    from llama_py.media.arrays import Source
    from llama_py.media.reading import MediaReading

__all__ = ["MediaReader", "ModelMedia", "find_projector"]


def find_projector(model_path: Path, width: int) -> Path | None:
    """The one projector for a model of this width in its folder; None if there is none, or several.

    They are called ``mmproj...gguf``, or have it in their names.
    """
    found = []
    for path in sorted(model_path.parent.glob("*mmproj*.gguf")):
        try:
            header = read_header(path)
        except (LlamaError, OSError):
            continue
        # What is said to be the projection's width is that of CLIP in some files.
        sizes = (tensor.shape for tensor in header.tensors if tensor.name.startswith("mm."))
        fits = any(width in shape for shape in sizes)
        if header.scalars.get("general.architecture") == "clip" and fits:
            found.append(path)
    return found[0] if len(found) == 1 else None


class MediaReader(Protocol):
    """What reads files for prompts and embeddings; a ``MediaEncoder``, wherever that is."""

    def read(self, source: Source, where: str) -> Medium:
        """A file or an array as a medium."""

    def vectors(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        """The vectors of a stretch."""


class ModelMedia:
    """See the module. Safe to use from several threads.

    Args:
        path: the projector's file; None: the model reads text only.
        limits: what may be read.
        n_ubatch: most cells that can see each other.
        n_threads: how many threads are to encode, asked when the projector is loaded.
        use_gpu: let it compute on a GPU.
        tokens: least and most cells of a picture, None for what the projector's file says.
        capacity_bytes: for what is kept of pictures and sounds.
        attach: called with the encoder when it was made.
    """

    def __init__(
        self,
        model: Model,
        path: Path | None,
        limits: MediaLimits,
        *,
        n_ubatch: int,
        n_threads: Callable[[], int],
        use_gpu: bool,
        tokens: tuple[int | None, int | None],
        capacity_bytes: int,
        attach: Callable[[MediaEncoder], None],
    ) -> None:
        self.limits = limits
        self.path = path
        self._model = model
        self._n_ubatch = n_ubatch
        self._n_threads = n_threads
        self._use_gpu = use_gpu
        self._tokens = tokens
        self._capacity = capacity_bytes
        self._attach = attach
        self._encoder: MediaEncoder | None = None
        self._lock = threading.Lock()

    @property
    def loaded(self) -> MediaEncoder | None:
        """The encoder, if it was needed before."""
        return self._encoder

    @property
    def encoder(self) -> MediaReader:
        """The encoder, which is loaded when it is asked for first.

        Raises:
            ParameterError: the model has no projector.
            ModelLoadError: it cannot be loaded.
        """
        with self._lock:
            if self._encoder is None:
                if self.path is None:
                    raise ParameterError(self._missing)
                from llama_py.core.projector import Projector
                from llama_py.engine.media import MediaEncoder

                least, most = self._tokens
                projector = Projector(
                    self._model,
                    self.path,
                    use_gpu=self._use_gpu,
                    n_threads=self._n_threads(),
                    image_min_tokens=least,
                    image_max_tokens=most,
                )
                self._encoder = MediaEncoder(
                    projector, self.limits, n_ubatch=self._n_ubatch, capacity_bytes=self._capacity
                )
                self._attach(self._encoder)
            return self._encoder

    @property
    def _missing(self) -> str:
        return (
            f"{self._model.path.name} was loaded without a projector, so it reads text only: "
            "pictures and sounds need mmproj=FILE, the mmproj-....gguf that belongs to the "
            "model (it is found by itself if it is the only one in the model's folder)"
        )

    def read(self, part: ImagePart | AudioPart, where: str, reading: MediaReading) -> Medium:
        """What the prompt gets in place of a part of a message.

        Args:
            reading: the request that it belongs to.

        Raises:
            ParameterError: there is no projector, or it has no encoder for this.
            MediaError: the file cannot be used, or may not be read.
        """
        if self.path is None:
            raise ParameterError(f"{where} is a picture or a sound, and {self._missing}")
        from llama_py.engine.media import digest_of
        from llama_py.media.sources import read_url

        encoder = self.encoder
        source = part.decoded or part.data or read_url(part.url, where, self.limits)
        if isinstance(source, bytes):
            self._check_file(source, part, where)
        name = digest_of(source)
        known: Medium | None = reading.known.get(name)
        if known is not None:
            return replace(known, where=where)
        medium = encoder.read(source, where)
        reading.add(name, medium, medium.decoded_bytes, where, self.limits)
        return medium

    def _check_file(self, data: bytes, part: ImagePart | AudioPart, where: str) -> None:
        from llama_py.chat.conversation import ImagePart
        from llama_py.media.files import look_at

        if len(data) > self.limits.most_bytes:
            raise MediaError(
                f"{where} has {len(data)} bytes; at most {self.limits.most_bytes} are allowed "
                "(max_media_bytes)"
            )
        found = look_at(data, where)
        wanted = "image" if isinstance(part, ImagePart) else "audio"
        if found.kind != wanted:
            name = "a picture" if wanted == "image" else "a sound"
            raise MediaError(f"{where} should be {name}, and the file is {found.media_type}")

    def close(self) -> None:
        """Free the projector."""
        if self._encoder is not None:
            self._encoder.close()
