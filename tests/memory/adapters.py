"""A tiny LoRA adapter for the tiny model with full attention: it changes every logit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.models import TinySpec

RANK = 2


def write_adapter(path: Path, *, seed: int = 1, strength: float = 0.5) -> Path:
    """An adapter of the query projections of all layers."""
    spec = TinySpec("full")
    random = np.random.default_rng(seed)
    out = gguf.GGUFWriter(path, "llama")
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", RANK)
    for layer in range(spec.n_layer):
        for name, shape in (("lora_a", (RANK, spec.n_embd)), ("lora_b", (spec.n_embd, RANK))):
            values = random.normal(0, strength, shape).astype(np.float32)
            out.add_tensor(f"blk.{layer}.attn_q.weight.{name}", values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
