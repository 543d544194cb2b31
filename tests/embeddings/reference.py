"""The same architectures in numpy, from the weights in the file: one text at a time.

Everything is computed in float64; GELU is rounded to F16 in builds that look it up in a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np

from llama_py._native.loader import build_info

__all__ = ["Reference"]

Array: TypeAlias = Any


class Reference:
    """Computes what a file of ``tests.embeddings.models``, or a tiny llama, makes of tokens."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.weights = {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self.facts = dict(reader.fields)
        self.architecture: str = self.facts["general.architecture"].contents()
        self.n_head = self._fact("attention.head_count")
        self.n_layer = self._fact("block_count")

    def _fact(self, name: str, default: Any = None) -> Any:
        field = self.facts.get(f"{self.architecture}.{name}")
        return default if field is None else field.contents()

    def rows(self, tokens: list[int]) -> Array:
        """The vectors of all tokens, ``(n_tokens, n_embd)``."""
        if self.architecture == "llama":
            return self._llama(tokens)
        if self.architecture == "modern-bert":
            return self._modern(tokens)
        return self._bert(tokens)

    def scores(self, tokens: list[int]) -> Array:
        """The outputs of the classification head of BERT, ``(n_labels,)``."""
        first = self.rows(tokens)[0]
        dense = np.tanh(self._linear("cls", first))
        return self._linear("cls.output", dense)

    # -- parts -------------------------------------------------------------------------------------

    def _linear(self, name: str, x: Array) -> Array:
        bias = self.weights.get(f"{name}.bias", 0.0)
        return x @ self.weights[f"{name}.weight"].T + bias

    def _norm(self, name: str, x: Array) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def _rms_norm(self, name: str, x: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self.weights[f"{name}.weight"]

    def _heads(self, x: Array, count: int) -> Array:
        return x.reshape(len(x), count, -1).transpose(1, 0, 2)

    def _attention(self, q: Array, k: Array, v: Array, allowed: Array) -> Array:
        """Heads first: ``(n_head, n, d)`` each; returns ``(n, n_head * d)``."""
        k, v = (np.repeat(each, len(q) // len(each), axis=0) for each in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(allowed, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = powers / powers.sum(-1, keepdims=True) @ v
        return mixed.transpose(1, 0, 2).reshape(q.shape[1], -1)

    # -- architectures -----------------------------------------------------------------------------

    def _bert(self, tokens: list[int]) -> Array:
        w = self.weights
        x = w["token_embd.weight"][tokens] + w["token_types.weight"][0]
        if self.architecture == "bert":
            x = x + w["position_embd.weight"][: len(tokens)]
        x = self._norm("token_embd_norm", x)
        everywhere = np.ones((len(tokens), len(tokens)), bool)
        for layer in range(self.n_layer):
            block = f"blk.{layer}"
            q, k, v = (
                self._heads(self._linear(f"{block}.attn_{each}", x), self.n_head) for each in "qkv"
            )
            if self.architecture == "nomic-bert":
                base = self._fact("rope.freq_base")
                q, k = _rotated_halves(q, base), _rotated_halves(k, base)
            mixed = self._linear(f"{block}.attn_output", self._attention(q, k, v, everywhere))
            x = self._norm(f"{block}.attn_output_norm", mixed + x)
            up = self._linear(f"{block}.ffn_up", x)
            if self.architecture == "nomic-bert":
                inner = _silu(self._linear(f"{block}.ffn_gate", x)) * up
            else:
                inner = _gelu(up)
            x = self._norm(
                f"{block}.layer_output_norm", self._linear(f"{block}.ffn_down", inner) + x
            )
        return x

    def _modern(self, tokens: list[int]) -> Array:
        x = self._norm("token_embd_norm", self.weights["token_embd.weight"][tokens])
        places = np.arange(len(tokens))
        distance = np.abs(places[:, None] - places[None, :])
        for layer in range(self.n_layer):
            block = f"blk.{layer}"
            y = self._norm(f"{block}.attn_norm", x) if layer else x
            q, k, v = (
                self._heads(each, self.n_head)
                for each in np.split(self._linear(f"{block}.attn_qkv", y), 3, axis=-1)
            )
            windowed = layer % 3 != 0
            base = self._fact("rope.freq_base_swa" if windowed else "rope.freq_base")
            reach = self._fact("attention.sliding_window") // 2 if windowed else len(tokens)
            q, k = _rotated_halves(q, base), _rotated_halves(k, base)
            mixed = self._attention(q, k, v, distance <= reach)
            x = x + self._linear(f"{block}.attn_output", mixed)
            gate, up = np.split(
                self._linear(f"{block}.ffn_up", self._norm(f"{block}.ffn_norm", x)), 2, axis=-1
            )
            x = x + self._linear(f"{block}.ffn_down", _gelu(gate) * up)
        return self._norm("output_norm", x)

    def _llama(self, tokens: list[int]) -> Array:
        x = self.weights["token_embd.weight"][tokens]
        n_kv, base = self._fact("attention.head_count_kv"), self._fact("rope.freq_base")
        before = np.tril(np.ones((len(tokens), len(tokens)), bool))
        for layer in range(self.n_layer):
            block = f"blk.{layer}"
            y = self._rms_norm(f"{block}.attn_norm", x)
            q = _rotated_pairs(self._heads(self._linear(f"{block}.attn_q", y), self.n_head), base)
            k = _rotated_pairs(self._heads(self._linear(f"{block}.attn_k", y), n_kv), base)
            v = self._heads(self._linear(f"{block}.attn_v", y), n_kv)
            x = x + self._linear(f"{block}.attn_output", self._attention(q, k, v, before))
            y = self._rms_norm(f"{block}.ffn_norm", x)
            inner = _silu(self._linear(f"{block}.ffn_gate", y)) * self._linear(f"{block}.ffn_up", y)
            x = x + self._linear(f"{block}.ffn_down", inner)
        return self._rms_norm("output_norm", x)


def _angles(n: int, size: int, base: float) -> Array:
    frequencies = base ** (-np.arange(0, size, 2) / size)
    return np.arange(n)[:, None] * frequencies[None, :]


def _rotated_halves(x: Array, base: float) -> Array:
    """RoPE that pairs element i with i + d / 2."""
    angles = _angles(x.shape[1], x.shape[2], base)
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _rotated_pairs(x: Array, base: float) -> Array:
    """RoPE that pairs neighbours."""
    angles = _angles(x.shape[1], x.shape[2], base)
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = np.empty_like(x)
    rotated[..., 0::2], rotated[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return rotated


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    table = build_info().get("rules", {}).get("LLAMA_PY_GELU") != "applied"
    given = x.astype(np.float16).astype(np.float64) if table else x
    y = 0.5 * given * (1 + np.tanh(np.sqrt(2 / np.pi) * given * (1 + 0.044715 * given**2)))
    return y.astype(np.float16).astype(np.float64) if table else y
