"""Models for llama.cpp's tests of its server, in place of those that it downloads.

They are made here in less than a second, with random weights: no test depends on what they say.
What tests do depend on is like that of the models that they stand for: a SentencePiece vocabulary
of a few hundred pieces, where BOS is token 1; texts that go on until something else ends them;
tokens for infill; the real vocabulary of BERT.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.embeddings.models import EncoderSpec
from tests.embeddings.models import _Writer as EncoderWriter
from tests.models import _default_cache
from tests.vocabularies import vocabulary

__all__ = ["bert", "lora", "split_stories", "stories"]

_WIDTH, _LAYERS, _HEADS = 64, 2, 4
_SPECIAL = ("<unk>", "<s>", "</s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_BYTES = 256
#: How much less likely than a word a token is that is none.
_NEVER = 30.0

_TEXT = """
Once upon a time there was a little girl who lived in a small house with her mother and her big dog.
She liked to play in the park with her friends and they were very happy. One day the girl found a
shiny red book and said I believe that the meaning of life is to be kind. The best book is the one
that you read when the sky is blue. What is the answer? Her brother wanted to write a joke about a
very long prompt which will not be truncated. The quick brown fox jumps over the lazy dog. They went
to the forest and saw a cat that could climb the tree.
"""

#: A word that a prompt of theirs repeats until it just fits, as one token.
_OFTEN = "Hello " * 20


def stories(seed: int = 5) -> Path:
    """A llama of two layers that writes words without end, and knows how infill is asked for."""
    return _made(f"stories-{seed}", lambda path: _write_stories(path, seed))


def split_stories() -> Path:
    """The first file of the same model in several files."""
    first = _default_cache() / f"{_name('stories-split')}-00001-of-00003.gguf"
    if not first.exists():
        first.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=first.parent) as folder:
            _write_stories(Path(folder, f"{_name('stories-split')}.gguf"), 5, parts=3)
            for part in sorted(Path(folder).iterdir(), reverse=True):
                part.replace(first.parent / part.name)
    return first


def bert(head: int = 0) -> Path:
    """An encoder with the vocabulary of BERT; with ``head`` outputs, it ranks."""
    return _made(f"bert-{head}", lambda path: _write_bert(path, head))


def lora() -> Path:
    """An adapter for ``stories``."""
    return _made("stories-lora", _write_lora)


# ---- files -------------------------------------------------------------------------------------


def _name(kind: str) -> str:
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return f"{kind}-{source}"


def _made(kind: str, write: Callable[[Path], None]) -> Path:
    path = _default_cache() / f"{_name(kind)}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        write(Path(part))
        Path(part).replace(path)
    return path


def _finish(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# ---- stories -----------------------------------------------------------------------------------


def _pieces() -> list[str]:
    """Characters, and what pairs of them are most frequent: where the tokenizer merges them."""
    characters = (
        "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!'\"-:;()<>|_/{}[]\n"
    )
    words = collections.Counter(tuple(f"▁{word}") for word in (_TEXT + _OFTEN).split())
    pieces = list(characters)
    while len(pieces) < len(characters) + 90:
        pairs: collections.Counter[str] = collections.Counter()
        for word, count in words.items():
            for left, right in itertools.pairwise(word):
                pairs[left + right] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        pieces.append(best)
        words = collections.Counter({_joined(word, best): count for word, count in words.items()})
    return list(dict.fromkeys(pieces))


def _joined(word: tuple[str, ...], pair: str) -> tuple[str, ...]:
    """The word with this pair as one piece."""
    pieces: list[str] = []
    for piece in word:
        if pieces and pieces[-1] + piece == pair:
            pieces[-1] = pair
        else:
            pieces.append(piece)
    return tuple(pieces)


def _write_stories(path: Path, seed: int, parts: int = 0) -> None:
    learned = _pieces()
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(_BYTES)), *learned]
    if parts:
        out = gguf.GGUFWriter(path, "llama", split_max_tensors=8)
    else:
        out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(16384)
    out.add_embedding_length(_WIDTH)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(2 * _WIDTH)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_HEADS)
    out.add_rope_dimension_count(_WIDTH // _HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([-float(number) for number in range(len(tokens))])
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * (len(_SPECIAL) - 1)]
    types += [gguf.TokenType.BYTE] * _BYTES + [gguf.TokenType.NORMAL] * len(learned)
    out.add_token_types(types)
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    for number, name in enumerate(("pre", "suf", "mid"), 3):
        out.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", number)
    for name, data in _stories_tensors(tokens, seed).items():
        out.add_tensor(f"{name}.weight", data)
    _finish(out)


def _stories_tensors(tokens: list[str], seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        data = random.standard_normal((rows, columns), dtype=np.float32)
        return np.asarray(data / np.float32(columns**0.5), np.float32)

    embedding = matrix(len(tokens), _WIDTH) * np.float32(_WIDTH**0.5)
    output = matrix(len(tokens), _WIDTH) * np.float32(3)
    # The first number of the residual is the same everywhere, so it can forbid tokens.
    embedding[:, 0] = 3
    output[:, 0] = 0
    words = [number for number, token in enumerate(tokens) if number >= len(_SPECIAL) + _BYTES]
    allowed = [number for number in words if tokens[number].strip("▁").isalpha()]
    output[:, 0] = -_NEVER
    output[allowed, 0] = 0
    tensors = {"token_embd": embedding, "output": output}
    ones = np.ones(_WIDTH, np.float32)
    tensors["output_norm"] = ones
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}.{name}"] = matrix(_WIDTH, _WIDTH)
        tensors[f"{block}.ffn_gate"] = matrix(2 * _WIDTH, _WIDTH)
        tensors[f"{block}.ffn_up"] = matrix(2 * _WIDTH, _WIDTH)
        tensors[f"{block}.ffn_down"] = matrix(_WIDTH, 2 * _WIDTH)
        for name in ("attn_output", "ffn_down"):
            tensors[f"{block}.{name}"][0] = 0
        tensors[f"{block}.attn_norm"] = tensors[f"{block}.ffn_norm"] = ones
    return tensors


def _write_lora(path: Path) -> None:
    out = gguf.GGUFWriter(path, "llama")
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", 8.0)
    random = np.random.default_rng(7)
    for part, rows, columns in (("a", 4, _WIDTH), ("b", _WIDTH, 4)):
        data = random.standard_normal((rows, columns), dtype=np.float32)
        out.add_tensor(f"blk.0.attn_q.weight.lora_{part}", data)
    _finish(out)


# ---- BERT --------------------------------------------------------------------------------------


def _write_bert(path: Path, head: int) -> None:
    pooling = gguf.PoolingType.RANK if head else gguf.PoolingType.CLS
    spec = EncoderSpec(
        "bert", pooling=int(pooling), head=head, n_layer=2, n_embd=32, n_head=2, n_ff=64
    )
    _Bert(dataclasses.replace(spec), path).write()


class _Bert(EncoderWriter):
    """A tiny encoder with the vocabulary that llama.cpp tests its tokenizer of BERT with."""

    def _vocabulary(self) -> None:
        reader = gguf.GGUFReader(vocabulary("bert-bge"))
        for field in reader.fields.values():
            if field.name.startswith("tokenizer."):
                inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
                self.gguf.add_key_value(field.name, field.contents(), field.types[0], inner)
        self.n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
