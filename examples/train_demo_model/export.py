"""Writes a trained checkpoint as a Q8_0 GGUF file.

Owns: tensor names, metadata, the vocabulary's form in the file, and the quantization.

    python export.py RUN/last.pt TOKENIZER.json OUT.gguf
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dialogues
import gguf
import model as models
import numpy as np
import torch
from tokenizer import CONTROL, PRE_TOKENIZER, VISIBLE
from tokenizers import Tokenizer
from torch import Tensor

DESCRIPTION = (
    "A demonstration model of a few million parameters, trained on generated dialogues only. "
    "It shows that an installation works. It is not an assistant and knows nothing."
)

_LAYER = {
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.out": "attn_output",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn_post": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "ffn_post": "post_ffw_norm",
}


def tensor_name(name: str) -> str:
    """The GGUF name of one of the model's parameters."""
    if name == "embed.weight":
        return "token_embd.weight"
    if name == "norm.weight":
        return "output_norm.weight"
    _, layer, *path, _ = name.split(".")
    return f"blk.{layer}.{_LAYER['.'.join(path)]}.weight"


def _write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    kinds = []
    for token in tokens:
        if token in CONTROL:
            kinds.append(gguf.TokenType.CONTROL)
        elif token in VISIBLE:
            kinds.append(gguf.TokenType.USER_DEFINED)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(dialogues.TEMPLATE)


def _write_sizes(writer: gguf.GGUFWriter, cfg: models.Config) -> None:
    writer.add_context_length(cfg.context)
    writer.add_embedding_length(cfg.dim)
    writer.add_block_count(cfg.layers)
    writer.add_feed_forward_length(cfg.ffn)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_key_length(cfg.head_dim)
    writer.add_value_length(cfg.head_dim)
    writer.add_layer_norm_rms_eps(cfg.eps)
    writer.add_rope_freq_base(cfg.rope_base)
    writer.add_rope_dimension_count(cfg.head_dim)
    writer.add_vocab_size(cfg.vocab)
    if cfg.window:
        writer.add_sliding_window(cfg.window)
        writer.add_sliding_window_pattern(cfg.pattern)
        writer.add_float32(f"{cfg.arch}.rope.freq_base_swa", cfg.rope_base_local)


def quantize(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The Q8_0 bytes of a matrix."""
    packed: np.ndarray[Any, Any] = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    return packed


def rounded(weight: Tensor) -> Tensor:
    """A parameter as the file holds it: matrices through Q8_0, norms as they are."""
    if weight.ndim == 1:
        return weight
    packed = quantize(weight.float().numpy())
    exact = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    return torch.from_numpy(exact)


def load(path: Path) -> tuple[models.Config, dict[str, Tensor]]:
    """Sizes and weights of a checkpoint."""
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    return models.Config(**saved["config"]), saved["model"]


def tensors(cfg: models.Config, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors. llama.cpp scales embeddings for `gemma3` only: else it is done here."""
    for name, weight in weights.items():
        if name == "embed.weight" and not cfg.is_gemma:
            yield "output.weight", weight
            weight = weight * cfg.dim**0.5
        yield tensor_name(name), weight


def export(checkpoint: Path, tokenizer_path: Path, out: Path) -> None:
    """Write the file."""
    cfg, weights = load(checkpoint)
    writer = gguf.GGUFWriter(out, cfg.arch)
    writer.add_name("llama_py demo")
    writer.add_description(DESCRIPTION)
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _write_sizes(writer, cfg)
    _write_vocabulary(writer, Tokenizer.from_file(str(tokenizer_path)))
    for name, weight in tensors(cfg, weights):
        values = weight.float().numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    count = sum(weight.numel() for weight in weights.values())
    print(f"{out}: {cfg.arch}, {count} parameters, {out.stat().st_size} bytes")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.checkpoint, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
