"""Tiny projectors (mmproj files) with random weights, one for every way of showing media.

``tiny_projector("mlp")`` returns the path of a GGUF of well under 1 MB, which is made from a seed
when it is first asked for, and kept beside the tiny models. ``write_projector`` writes one
anywhere.

==============  ======================================================================
kind            what libmtmd makes of it
==============  ======================================================================
mlp             llava: a picture of any size becomes 16 tokens, nothing around them
gemma3          16 tokens that see each other (not causal), between two special tokens
qwen2vl_merger  a token for each 14 x 14 pixels (4 to 64), with positions in two
                dimensions, between two special tokens
gemma4ua        sounds: a token for each 40 ms, between two special tokens
mlp_tiles       llava 1.6: 16 tokens for the whole picture, and if it has more than 56
                pixels, for each of its two or four tiles: one chunk for each, with
                nothing between them
omni            pictures as with mlp, and sounds as with gemma4ua
==============  ======================================================================

Of the audio encoders that libmtmd knows, gemma4ua has the least to load: one matrix. All that are
like Whisper compute 1500 positions for the shortest sound, and those with a conformer need more
than twenty tensors for each layer.

The weights are scaled so that a picture or a sound is as loud as the embeddings of tokens in the
tiny models: a lost or wrong one changes the next logits. The encoders use SiLU, which is exact in
F32, while the GELU of ggml rounds to F16; that between the projector's matrices cannot be chosen.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.models import tiny_model

__all__ = ["AUDIO", "KINDS", "VISION", "tiny_projector", "write_projector"]

Array = npt.NDArray[np.float32]

#: The kinds of projectors that see pictures.
VISION: Final = ("mlp", "gemma3", "qwen2vl_merger", "mlp_tiles", "omni")
#: The kinds of projectors that hear sounds.
AUDIO: Final = ("gemma4ua", "omni")
KINDS: Final = ("mlp", "gemma3", "qwen2vl_merger", "gemma4ua", "mlp_tiles", "omni")

WIDTH: Final = 64
LAYERS: Final = 2
HEADS: Final = 4
#: Not WIDTH: libmtmd takes two square matrices of the feed-forward part for swapped ones.
FEED_FORWARD: Final = 96
#: Samples of one token of gemma4ua, at 16 kHz.
FRAME: Final = 640
#: What the embeddings of tokens in the tiny models are like (root mean square).
LOUDNESS: Final = 0.5

#: How libmtmd calls the part that sees, by kind.
_VISION_TYPES: Final = {
    "mlp": "mlp",
    "gemma3": "gemma3",
    "qwen2vl_merger": "qwen2vl_merger",
    "mlp_tiles": "mlp",
    "omni": "mlp",
}
#: Pixels of the side of a patch, which is 14 elsewhere. Both of these merge two by two patches.
_PATCH: Final = {"gemma3": 7, "qwen2vl_merger": 7}


def tiny_projector(kind: str, n_embd: int = 128, *, seed: int = 1, image_size: int = 56) -> Path:
    """Return the path of a projector of this kind; make it if it is not there."""
    source = Path(__file__).read_bytes()
    name = f"{kind}-{n_embd}-{seed}-{image_size}"
    digest = hashlib.sha256(source + name.encode()).hexdigest()[:12]
    path = tiny_model("full").parent / f"mmproj-{name}-{digest}.gguf"
    if not path.exists():
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        write_projector(Path(part), kind, n_embd, seed=seed, image_size=image_size)
        Path(part).replace(path)
    return path


def write_projector(
    path: Path | str, kind: str, n_embd: int, *, seed: int = 1, image_size: int = 56
) -> None:
    """Write a projector for text models whose embeddings have ``n_embd`` values.

    Args:
        kind: one of ``KINDS``.
        seed: of the weights.
        image_size: pixels of a side of what the encoder sees. With 56, a picture becomes 16 tokens,
            except with ``qwen2vl_merger``, where its own size counts.
    """
    if kind not in KINDS:
        raise ValueError(f"a projector is one of {', '.join(KINDS)}, not {kind}")
    _Writer(Path(path), kind, n_embd, seed, image_size).write()


class _Writer:
    """Writes one projector; a method for each part names its metadata and tensors."""

    def __init__(self, path: Path, kind: str, n_embd: int, seed: int, image_size: int) -> None:
        self.kind, self.n_embd, self.image_size = kind, n_embd, image_size
        self.vision_type = _VISION_TYPES.get(kind)
        self.patch = _PATCH.get(kind, 14)
        self.random = np.random.default_rng([seed, KINDS.index(kind)])
        self.gguf = gguf.GGUFWriter(path, "clip")

    def write(self) -> None:
        out = self.gguf
        out.add_type("mmproj")
        out.add_name(f"tiny {self.kind}")
        out.add_file_type(0)
        out.add_bool("clip.use_silu", True)
        if self.kind in VISION:
            self._vision()
        if self.kind in AUDIO:
            self._audio()
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    # metadata

    def _sizes(self, part: str, layers: int) -> None:
        out, key = self.gguf, f"clip.{part}"
        out.add_bool(f"clip.has_{part}_encoder", True)
        out.add_uint32(f"{key}.embedding_length", WIDTH)
        out.add_uint32(f"{key}.feed_forward_length", FEED_FORWARD)
        out.add_uint32(f"{key}.block_count", layers)
        out.add_uint32(f"{key}.projection_dim", self.n_embd)
        out.add_uint32(f"{key}.attention.head_count", HEADS)
        out.add_float32(f"{key}.attention.layer_norm_epsilon", 1e-5)

    def _picture_sizes(self) -> None:
        out = self.gguf
        out.add_uint32("clip.vision.image_size", self.image_size)
        out.add_uint32("clip.vision.patch_size", self.patch)
        out.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        out.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    # tensors

    def _add(self, name: str, shape: tuple[int, ...], scale: float) -> None:
        data = self.random.standard_normal(shape, dtype=np.float32)
        self.gguf.add_tensor(name, data * np.float32(scale))

    def _matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Add a matrix that maps inputs of unit variance to outputs of variance ``gain**2``."""
        self._add(f"{name}.weight", (rows, columns), gain / np.sqrt(columns))
        self._add(f"{name}.bias", (rows,), 0.1 * gain)

    def _norm(self, name: str, *, bias: bool = True) -> None:
        data = 1 + np.float32(0.1) * self.random.standard_normal(WIDTH, dtype=np.float32)
        self.gguf.add_tensor(f"{name}.weight", data)
        if bias:
            self._add(f"{name}.bias", (WIDTH,), 0.1)

    def _layer(self, block: str) -> None:
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            self._matrix(f"{block}.{name}", WIDTH, WIDTH)
        self._norm(f"{block}.ln1")
        self._norm(f"{block}.ln2")
        self._matrix(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        self._matrix(f"{block}.ffn_down", WIDTH, FEED_FORWARD)

    def _patches(self, name: str) -> None:
        inputs = 3 * self.patch**2
        self._add(name, (WIDTH, 3, self.patch, self.patch), 2 / np.sqrt(inputs))

    # the parts

    def _vision(self) -> None:
        key = "clip.vision.projector_type" if self.kind in AUDIO else "clip.projector_type"
        self.gguf.add_string(key, str(self.vision_type))
        self._sizes("vision", LAYERS)
        self._picture_sizes()
        self._patches("v.patch_embd.weight")
        for layer in range(LAYERS):
            self._layer(f"v.blk.{layer}")
        self._norm("v.post_ln")
        fill = {"gemma3": self._gemma3, "qwen2vl_merger": self._qwen2vl}
        fill.get(self.kind, self._mlp)()

    def _positions(self) -> None:
        count = (self.image_size // self.patch) ** 2
        self._add("v.position_embd.weight", (count, WIDTH), 0.5)

    def _mlp(self) -> None:
        self._positions()
        self._matrix("mm.0", WIDTH, WIDTH)
        self._matrix("mm.2", self.n_embd, WIDTH, gain=1.5 * LOUDNESS)
        if self.kind == "mlp_tiles":
            one, two = self.image_size, 2 * self.image_size
            self.gguf.add_array("clip.vision.image_grid_pinpoints", [one, two, two, one, two, two])

    def _gemma3(self) -> None:
        self._positions()
        self.gguf.add_uint32("clip.vision.projector.scale_factor", 2)
        self._norm("mm.soft_emb_norm", bias=False)
        # The only matrix that is stored the other way round.
        scale = LOUDNESS / np.sqrt(WIDTH)
        self._add("mm.input_projection.weight", (WIDTH, self.n_embd), scale)

    def _qwen2vl(self) -> None:
        token = (2 * self.patch) ** 2
        self.gguf.add_uint32("clip.vision.image_min_pixels", 4 * token)
        self.gguf.add_uint32("clip.vision.image_max_pixels", 64 * token)
        # A still picture is two equal frames.
        self._patches("v.patch_embd.weight.1")
        self._matrix("mm.0", WIDTH, 4 * WIDTH)
        self._matrix("mm.2", self.n_embd, WIDTH, gain=1.5 * LOUDNESS)

    def _audio(self) -> None:
        key = "clip.audio.projector_type" if self.kind in VISION else "clip.projector_type"
        self.gguf.add_string(key, "gemma4ua")
        self._sizes("audio", 0)
        self.gguf.add_uint32("clip.audio.num_mel_bins", FRAME)
        scale = LOUDNESS / np.sqrt(FRAME)
        self._add("mm.a.input_projection.weight", (self.n_embd, FRAME), scale)


def main() -> None:
    """Make all tiny projectors and print their paths."""
    for kind in KINDS:
        path = tiny_projector(kind)
        print(f"{path.stat().st_size:>9}  {path}")


if __name__ == "__main__":
    main()
