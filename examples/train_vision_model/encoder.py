"""The encoder of pictures in PyTorch, as libmtmd computes one of the kind ``mlp`` (llava).

Owns: a vision transformer with two matrices behind it, and its GGUF file. A picture of 32 x 32
pixels becomes 16 vectors of the language model's width, one for each 8 x 8 pixels.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from drawing import SIZE
from torch import Tensor, nn
from torch.nn import functional as F

PATCH = 8
CELLS = (SIZE // PATCH) ** 2
WIDTH, LAYERS, HEADS, EPS = 192, 4, 6, 1e-5
#: Not WIDTH: libmtmd takes two square matrices of the feed-forward part for swapped ones.
FEED_FORWARD = 512
#: How the names of the parameters in the file differ.
_NAMES = {"blocks": "v.blk", "patch": "v.patch_embd", "post": "v.post_ln", "mm": "mm"}


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = (nn.LayerNorm(WIDTH, EPS) for _ in range(2))
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )
        self.ffn_up, self.ffn_down = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        h = self.ln1(x)
        q, k, v = (
            part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.attn_out(mixed.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.ffn_down(gelu(self.ffn_up(self.ln2(x))))
        return out


class Encoder(nn.Module):
    """Pictures to vectors."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn(CELLS, WIDTH) * 0.2)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.post = nn.LayerNorm(WIDTH, EPS)
        self.mm = nn.ModuleDict({"0": nn.Linear(WIDTH, 2 * WIDTH), "2": nn.Linear(2 * WIDTH, out)})

    def forward(self, pictures: Tensor) -> Tensor:
        """Vectors ``(n, cells, out)`` of uint8 pictures ``(n, height, width, 3)``."""
        x = (pictures.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
        x = self.patch(x).flatten(2).mT + self.positions
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.mm["2"](gelu(self.mm["0"](self.post(x))))
        return out


def gelu(x: Tensor) -> Tensor:
    """As ggml approximates it."""
    return F.gelu(x, approximate="tanh")


def export(encoder: Encoder, path: Path) -> None:
    """Write the file: matrices as F16, all else as F32."""
    out = gguf.GGUFWriter(path, "clip")
    out.add_type("mmproj")
    out.add_name("llama_py demo, shapes and digits")
    out.add_license("MIT")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_string("clip.projector_type", "mlp")
    out.add_bool("clip.has_vision_encoder", True)
    out.add_bool("clip.use_gelu", True)
    for name, value in (
        ("image_size", SIZE),
        ("patch_size", PATCH),
        ("embedding_length", WIDTH),
        ("feed_forward_length", FEED_FORWARD),
        ("block_count", LAYERS),
        ("projection_dim", encoder.mm["2"].out_features),
        ("attention.head_count", HEADS),
    ):
        out.add_uint32(f"clip.vision.{name}", int(value))
    out.add_float32("clip.vision.attention.layer_norm_epsilon", EPS)
    out.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    out.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    # Else the projector gets what the last layer but one makes.
    out.add_array("clip.vision.feature_layer", [LAYERS])
    for name, value in encoder.state_dict().items():
        data = value.detach().numpy()
        half = data.ndim == 2 and name != "positions"
        out.add_tensor(_tensor_name(name), data.astype(np.float16 if half else np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _tensor_name(name: str) -> str:
    if name == "positions":
        return "v.position_embd.weight"
    first, rest = name.split(".", 1)
    return f"{_NAMES[first]}.{rest}"
