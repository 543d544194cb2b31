"""Models that say what a test wants: random weights, a real vocabulary, and a preference.

``vocabulary_model("qwen2")`` has the vocabulary that llama.cpp ships under that name, and one tiny
layer; marks that it does not know can be made tokens of it, as fine-tunes do. Such a model never
writes JSON by itself; a ``Steer`` makes it want the tokens of one text, so strongly that its greedy
reply is that text, unless something forbids a token of it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.chat.families import template_folder
from tests.models import CHATML, _default_cache

__all__ = ["Steer", "split_tokens", "vocabulary_model"]

_WIDTH = 32


def vocabulary_model(name: str, marks: Sequence[str] = ()) -> Path:
    """The path of a model with llama.cpp's vocabulary of this name (``"qwen2"``, ``"phi-3"``).

    Args:
        marks: texts that are user-defined tokens, in place of the vocabulary's last ones.
    """
    source = template_folder().parent / f"ggml-vocab-{name}.gguf"
    parts = [Path(__file__).read_bytes(), str(source.stat().st_size).encode()]
    digest = hashlib.sha256(b"".join([*parts, *(mark.encode() for mark in marks)]))
    path = _default_cache() / f"vocabulary-{name}-{digest.hexdigest()[:12]}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        _write(source, part, marks)
        part.replace(path)
    return path


def _write(source: Path, path: Path, marks: Sequence[str]) -> None:
    reader = gguf.GGUFReader(source)
    out = gguf.GGUFWriter(path, "llama")
    size = 0
    for field in reader.fields.values():
        if field.name.startswith("tokenizer.") and field.name != "tokenizer.chat_template":
            kind, *inner = field.types
            contents = _with_marks(field.name, field.contents(), marks)
            out.add_key_value(field.name, contents, kind, inner[0] if inner else None)
        if field.name == "tokenizer.ggml.tokens":
            size = len(field.data)
    _add_sizes(out)
    random_ = np.random.default_rng(7)
    _add(out, random_, "token_embd.weight", size, _WIDTH)
    _add(out, random_, "output.weight", size, _WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        _add(out, random_, f"blk.0.{name}.weight", _WIDTH, _WIDTH)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        out.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _with_marks(name: str, contents: Any, marks: Sequence[str]) -> Any:
    own: dict[str, list[Any]] = {
        "tokenizer.ggml.tokens": list(marks),
        "tokenizer.ggml.token_type": [int(gguf.TokenType.USER_DEFINED)] * len(marks),
    }
    return [*contents[: -len(marks)], *own[name]] if marks and name in own else contents


def _add_sizes(out: gguf.GGUFWriter) -> None:
    out.add_chat_template(CHATML)
    out.add_context_length(8192)
    out.add_embedding_length(_WIDTH)
    out.add_block_count(1)
    out.add_feed_forward_length(_WIDTH)
    out.add_head_count(1)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)


def _add(out: gguf.GGUFWriter, random_: Any, name: str, rows: int, columns: int) -> None:
    data = random_.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns)
    kind = gguf.GGMLQuantizationType.Q8_0
    out.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)


class Steer:
    """A logits processor by which a model wants one text, and then to end. For one reply.

    Args:
        tokens: what the model wants to say, its end-of-generation token included.
        lost: called with the logits once the reply says something else; None to want the end.
    """

    def __init__(
        self, tokens: Sequence[int], lost: Callable[[npt.NDArray[np.float32]], None] | None = None
    ) -> None:
        self._tokens = list(tokens)
        self._lost = lost
        self._start: int | None = None

    def __call__(
        self, ids: npt.NDArray[np.intc], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        if self._start is None:
            self._start = len(ids)
        said = ids[self._start :].tolist()
        if said == self._tokens[: len(said)] and len(said) < len(self._tokens):
            logits[self._tokens[len(said)]] += 1000
        elif self._lost is not None:
            self._lost(logits)
        else:
            logits[self._tokens[-1]] += 1000
        return logits


def split_tokens(vocab: Any, text: str, random_: random.Random) -> list[int]:
    """Tokens of a text as a model might choose them: mostly the tokenizer's, here and there cut
    where the tokenizer would not cut."""
    raw = text.encode()
    if random_.random() < 0.7:
        return spelled(vocab, raw)
    characters = len(text)
    places = {0, characters, *(random_.randrange(characters) for _ in range(1 + characters // 12))}
    cuts = sorted(places)
    parts = [text[a:b].encode() for a, b in itertools.pairwise(cuts)]
    return [token for part in parts for token in spelled(vocab, part)]


def spelled(vocab: Any, raw: bytes) -> list[int]:
    """The tokenizer's tokens of a text, without the space that some put in front."""
    tokens: list[int] = vocab.tokenize(raw, add_special=False)
    if b"".join(map(vocab.piece, tokens)) == raw:
        return tokens
    anchor = vocab.tokenize(b"\n" + raw, add_special=False)
    for count in range(1, 4):
        if b"".join(map(vocab.piece, anchor[count:])) == raw:
            return list(anchor[count:])
    raise ValueError(f"no tokens for {raw!r}")
