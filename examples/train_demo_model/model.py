"""The two small transformers in PyTorch, in the form llama.cpp computes them.

Owns: both architectures. `llama`: pre-norms, SiLU-gated feed-forward, rotary positions on
neighbouring pairs. `gemma3`: pre- and post-norms, normed queries and keys, GELU-gated
feed-forward, rotary positions on halves, and layers that only see the
last `window` tokens except every `pattern`-th one. Norm weights are stored as they are
multiplied (llama.cpp's form), so that the export copies them. Embeddings are scaled in both:
that is gemma's own way, and for `llama` the export multiplies them once and for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """Sizes; the same for both architectures except for the last four."""

    arch: str
    vocab: int
    dim: int = 192
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 512
    eps: float = 1e-6
    context: int = 2048
    rope_base: float = 10000.0
    rope_base_local: float = 10000.0
    window: int = 0
    pattern: int = 0

    @property
    def is_gemma(self) -> bool:
        """Whether this is the sliding-window architecture."""
        return self.arch == "gemma3"

    def is_local(self, layer: int) -> bool:
        """Whether this layer sees only the window."""
        return self.window > 0 and layer % self.pattern < self.pattern - 1


def config(arch: str, vocab: int) -> Config:
    """The released sizes of one architecture."""
    if arch == "gemma3":
        return Config("gemma3", vocab, rope_base=20000.0, window=64, pattern=2)
    return Config("llama", vocab)


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def angles(length: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary positions, `(length, size / 2)`."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    turned = torch.arange(length, dtype=torch.float32)[:, None] * rates
    return turned.cos(), turned.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    """Rotate pairs of the last axis: its two halves, or neighbours."""
    if halves:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Grouped-query attention in plain products, `(batch, heads, length, size)`.

    On short sequences and a CPU this is several times faster than the fused kernels.
    """
    batch, heads, length, size = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(batch, kv_heads, -1, size)
    scores = (rows @ k.mT).view(batch, kv_heads, heads // kv_heads, length, length)
    shares = torch.softmax(scores * size**-0.5 + mask, -1, dtype=scores.dtype)
    return (shares.view(batch, kv_heads, -1, length) @ v).reshape(q.shape)


def causal_mask(length: int, window: int, like: torch.dtype) -> Tensor:
    """What to add to scores: nothing for visible tokens, minus infinity for others."""
    at = torch.arange(length)
    ahead = at[:, None] - at[None, :]
    hidden = (ahead < 0) | (ahead >= window) if window else ahead < 0
    return torch.zeros(length, length, dtype=like).masked_fill(hidden, float("-inf"))


class Attention(nn.Module):
    """Grouped-query causal attention."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.q = nn.Linear(cfg.dim, cfg.heads * cfg.head_dim, bias=False)
        self.k = nn.Linear(cfg.dim, cfg.kv_heads * cfg.head_dim, bias=False)
        self.v = nn.Linear(cfg.dim, cfg.kv_heads * cfg.head_dim, bias=False)
        self.out = nn.Linear(cfg.heads * cfg.head_dim, cfg.dim, bias=False)
        self.q_norm = Norm(cfg.head_dim, cfg.eps) if cfg.is_gemma else nn.Identity()
        self.k_norm = Norm(cfg.head_dim, cfg.eps) if cfg.is_gemma else nn.Identity()

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Mix along the sequence."""
        cfg = self.cfg
        q = self.q_norm(self.q(x).unflatten(-1, (cfg.heads, cfg.head_dim))).transpose(1, 2)
        k = self.k_norm(self.k(x).unflatten(-1, (cfg.kv_heads, cfg.head_dim))).transpose(1, 2)
        v = self.v(x).unflatten(-1, (cfg.kv_heads, cfg.head_dim)).transpose(1, 2)
        q, k = rotate(q, *turned, cfg.is_gemma), rotate(k, *turned, cfg.is_gemma)
        mixed = attend(q, k, v, mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    """Attention and feed-forward around the residual stream."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.attn_norm = Norm(cfg.dim, cfg.eps)
        self.attn = Attention(cfg)
        self.ffn_norm = Norm(cfg.dim, cfg.eps)
        self.gate = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.up = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.down = nn.Linear(cfg.ffn, cfg.dim, bias=False)
        self.attn_post = Norm(cfg.dim, cfg.eps) if cfg.is_gemma else nn.Identity()
        self.ffn_post = Norm(cfg.dim, cfg.eps) if cfg.is_gemma else nn.Identity()

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attn_post(self.attn(self.attn_norm(x), turned, mask))
        h = self.ffn_norm(x)
        gate = self.gate(h)
        gate = F.gelu(gate, approximate="tanh") if self.cfg.is_gemma else F.silu(gate)
        out: Tensor = x + self.ffn_post(self.down(gate * self.up(h)))
        return out


class Transformer(nn.Module):
    """The whole model; input and output embeddings are one matrix."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = Norm(cfg.dim, cfg.eps)
        self._tables: dict[tuple[float, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._initialize()

    def _initialize(self) -> None:
        nn.init.normal_(self.embed.weight, std=0.03)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                residual = name.endswith(("out.weight", "down.weight"))
                scale = (2 * self.cfg.layers) ** -0.5 if residual else 1.0
                nn.init.normal_(weight, std=scale * weight.shape[1] ** -0.5)

    def _turned(self, base: float, length: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        key = (base, kind)
        if key not in self._tables:
            cos, sin = angles(self.cfg.context, self.cfg.head_dim, base)
            self._tables[key] = cos.to(kind), sin.to(kind)
        cos, sin = self._tables[key]
        return cos[:length], sin[:length]

    def hidden(self, tokens: Tensor) -> Tensor:
        """The normed last layer, `(batch, length, dim)`."""
        cfg, length = self.cfg, tokens.shape[1]
        x = self.embed(tokens) * cfg.dim**0.5
        kind = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        whole = causal_mask(length, 0, kind)
        near = causal_mask(length, cfg.window, kind)
        turned = self._turned(cfg.rope_base, length, kind)
        turned_near = self._turned(cfg.rope_base_local, length, kind)
        for at, layer in enumerate(self.layers):
            local = cfg.is_local(at)
            x = layer(x, turned_near if local else turned, near if local else whole)
        out: Tensor = self.norm(x)
        return out

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token."""
        return F.linear(self.hidden(tokens), self.embed.weight)
