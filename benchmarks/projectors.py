"""Projectors with random weights in a realistic shape, for benchmarks without downloads.

The encoder has the shape of SigLIP-base with patches of 16 pixels: 12 layers, 768 wide, for
pictures of 512 by 512, weights in F16. ``pooled`` averages 4 by 4 of its 1,024 patches (the type of
Gemma 3: 64 cells that see each other), ``patches`` takes each of them (the type of LLaVA: 1,024
cells).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import ParameterError

__all__ = ["PROJECTORS", "made_projector"]

PROJECTORS: Final = ("pooled", "patches")

_WIDTH, _LAYERS, _HEADS, _FEED_FORWARD = 768, 12, 12, 3072
_PATCH, _SIDE, _POOL = 16, 512, 4


def made_projector(kind: str, n_embd: int) -> Path:
    """The file of such a projector for models of this width, written the first time."""
    if kind not in PROJECTORS:
        raise ParameterError(f"a projector is one of {', '.join(PROJECTORS)}, not {kind}")
    path = cache_directory() / "bench-models" / f"mmproj-siglip-base-{kind}-{n_embd}-2.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        _Writer(part, kind, n_embd).write()
        part.replace(path)
    return path


class _Writer:
    def __init__(self, path: Path, kind: str, n_embd: int) -> None:
        import gguf

        self._out: Any = gguf.GGUFWriter(path, "clip")
        self._kind, self._n_embd = kind, n_embd
        self._random = np.random.default_rng(1)

    def write(self) -> None:
        out, key = self._out, "clip.vision"
        out.add_type("mmproj")
        out.add_file_type(1)
        out.add_bool("clip.has_vision_encoder", True)
        out.add_bool("clip.use_gelu", True)
        out.add_string("clip.projector_type", "gemma3" if self._kind == "pooled" else "mlp")
        for name, value in (
            ("embedding_length", _WIDTH),
            ("feed_forward_length", _FEED_FORWARD),
            ("block_count", _LAYERS),
            ("projection_dim", self._n_embd),
            ("attention.head_count", _HEADS),
            ("image_size", _SIDE),
            ("patch_size", _PATCH),
        ):
            out.add_uint32(f"{key}.{name}", value)
        out.add_float32(f"{key}.attention.layer_norm_epsilon", 1e-6)
        out.add_array(f"{key}.image_mean", [0.5, 0.5, 0.5])
        out.add_array(f"{key}.image_std", [0.5, 0.5, 0.5])
        self._encoder()
        self._pooled() if self._kind == "pooled" else self._patches()
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    def _encoder(self) -> None:
        self._add("v.patch_embd.weight", (_WIDTH, 3, _PATCH, _PATCH), _PATCH * 1.7, half=False)
        self._add("v.position_embd.weight", ((_SIDE // _PATCH) ** 2, _WIDTH), 2.0, half=False)
        for layer in range(_LAYERS):
            block = f"v.blk.{layer}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                self._matrix(f"{block}.{name}", _WIDTH, _WIDTH)
            self._matrix(f"{block}.ffn_up", _FEED_FORWARD, _WIDTH)
            self._matrix(f"{block}.ffn_down", _WIDTH, _FEED_FORWARD)
            self._norm(f"{block}.ln1")
            self._norm(f"{block}.ln2")
        self._norm("v.post_ln")

    def _pooled(self) -> None:
        self._out.add_uint32("clip.vision.projector.scale_factor", _POOL)
        self._norm("mm.soft_emb_norm", bias=False)
        self._add("mm.input_projection.weight", (_WIDTH, self._n_embd), np.sqrt(_WIDTH), half=False)

    def _patches(self) -> None:
        self._matrix("mm.0", _WIDTH, _WIDTH)
        self._matrix("mm.2", self._n_embd, _WIDTH)

    def _matrix(self, name: str, rows: int, columns: int) -> None:
        self._add(f"{name}.weight", (rows, columns), np.sqrt(columns))
        self._out.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))

    def _norm(self, name: str, *, bias: bool = True) -> None:
        self._out.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
        if bias:
            self._out.add_tensor(f"{name}.bias", np.zeros(_WIDTH, np.float32))

    def _add(self, name: str, shape: tuple[int, ...], divide: float, *, half: bool = True) -> None:
        data = self._random.standard_normal(shape, np.float32) / np.float32(divide)
        self._out.add_tensor(name, data.astype(np.float16) if half else data)
