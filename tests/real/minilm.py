"""all-MiniLM-L6-v2: converted to GGUF, and computed with numpy from the same weights.

The two share nothing but the file of the weights: the tokens of the reference are those of the
``tokenizers`` package, and what it computes is written down from the paper.
"""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from scipy.special import erf
from tokenizers import Tokenizer

__all__ = ["Reference", "convert"]

Weights: TypeAlias = "dict[str, Any]"

_HEADS, _LAYERS, _EPSILON = 12, 6, 1e-12
_EMBEDDINGS = {
    "token_embd": "word_embeddings",
    "position_embd": "position_embeddings",
    "token_types": "token_type_embeddings",
    "token_embd_norm": "LayerNorm",
}
_LAYER = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}


def _weights(archive: Path) -> Weights:
    """The tensors of the archive's safetensors file, by name, float32."""
    with zipfile.ZipFile(archive) as files:
        data = files.read("model.safetensors")
    (size,) = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if entry.get("dtype") == "F32":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])
    return found


def _tokenizer(archive: Path) -> Any:
    with zipfile.ZipFile(archive) as files:
        tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def convert(archive: Path, path: Path) -> None:
    """Write the model as GGUF."""
    weights = _weights(archive)
    out = gguf.GGUFWriter(path, "bert")
    out.add_name("all-MiniLM-L6-v2")
    out.add_context_length(512)
    out.add_embedding_length(384)
    out.add_feed_forward_length(1536)
    out.add_block_count(_LAYERS)
    out.add_head_count(_HEADS)
    out.add_layer_norm_eps(_EPSILON)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    _write_vocabulary(out, _tokenizer(archive))
    names = {ours: f"embeddings.{theirs}" for ours, theirs in _EMBEDDINGS.items()}
    for layer in range(_LAYERS):
        for ours, theirs in _LAYER.items():
            names[f"blk.{layer}.{ours}"] = f"encoder.layer.{layer}.{theirs}"
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in weights:
                out.add_tensor(f"{ours}.{kind}", weights[f"{theirs}.{kind}"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _write_vocabulary(out: gguf.GGUFWriter, tokenizer: Any) -> None:
    """WordPiece: GGUF marks the beginnings of words, where the original marks what follows."""
    tokens, types = [], []
    for number in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(number)
        control = token.startswith("[") and token.endswith("]") and len(token) > 2
        types.append(gguf.TokenType.CONTROL if control else gguf.TokenType.NORMAL)
        if control:
            tokens.append(token)
        else:
            tokens.append(token[2:] if token.startswith("##") else f"▁{token}")
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_type_count(2)
    special = {"padding": "[PAD]", "unknown": "[UNK]", "bos": "[CLS]", "seperator": "[SEP]"}
    for name, token in {**special, "mask": "[MASK]"}.items():
        out.add_uint32(f"tokenizer.ggml.{name}_token_id", tokenizer.token_to_id(token))


class Reference:
    """The model in float64, one text at a time."""

    def __init__(self, archive: Path) -> None:
        self._weights = {key: value.astype(np.float64) for key, value in _weights(archive).items()}
        self._tokenizer = _tokenizer(archive)

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, with those at its ends."""
        found: list[int] = self._tokenizer.encode(text).ids
        return found

    def vector(self, text: str) -> Any:
        """The mean of the vectors of all tokens, of length 1, ``(384,)``."""
        weights, tokens = self._weights, self.tokens(text)
        x = weights["embeddings.word_embeddings.weight"][tokens]
        x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
        x = self._norm(
            "embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0]
        )
        for layer in range(_LAYERS):
            x = self._layer(f"encoder.layer.{layer}", x)
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _layer(self, name: str, x: Any) -> Any:
        split = [
            self._linear(f"{name}.attention.self.{each}", x).reshape(len(x), _HEADS, -1)
            for each in ("query", "key", "value")
        ]
        query, key, value = (each.transpose(1, 0, 2) for each in split)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        attended = (share @ value).transpose(1, 0, 2).reshape(len(x), -1)
        attended = self._linear(f"{name}.attention.output.dense", attended)
        x = self._norm(f"{name}.attention.output.LayerNorm", x + attended)
        inner = self._linear(f"{name}.intermediate.dense", x)
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        inner = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", x + inner)

    def _linear(self, name: str, x: Any) -> Any:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, x: Any) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
