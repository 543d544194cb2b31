"""Tiny LoRA adapters with random weights, for any model file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

__all__ = ["tiny_adapter"]


def tiny_adapter(
    model: Path | str, path: Path, *, rank: int = 2, seed: int = 1, size: float = 0.5
) -> Path:
    """Write an adapter for a model's query weights to ``path``.

    Args:
        size: standard deviation of the weights. At 0.5, replies change.
    """
    reader = gguf.GGUFReader(str(model))
    field = reader.get_field("general.architecture")
    writer = gguf.GGUFWriter(str(path), str(field.contents()) if field else "")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    random = np.random.default_rng(seed)
    for tensor in reader.tensors:
        if tensor.name.endswith("attn_q.weight"):
            n_in, n_out = (int(n) for n in tensor.shape)
            for name, shape in (("lora_a", (rank, n_in)), ("lora_b", (n_out, rank))):
                weights = random.normal(0, size, shape).astype(np.float32)
                writer.add_tensor(f"{tensor.name}.{name}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
