"""The vocabularies of real models that llama.cpp tests with, and small models that have them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.chat.families import template_folder

__all__ = ["model_with", "vocabulary"]

_WIDTH = 32


def vocabulary(name: str) -> Path:
    """A file to be loaded with ``vocab_only=True``: llama-spm, phi-3, gpt-2, qwen2, falcon."""
    return template_folder().parent / f"ggml-vocab-{name}.gguf"


def model_with(name: str, folder: Path) -> Path:
    """A llama of one layer with random weights and that vocabulary."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        _write(vocabulary(name), path)
    return path


def _write(source: Path, path: Path) -> None:
    out = gguf.GGUFWriter(path, "llama")
    reader = gguf.GGUFReader(source)
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            out.add_key_value(field.name, field.contents(), field.types[0], inner)
    out.add_context_length(512)
    out.add_embedding_length(_WIDTH)
    out.add_block_count(1)
    out.add_feed_forward_length(_WIDTH)
    out.add_head_count(1)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)
    size = len(reader.fields["tokenizer.ggml.tokens"].data)
    random = np.random.default_rng(3)
    square = [f"blk.0.attn_{part}" for part in ("q", "k", "v", "output")]
    square += [f"blk.0.ffn_{part}" for part in ("gate", "up", "down")]
    for tensor, rows in [("token_embd", size), ("output", size), *((t, _WIDTH) for t in square)]:
        data = random.standard_normal((rows, _WIDTH), dtype=np.float32) / np.float32(_WIDTH**0.5)
        out.add_tensor(f"{tensor}.weight", data)
    for tensor in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        out.add_tensor(f"{tensor}.weight", np.ones(_WIDTH, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
