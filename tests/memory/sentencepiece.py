"""A small SentencePiece vocabulary, as Llama 2, Mistral and Phi-3 have one: no weights."""

from __future__ import annotations

from pathlib import Path

import gguf

__all__ = ["write_sentencepiece"]

_WORDS = "the quick brown fox hello world don int return Assistant User".split()  # noqa: SIM905
_CHARACTERS = "▁abcdefghijklmnopqrstuvwxyzAU:,.()'\n0123456789-<|>_/"


def write_sentencepiece(path: Path) -> Path:
    """Write a file that can be loaded with ``vocab_only=True``."""
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>"]
    learned = [word[:end] for w in _WORDS for word in (f"▁{w}", w) for end in range(2, len(w) + 2)]
    learned = [*_CHARACTERS, "▁▁", *dict.fromkeys(learned)]
    learned = list(dict.fromkeys(learned))
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * (len(special) - 1)]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(learned)
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(256)
    out.add_embedding_length(32)
    out.add_block_count(1)
    out.add_feed_forward_length(32)
    out.add_head_count(1)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([-float(number) for number in range(len(tokens))])
    out.add_token_types(types)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
