"""Tiny encoders with random weights: what ``tests.models`` is for decoders.

=============  =====================================================================================
architecture   what it is about
=============  =====================================================================================
bert           learned positions, a norm behind each part, biases
nomic-bert     rotated positions, gated feed-forward network without biases
modern-bert    norms before each part, windows on both sides of a token in two layers of three
=============  =====================================================================================

``head`` adds a classification head with that many outputs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests import models

__all__ = ["CONTROL", "WORDS", "EncoderSpec", "encoder", "with_metadata"]

Array = npt.NDArray[np.float32]

CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(
    word
    for line in (
        "the a of and to in is cat dog bird sleeps sings barks tree house river runs jumps eats",
        "red blue green small big old new day night sun moon rain snow king queen bread water",
    )
    for word in line.split()
)


#: GELU comes out of a table of F16 numbers. What is left of a difference in rounding should be
#: smaller than the tolerance of tests.
_QUIET = 0.05


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """What an encoder looks like; all of it is part of the name of the cached file."""

    architecture: str = "bert"
    pooling: int | None = 1
    head: int = 0
    labels: tuple[str, ...] = ()
    n_layer: int = 3
    n_embd: int = 64
    n_head: int = 4
    n_ff: int = 96
    n_swa: int = 8
    n_positions: int = 512
    n_vocab: int = 0
    quant: str = "f32"
    seed: int = 11


def encoder(architecture: str = "bert", **changes: object) -> Path:
    """The path of a tiny encoder; it is made if it is not there."""
    spec = dataclasses.replace(EncoderSpec(architecture), **changes)  # type: ignore[arg-type]
    source = Path(__file__).read_bytes()
    name = hashlib.sha256(source + repr(spec).encode()).hexdigest()[:12]
    directory = models._default_cache()
    path = directory / f"tiny-{architecture}-{name}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=directory, suffix=".part")
        os.close(handle)
        _Writer(spec, Path(part)).write()
        Path(part).replace(path)
    return path


def with_metadata(path: Path, target: Path, **values: int) -> Path:
    """A copy of a model with further integers in its metadata (``"_"`` stands for ``"."``)."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    for name, value in values.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class _Writer:
    def __init__(self, spec: EncoderSpec, path: Path) -> None:
        self.spec = spec
        self.random = np.random.default_rng(spec.seed)
        self.gguf = gguf.GGUFWriter(path, spec.architecture)

    def write(self) -> None:
        self._metadata()
        self._vocabulary()
        modern = self.spec.architecture == "modern-bert"
        self._embeddings(modern)
        for layer in range(self.spec.n_layer):
            (self._modern_layer if modern else self._layer)(f"blk.{layer}")
        if modern:
            self._norm("output_norm", bias=False)
        if self.spec.head:
            self._head(modern)
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()

    def _metadata(self) -> None:
        spec, out = self.spec, self.gguf
        out.add_name(f"tiny {spec.architecture}")
        out.add_context_length(spec.n_positions)
        out.add_embedding_length(spec.n_embd)
        out.add_feed_forward_length(spec.n_ff)
        out.add_block_count(spec.n_layer)
        out.add_head_count(spec.n_head)
        out.add_layer_norm_eps(1e-5)
        out.add_causal_attention(False)
        if spec.pooling is not None:
            out.add_uint32(f"{spec.architecture}.pooling_type", spec.pooling)
        if spec.architecture != "bert":
            out.add_rope_freq_base(1000.0)
        if spec.architecture == "modern-bert":
            out.add_sliding_window(spec.n_swa)
            out.add_float32("modern-bert.rope.freq_base_swa", 100.0)
        if spec.labels:
            out.add_array(f"{spec.architecture}.classifier.output_labels", [*spec.labels])

    def _vocabulary(self) -> None:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
        tokens = [*CONTROL, *(f"▁{each}" for each in WORDS)]
        tokens += [each for letter in letters for each in (f"▁{letter}", letter)]
        tokens = [*dict.fromkeys(tokens)]
        tokens += [f"▁unused{index}" for index in range(self.spec.n_vocab - len(tokens))]
        self.n_vocab = len(tokens)
        types = [gguf.TokenType.CONTROL] * len(CONTROL)
        types[1] = gguf.TokenType.UNKNOWN
        types += [gguf.TokenType.NORMAL] * (len(tokens) - len(types))
        out = self.gguf
        out.add_tokenizer_model("bert")
        out.add_tokenizer_pre("default")
        out.add_token_list(tokens)
        out.add_token_types(types)
        out.add_token_type_count(2)
        for name, token in (("padding", 0), ("unknown", 1), ("bos", 2), ("seperator", 3)):
            out.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
        out.add_uint32("tokenizer.ggml.mask_token_id", 4)

    # tensors

    def _add(self, name: str, data: Array) -> None:
        if name == "token_types.weight" and self.spec.quant != "f16_types":
            self.gguf.add_tensor(name, data.astype(np.float32))
        elif self.spec.quant != "f32" and data.ndim > 1:
            self.gguf.add_tensor(name, data.astype(np.float16))
        else:
            self.gguf.add_tensor(name, data.astype(np.float32))

    def _values(self, *shape: int) -> Array:
        return self.random.standard_normal(shape, dtype=np.float32)

    def _matrix(self, name: str, rows: int, columns: int, *, bias: bool, gain: float = 1.0) -> None:
        self._add(f"{name}.weight", self._values(rows, columns) * np.float32(gain / columns**0.5))
        if bias:
            self._add(f"{name}.bias", self._values(rows) * np.float32(0.1))

    def _norm(self, name: str, *, bias: bool) -> None:
        self._add(f"{name}.weight", 1 + np.float32(0.1) * self._values(self.spec.n_embd))
        if bias:
            self._add(f"{name}.bias", np.float32(0.1) * self._values(self.spec.n_embd))

    def _embeddings(self, modern: bool) -> None:
        spec = self.spec
        self._add("token_embd.weight", self._values(self.n_vocab, spec.n_embd))
        if not modern:
            self._add("token_types.weight", self._values(2, spec.n_embd))
        if spec.architecture == "bert":
            self._add("position_embd.weight", self._values(spec.n_positions, spec.n_embd))
        self._norm("token_embd_norm", bias=not modern)

    def _layer(self, block: str) -> None:
        spec = self.spec
        plain = spec.architecture == "bert"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            gain = 2.0 if name in ("attn_q", "attn_k") else 1.0
            self._matrix(f"{block}.{name}", spec.n_embd, spec.n_embd, bias=plain, gain=gain)
        self._norm(f"{block}.attn_output_norm", bias=True)
        self._matrix(f"{block}.ffn_up", spec.n_ff, spec.n_embd, bias=plain)
        self._matrix(f"{block}.ffn_down", spec.n_embd, spec.n_ff, bias=plain, gain=_QUIET)
        if not plain:
            self._matrix(f"{block}.ffn_gate", spec.n_ff, spec.n_embd, bias=False)
        self._norm(f"{block}.layer_output_norm", bias=True)

    def _modern_layer(self, block: str) -> None:
        spec = self.spec
        if block != "blk.0":
            self._norm(f"{block}.attn_norm", bias=False)
        self._matrix(f"{block}.attn_qkv", 3 * spec.n_embd, spec.n_embd, bias=False, gain=1.5)
        self._matrix(f"{block}.attn_output", spec.n_embd, spec.n_embd, bias=False)
        self._norm(f"{block}.ffn_norm", bias=False)
        self._matrix(f"{block}.ffn_up", 2 * spec.n_ff, spec.n_embd, bias=False)
        self._matrix(f"{block}.ffn_down", spec.n_embd, spec.n_ff, bias=False, gain=_QUIET)

    def _head(self, modern: bool) -> None:
        size = self.spec.n_embd
        self._matrix("cls", size, size, bias=not modern)
        self._matrix("cls.output", self.spec.head, size, bias=True)
        if modern:
            self._norm("cls.norm", bias=False)
