"""Tiny models with random weights, one for every kind of sequence memory.

``tiny_model("iswa")`` returns the path of a GGUF of well under 5 MB. The files are made from a seed
when they are first asked for, and kept in a cache directory under a name that contains a hash of
this source and of the parameters, so a changed generator never meets an old file.

=============  ==============  ==============================================================
kind           architecture    memory in llama.cpp
=============  ==============  ==============================================================
full           llama           full attention
iswa           cohere2         two of four layers see a window of 32 positions
recurrent      mamba2          a state per sequence, which cannot be cut
hybrid         granitehybrid   mamba2 layers and attention layers in turn
hybrid_swa     lfm2            short convolutions and attention layers with a window of 32
hybrid_conv    lfm2            the same without a window
learned        gpt2            full attention; positions are a table of n_ctx_train rows
mtp            mimo2           like iswa, with a next-token head that is right half of the time
iswa_gemma     gemma3          like iswa; its GELU rounds to F16, which makes noise of 1e-14
                               a difference of 1e-9, so nothing can be bit-equal with it
=============  ==============  ==============================================================

The weights are scaled so that every cached cell matters: see ``tests/core/test_sensitivity.py``.
The vocabulary is a real byte-level BPE; it has what makes detokenizing hard (pieces that hold half
a UTF-8 character, a piece of 64 bytes, pieces with NUL bytes).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["CHATML", "KINDS", "Kind", "TinySpec", "tiny_model", "tiny_vocab"]

Kind = str
Array = npt.NDArray[np.float32]

#: The five kinds of memory. "hybrid_conv", "iswa_gemma", "learned", "moe" and "mtp" are extras.
KINDS: tuple[Kind, ...] = ("full", "iswa", "recurrent", "hybrid", "hybrid_swa")

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{{- (message['content'] or '') + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

_CORPUS = """
The quick brown fox jumps over the lazy dog. You are a helpful assistant. What is the capital of
France? The answer is that the user asked the system for the weather in the city, and the assistant
said that it will be sunny and warm there in the morning. def main(self, value): return value + 1
import os, sys; for item in items: print(item) if item is not None else continue. The model keeps
what it has read: one token after another, each of them in the cache. Once upon a time there was
a little robot who wanted to learn how to write, and so it wrote and wrote until the paper was full.
"""


@dataclasses.dataclass(frozen=True)
class TinySpec:
    """What a tiny model looks like. All of it is part of the name of the cached file."""

    kind: Kind
    quant: str = "f32"
    seed: int = 4
    n_layer: int = 4
    n_embd: int = 128
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    n_swa: int = 32
    n_ctx_train: int = 4096
    chat_template: str | None = CHATML


@dataclasses.dataclass(frozen=True)
class TinyVocab:
    """Tokens (in GPT-2's byte alphabet), merges by rank, and where special tokens begin."""

    tokens: list[str]
    merges: list[str]
    first_special: int

    def id(self, text: str) -> int:
        """Return the id of a special token."""
        return self.tokens.index(text, self.first_special)


def tiny_model(kind: Kind, *, cache_dir: Path | None = None, **changes: object) -> Path:
    """Return the path of the tiny model of this kind; make it if it is not there.

    ``changes`` replace fields of :class:`TinySpec`, e.g. ``quant="q8_0"`` or ``seed=2``.
    """
    spec = dataclasses.replace(TinySpec(kind), **changes)  # type: ignore[arg-type]
    directory = cache_dir or _default_cache()
    path = directory / f"tiny-{kind}-{spec.quant}-{_fingerprint(spec)}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, spec)
    return path


def _default_cache() -> Path:
    configured = os.environ.get("LLAMA_PY_TEST_MODELS")
    if configured:
        return Path(configured)
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"llama-py-tiny-models-{user}"


def _fingerprint(spec: TinySpec) -> str:
    source = Path(__file__).read_bytes()
    return hashlib.sha256(source + repr(spec).encode()).hexdigest()[:12]


def _write_atomically(path: Path, spec: TinySpec) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        _ModelWriter(spec, Path(name)).write()
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


# --- the vocabulary -------------------------------------------------------------------------------


@functools.cache
def byte_alphabet() -> tuple[str, ...]:
    """Return GPT-2's printable stand-in for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return tuple(table[byte] for byte in range(256))


def printable(data: bytes) -> str:
    """Spell bytes in the alphabet of byte-level BPE."""
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in data)


@functools.cache
def tiny_vocab(n_learned: int = 240) -> TinyVocab:
    """Return the vocabulary: 256 bytes, awkward merges, learned merges, special tokens."""
    merges = [*_awkward_merges(), *_learn_merges(n_learned)]
    merges = list(dict.fromkeys(merges))
    tokens = [*byte_alphabet(), *(left + right for left, right in merges)]
    tokens = list(dict.fromkeys(tokens))
    first_special = len(tokens)
    return TinyVocab([*tokens, *SPECIAL], [f"{a} {b}" for a, b in merges], first_special)


def _awkward_merges() -> list[tuple[str, str]]:
    """Return merges whose pieces are hard to detokenize."""
    pairs: list[tuple[bytes, bytes]] = [
        (b"\xf0\x9f", b"\x98"),  # three of the four bytes of an emoji
        (b"\xf0", b"\x9f"),
        (b"\xe4", b"\xb8"),  # two of the three bytes of a Chinese character
        (b"\xc3", b"\xa9"),  # a whole e with an acute accent
        (b"\xa9", b"\xc3"),  # the end of one character with the beginning of another
        (b"\x00", b"\x00"),
        (b"\x00", b"#"),
    ]
    pairs += [(b"-" * n, b"-" * n) for n in (1, 2, 4, 8, 16, 32)]
    pairs += [(b" " * n, b" " * n) for n in (1, 2, 4)]
    return [(printable(left), printable(right)) for left, right in pairs]


def _learn_merges(count: int) -> list[tuple[str, str]]:
    """Learn merges from a small text: the plainest BPE trainer, with ties broken by spelling."""
    words = collections.Counter(f" {word}" for word in _CORPUS.split())
    spelled = {tuple(printable(word.encode())): n for word, n in words.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, n in spelled.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += n
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        spelled = {_apply(word, best): n for word, n in spelled.items()}
    return merges


def _apply(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)


# --- the weights ----------------------------------------------------------------------------------


class _ModelWriter:
    """Writes one model; a method per architecture names its metadata and tensors."""

    def __init__(self, spec: TinySpec, path: Path) -> None:
        self.spec = spec
        self.random = np.random.default_rng([spec.seed, len(spec.kind)])
        self.vocab = tiny_vocab()
        self.arch, self.fill = self._architectures()[spec.kind]
        self.head = spec.n_embd // spec.n_head
        self.gguf = gguf.GGUFWriter(path, self.arch)

    def _architectures(self) -> dict[Kind, tuple[str, Callable[[], None]]]:
        return {
            "full": ("llama", self._llama),
            "iswa": ("cohere2", self._cohere2),
            "iswa_gemma": ("gemma3", self._gemma3),
            "recurrent": ("mamba2", self._mamba2),
            "hybrid": ("granitehybrid", self._granite_hybrid),
            "hybrid_swa": ("lfm2", self._lfm2),
            "hybrid_conv": ("lfm2", self._lfm2),
            "learned": ("gpt2", self._gpt2),
            "moe": ("llama", self._llama),
            "mtp": ("mimo2", self._mimo2),
        }

    def write(self) -> None:
        self._common_metadata()
        self._vocabulary()
        self._embeddings()
        self.fill()
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()

    def _common_metadata(self) -> None:
        spec, out = self.spec, self.gguf
        out.add_name(f"tiny {spec.kind}")
        out.add_context_length(spec.n_ctx_train)
        out.add_embedding_length(spec.n_embd)
        out.add_block_count(spec.n_layer + (spec.kind == "mtp"))
        out.add_layer_norm_rms_eps(1e-5)
        file_types = {"f32": 0, "f16": 1, "q8_0": 7}
        out.add_file_type(file_types[spec.quant])
        if spec.chat_template is not None:
            out.add_chat_template(spec.chat_template)

    def _vocabulary(self) -> None:
        vocab, out = self.vocab, self.gguf
        types = [gguf.TokenType.NORMAL] * vocab.first_special
        types += [gguf.TokenType.CONTROL] * 3
        types += [gguf.TokenType.USER_DEFINED] * (len(vocab.tokens) - len(types))
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("gpt-2")
        out.add_token_list(vocab.tokens)
        out.add_token_types(types)
        out.add_token_merges(vocab.merges)
        out.add_eos_token_id(vocab.id("<|im_end|>"))
        out.add_bos_token_id(vocab.id("<|endoftext|>"))
        out.add_eot_token_id(vocab.id("<|im_end|>"))
        out.add_pad_token_id(vocab.id("<|endoftext|>"))
        out.add_add_bos_token(False)

    # tensors

    def _add(self, name: str, data: Array) -> None:
        matrix = data.ndim > 1 and data.shape[-1] % 32 == 0 and "conv" not in name
        if self.spec.quant == "f16" and matrix:
            self.gguf.add_tensor(name, data.astype(np.float16))
        elif self.spec.quant == "q8_0" and matrix:
            kind = gguf.GGMLQuantizationType.Q8_0
            self.gguf.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            self.gguf.add_tensor(name, data)

    def _matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Add a matrix that maps inputs of unit variance to outputs of variance ``gain**2``."""
        data = self.random.standard_normal((rows, columns), dtype=np.float32)
        self._add(f"{name}.weight", data * np.float32(gain / np.sqrt(columns)))

    def _norm(self, name: str, size: int, gain: float = 1.0) -> None:
        noise = self.random.standard_normal(size, dtype=np.float32)
        self._add(f"{name}.weight", np.float32(gain) * (1 + np.float32(0.1) * noise))

    def _embeddings(self) -> None:
        size = len(self.vocab.tokens)
        names = {"lfm2": "token_embd_norm"}
        embedded = self.random.standard_normal((size, self.spec.n_embd), dtype=np.float32)
        self._add("token_embd.weight", embedded * np.float32(self._embedding_scale()))
        self._norm(names.get(self.arch, "output_norm"), self.spec.n_embd)
        if self.arch != "cohere2":  # whose output is the embedding matrix
            self._matrix("output", size, self.spec.n_embd, gain=2.0)

    def _embedding_scale(self) -> float:
        # gemma3 multiplies its embeddings by sqrt(n_embd)
        return 0.5 / np.sqrt(self.spec.n_embd) if self.arch == "gemma3" else 0.5

    def _ffn(self, block: str, *, norm: bool = True, gain: float = 1.0) -> None:
        spec = self.spec
        if norm:
            self._norm(f"{block}.ffn_norm", spec.n_embd)
        self._matrix(f"{block}.ffn_gate", spec.n_ff, spec.n_embd)
        self._matrix(f"{block}.ffn_up", spec.n_ff, spec.n_embd)
        self._matrix(f"{block}.ffn_down", spec.n_embd, spec.n_ff, gain=gain)

    def _attention(self, block: str, out_gain: float) -> None:
        spec = self.spec
        n_kv = spec.n_head_kv * self.head
        self._matrix(f"{block}.attn_q", spec.n_embd, spec.n_embd)
        self._matrix(f"{block}.attn_k", n_kv, spec.n_embd)
        self._matrix(f"{block}.attn_v", n_kv, spec.n_embd)
        self._matrix(f"{block}.attn_output", spec.n_embd, spec.n_embd, gain=out_gain)

    def _qk_norms(self, block: str) -> None:
        self._norm(f"{block}.attn_q_norm", self.head)
        self._norm(f"{block}.attn_k_norm", self.head)

    def _attention_metadata(self, kv_heads: int | list[int]) -> None:
        spec, out = self.spec, self.gguf
        out.add_head_count(spec.n_head)
        out.add_head_count_kv(kv_heads)
        out.add_feed_forward_length(spec.n_ff)
        out.add_rope_freq_base(10000.0)
        out.add_rope_dimension_count(self.head)
        out.add_key_length(self.head)
        out.add_value_length(self.head)

    def _ssm_metadata(self) -> None:
        out = self.gguf
        out.add_ssm_conv_kernel(4)
        out.add_ssm_inner_size(2 * self.spec.n_embd)
        out.add_ssm_state_size(16)
        out.add_ssm_time_step_rank(8)
        out.add_ssm_group_count(1)

    def _ssm(self, block: str, out_gain: float = 2.0) -> None:
        """Add a mamba2 mixer whose state decays slowly: tokens far back still matter."""
        inner, state, heads = 2 * self.spec.n_embd, 16, 8
        channels = inner + 2 * state
        self._matrix(f"{block}.ssm_in", inner + channels + heads, self.spec.n_embd)
        conv = self.random.standard_normal((channels, 4), dtype=np.float32)
        self._add(f"{block}.ssm_conv1d.weight", conv * np.float32(0.6))
        self._add(f"{block}.ssm_conv1d.bias", np.zeros(channels, np.float32))
        self._add(f"{block}.ssm_dt.bias", np.full(heads, -1.0, np.float32))
        decay = -np.geomspace(0.02, 0.5, heads, dtype=np.float32)
        self._add(f"{block}.ssm_a", decay.reshape(heads, 1))
        self._add(f"{block}.ssm_d", np.full((heads, 1), 0.5, np.float32))
        ones = np.ones((1, inner), np.float32)
        self.gguf.add_tensor(f"{block}.ssm_norm.weight", ones)
        self._matrix(f"{block}.ssm_out", self.spec.n_embd, inner, gain=out_gain)

    # architectures

    def _llama(self) -> None:
        spec = self.spec
        self._attention_metadata(spec.n_head_kv)
        self.gguf.add_vocab_size(len(self.vocab.tokens))
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            self._attention(block, out_gain=3.0)
            if spec.kind == "moe":
                self._experts(block)
            else:
                self._ffn(block)

    def _experts(self, block: str) -> None:
        """Four of them, of which two are used for each token."""
        spec, count = self.spec, 4
        if block == "blk.0":
            self.gguf.add_expert_count(count)
            self.gguf.add_expert_used_count(2)
        self._norm(f"{block}.ffn_norm", spec.n_embd)
        self._matrix(f"{block}.ffn_gate_inp", count, spec.n_embd)
        for name, rows, columns in (
            ("gate", spec.n_ff, spec.n_embd),
            ("up", spec.n_ff, spec.n_embd),
            ("down", spec.n_embd, spec.n_ff),
        ):
            data = self.random.standard_normal((count, rows, columns), dtype=np.float32)
            self._add(f"{block}.ffn_{name}_exps.weight", data / np.float32(np.sqrt(columns)))

    def _cohere2(self) -> None:
        spec = self.spec
        self._attention_metadata(spec.n_head_kv)
        self.gguf.add_layer_norm_eps(1e-5)
        self.gguf.add_logit_scale(1.0)
        self.gguf.add_sliding_window(spec.n_swa)
        self.gguf.add_uint32("cohere2.attention.sliding_window_pattern", 2)
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            self._attention(block, out_gain=3.0)
            self._ffn(block, norm=False)  # attention and feed-forward are parallel

    def _gemma3(self) -> None:
        spec = self.spec
        self._attention_metadata(spec.n_head_kv)
        self.gguf.add_sliding_window(spec.n_swa)
        self.gguf.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            self._attention(block, out_gain=1.0)
            self._qk_norms(block)
            self._norm(f"{block}.post_attention_norm", spec.n_embd)
            self._ffn(block)
            self._norm(f"{block}.post_ffw_norm", spec.n_embd)

    def _mamba2(self) -> None:
        self._ssm_metadata()
        for layer in range(self.spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", self.spec.n_embd)
            self._ssm(block)

    def _attends(self, layer: int) -> bool:
        """Say whether a layer of a hybrid model has attention: every other one has."""
        return layer % 2 == 1

    def _granite_hybrid(self) -> None:
        spec = self.spec
        kv_heads = [spec.n_head_kv * self._attends(layer) for layer in range(spec.n_layer)]
        self._attention_metadata(kv_heads)
        self._ssm_metadata()
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            if self._attends(layer):
                self._attention(block, out_gain=6.0)
            else:
                self._ssm(block, out_gain=1.0)
            self._ffn(block)

    def _lfm2(self) -> None:
        spec = self.spec
        kv_heads = [spec.n_head_kv * self._attends(layer) for layer in range(spec.n_layer)]
        self._attention_metadata(kv_heads)
        self.gguf.add_shortconv_l_cache(3)
        if spec.kind == "hybrid_swa":
            self.gguf.add_sliding_window(spec.n_swa)
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            if self._attends(layer):
                self._attention(block, out_gain=3.0)
                self._qk_norms(block)
            else:
                self._short_convolution(block)
            self._ffn(block)

    def _gpt2(self) -> None:
        spec = self.spec
        self._attention_metadata(spec.n_head)
        self.gguf.add_layer_norm_eps(1e-5)
        positions = self.random.standard_normal((spec.n_ctx_train, spec.n_embd), dtype=np.float32)
        self._add("position_embd.weight", positions * np.float32(0.5))
        self._bias("output_norm", spec.n_embd)
        for layer in range(spec.n_layer):
            block = f"blk.{layer}"
            for norm in ("attn_norm", "ffn_norm"):
                self._norm(f"{block}.{norm}", spec.n_embd)
                self._bias(f"{block}.{norm}", spec.n_embd)
            self._biased_matrix(f"{block}.attn_qkv", 3 * spec.n_embd, spec.n_embd)
            self._biased_matrix(f"{block}.attn_output", spec.n_embd, spec.n_embd)
            self._biased_matrix(f"{block}.ffn_up", spec.n_ff, spec.n_embd)
            self._biased_matrix(f"{block}.ffn_down", spec.n_embd, spec.n_ff)

    def _mimo2(self) -> None:
        """Layers that say little beside the last token's embedding, and a head that knows it."""
        spec, head = self.spec, self.spec.n_layer
        self._attention_metadata(spec.n_head_kv)
        self.gguf.add_uint32("mimo2.nextn_predict_layers", 1)
        self.gguf.add_expert_feed_forward_length(spec.n_ff)
        self.gguf.add_sliding_window(spec.n_swa)
        windowed = [layer % 2 == 0 for layer in range(head)]
        self.gguf.add_array("mimo2.attention.sliding_window_pattern", [*windowed, False])
        width = spec.n_embd + 2 * spec.n_head_kv * self.head
        for layer in range(head + 1):
            block = f"blk.{layer}"
            self._norm(f"{block}.attn_norm", spec.n_embd)
            self._matrix(f"{block}.attn_qkv", width, spec.n_embd)
            self._matrix(f"{block}.attn_output", spec.n_embd, spec.n_embd, gain=0.12)
            self._ffn(block, gain=0.12)
        noise = self.random.standard_normal((spec.n_embd, 2 * spec.n_embd), dtype=np.float32)
        noise *= np.float32(0.1 / np.sqrt(spec.n_embd))
        noise[:, : spec.n_embd] += np.eye(spec.n_embd, dtype=np.float32)
        self._add(f"blk.{head}.nextn.eh_proj.weight", noise)
        for name in ("enorm", "hnorm"):
            self._norm(f"blk.{head}.nextn.{name}", spec.n_embd)

    def _biased_matrix(self, name: str, rows: int, columns: int) -> None:
        self._matrix(name, rows, columns)
        self._bias(name, rows)

    def _bias(self, name: str, size: int) -> None:
        noise = self.random.standard_normal(size, dtype=np.float32)
        self._add(f"{name}.bias", np.float32(0.1) * noise)

    def _short_convolution(self, block: str) -> None:
        size = self.spec.n_embd
        conv = self.random.standard_normal((size, 3), dtype=np.float32)
        self._add(f"{block}.shortconv.conv.weight", conv * np.float32(0.6))
        self._matrix(f"{block}.shortconv.in_proj", 3 * size, size)
        self._matrix(f"{block}.shortconv.out_proj", size, size)


def main() -> None:
    """Make all tiny models and print their paths."""
    for kind in (*KINDS, "hybrid_conv", "iswa_gemma", "learned", "mtp"):
        path = tiny_model(kind)
        print(f"{path.stat().st_size:>9}  {path}")


if __name__ == "__main__":
    main()
