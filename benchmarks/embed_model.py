"""An encoder with random weights in the shape of MiniLM (22M parameters), and texts for it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from llama_py.core.host.cache_folders import cache_directory

__all__ = ["minilm", "mixed_texts"]

Array = npt.NDArray[np.float32]

_WIDTH, _INNER, _HEADS, _LAYERS, _POSITIONS, _TOKENS = 384, 1536, 12, 6, 512, 30522
_CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Tokens of a text, which are spread evenly over these on a logarithmic scale.
_SHORTEST, _LONGEST = 8, 512


def minilm(layers: int = _LAYERS, tokens: int = _TOKENS) -> Path:
    """The path of the model, in F16; it is written to the cache the first time."""
    source = Path(__file__).read_bytes() + f"{layers} {tokens}".encode()
    name = f"minilm-{layers}-{hashlib.sha256(source).hexdigest()[:10]}.gguf"
    path = cache_directory() / "bench-models" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        _write(part, layers, tokens)
        part.replace(path)
    return path


def mixed_texts(count: int, seed: int = 1, tokens: int = _TOKENS) -> list[str]:
    """Texts of 8 to 512 tokens, short ones as often as long ones on a logarithmic scale."""
    chosen = random.Random(seed)
    texts = []
    for _ in range(count):
        length = round(_SHORTEST * (_LONGEST / _SHORTEST) ** chosen.random())
        words = (chosen.randrange(tokens - len(_CONTROL)) for _ in range(length - 2))
        texts.append(" ".join(f"w{word}" for word in words))
    return texts


def _write(path: Path, layers: int, tokens: int) -> None:
    writer = gguf.GGUFWriter(path, "bert")
    _metadata(writer, layers, tokens)
    values = np.random.default_rng(1)

    def add(name: str, *shape: int, scale: float = 1.0, one: float = 0.0) -> None:
        data: Array = values.standard_normal(shape, np.float32) * np.float32(scale)
        data += np.float32(one)
        whole = len(shape) == 1 or name == "token_types.weight"  # llama.cpp adds it as it is
        writer.add_tensor(name, data if whole else data.astype(np.float16))

    def matrix(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns, scale=columns**-0.5)
        add(f"{name}.bias", rows, scale=0.02)

    def norm(name: str) -> None:
        add(f"{name}.weight", _WIDTH, scale=0.02, one=1.0)
        add(f"{name}.bias", _WIDTH, scale=0.02)

    add("token_embd.weight", tokens, _WIDTH)
    add("token_types.weight", 2, _WIDTH)
    add("position_embd.weight", _POSITIONS, _WIDTH)
    norm("token_embd_norm")
    for block in (f"blk.{layer}" for layer in range(layers)):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{name}", _WIDTH, _WIDTH)
        norm(f"{block}.attn_output_norm")
        matrix(f"{block}.ffn_up", _INNER, _WIDTH)
        matrix(f"{block}.ffn_down", _WIDTH, _INNER)
        norm(f"{block}.layer_output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(writer: gguf.GGUFWriter, layers: int, tokens: int) -> None:
    writer.add_name("random weights in the shape of MiniLM")
    writer.add_context_length(_POSITIONS)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_INNER)
    writer.add_block_count(layers)
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", 1)
    writer.add_file_type(1)
    words = [f"▁w{number}" for number in range(tokens - len(_CONTROL))]
    kinds = [gguf.TokenType.CONTROL] * len(_CONTROL) + [gguf.TokenType.NORMAL] * len(words)
    kinds[1] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*_CONTROL, *words])
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    for name, token in (("padding", 0), ("unknown", 1), ("bos", 2), ("seperator", 3)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
