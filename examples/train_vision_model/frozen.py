"""The language model in PyTorch, with the weights of its GGUF file, which do not change.

Owns: reading the file, and the forward pass of the ``llama`` architecture from embeddings to
logits. Gradients go through it to the embeddings, and so to the encoder of pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from torch.nn import functional as F


class FrozenModel:
    """A ``llama`` from a file.

    Attributes:
        width: values of an embedding.
    """

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        if fields["general.architecture"] != "llama":
            raise ValueError(f"{path} is a {fields['general.architecture']}, not a llama")
        self.width = int(fields["llama.embedding_length"])
        self._layers = int(fields["llama.block_count"])
        self._heads = int(fields["llama.attention.head_count"])
        self._kv_heads = int(fields["llama.attention.head_count_kv"])
        self._eps = float(fields["llama.attention.layer_norm_rms_epsilon"])
        self._base = float(fields.get("llama.rope.freq_base", 10000.0))
        self._weights = {tensor.name: _values(tensor) for tensor in reader.tensors}
        self.embeddings = self._weights["token_embd.weight"]
        self._output = self._weights.get("output.weight", self.embeddings)

    def hidden(self, x: Tensor) -> Tensor:
        """The normed last layer for embeddings ``(batch, length, width)``."""
        turned = self._angles(x.shape[1], self.width // self._heads)
        for at in range(self._layers):
            block = f"blk.{at}."
            x = x + self._attention(block, self._norm(x, block + "attn_norm"), turned)
            h = self._norm(x, block + "ffn_norm")
            gate = F.silu(self._times(h, block + "ffn_gate"))
            x = x + self._times(gate * self._times(h, block + "ffn_up"), block + "ffn_down")
        return self._norm(x, "output_norm")

    def logits(self, hidden: Tensor) -> Tensor:
        """What follows, for rows of ``hidden``."""
        return F.linear(hidden, self._output)

    def _times(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[name + ".weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._weights[name + ".weight"], self._eps)

    def _attention(self, block: str, x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
        def heads(name: str, count: int) -> Tensor:
            return self._times(x, block + name).unflatten(-1, (count, -1)).transpose(1, 2)

        q = _rotate(heads("attn_q", self._heads), *turned)
        k = _rotate(heads("attn_k", self._kv_heads), *turned)
        v = heads("attn_v", self._kv_heads)
        mixed = _attend(q, k, v)
        return self._times(mixed.transpose(1, 2).flatten(-2), block + "attn_output")

    def _angles(self, length: int, size: int) -> tuple[Tensor, Tensor]:
        rates = self._base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        turned = torch.arange(length, dtype=torch.float32)[:, None] * rates
        return turned.cos(), turned.sin()


def _values(tensor: Any) -> Tensor:
    return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of groups of heads in plain products: the fastest for short sequences."""
    batch, _, length, size = q.shape
    kv_heads = k.shape[1]
    rows = (q * size**-0.5).reshape(batch, kv_heads, -1, size)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (rows @ k.mT).view(batch, kv_heads, -1, length, length)
    shares = scores.masked_fill(ahead, float("-inf")).softmax(-1)
    return (shares.view(batch, kv_heads, -1, length) @ v).reshape(q.shape)
