"""Models with random weights and realistic shapes, for benchmarks without downloads.

The speed of a model depends on its shape, its quantization and its vocabulary, not on what it has
learned. So a benchmark model can be made anywhere, in seconds::

    python -m benchmarks make-model --shape smollm2-135m --quant q8_0 model.gguf

The same shape, quantization, vocabulary, seed and Python version give the same file. Needs the
packages of the extra ``bench`` (gguf, tokenizers).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.quantizing import MIXTURES, quantize_file
from benchmarks.vocabulary import SPECIAL_TOKENS, Vocabulary, make_vocabulary
from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import LlamaError, ParameterError
from tools import real_models

if TYPE_CHECKING:
    import gguf

__all__ = ["QUANTS", "SHAPES", "Shape", "find_model", "made_model", "main", "write_model"]

Array = npt.NDArray[np.float32]

QUANTS: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", *MIXTURES)

#: What a model's bytes depend on.
_SOURCES: Final = ("models.py", "quantizing.py", "vocabulary.py")
#: The matrices through which a layer of the llama architecture changes the hidden state.
_LAST_OF_A_LAYER: Final = ("attn_output.weight", "ffn_down.weight")

CHAT_TEMPLATE: Final = (
    "{%- if tools -%}"
    "{{- '<|im_start|>system\\nThese tools can be called:\\n<tools>\\n' -}}"
    "{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}"
    "{{- '</tools>\\nA call is written as\\n<tool_call>\\n' -}}"
    '{{- \'{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n\' -}}'
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '\\n<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' -}}"
    "{{- (call['function']['arguments'] | tojson) + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters of a model.

    Attributes:
        attention_layers: which layers have attention; None means all.
        window: the sliding window, 0 for none; one layer in ``window_pattern`` has none.
    """

    architecture: str
    description: str
    n_layer: int
    n_embd: int
    n_head: int = 0
    n_head_kv: int = 0
    head_size: int = 0
    n_ff: int = 0
    n_ctx_train: int = 8192
    rope_base: float = 10_000.0
    window: int = 0
    window_pattern: int = 0
    attention_layers: tuple[int, ...] | None = None

    def attends(self, layer: int) -> bool:
        return self.attention_layers is None or layer in self.attention_layers


SHAPES: Final[dict[str, Shape]] = {
    "smollm2-135m": Shape(
        "llama",
        "full attention, 30 layers",
        n_layer=30,
        n_embd=576,
        n_head=9,
        n_head_kv=3,
        head_size=64,
        n_ff=1536,
        n_ctx_train=32768,  # of the original 8192, in which no agent's session has room
        rope_base=100_000.0,
    ),
    "smollm2-17m": Shape(
        "llama",
        "an eighth of smollm2-135m, to draft for it",
        n_layer=14,
        n_embd=192,
        n_head=3,
        n_head_kv=1,
        head_size=64,
        n_ff=768,
        n_ctx_train=32768,
        rope_base=100_000.0,
    ),
    "gemma3-270m": Shape(
        "gemma3",
        "interleaved sliding window of 512, 18 layers",
        n_layer=18,
        n_embd=640,
        n_head=4,
        n_head_kv=1,
        head_size=256,
        n_ff=2048,
        n_ctx_train=32768,
        rope_base=1_000_000.0,
        window=512,
        window_pattern=6,
    ),
    "lfm2-350m": Shape(
        "lfm2",
        "hybrid: short convolutions, attention in 6 of 16 layers",
        n_layer=16,
        n_embd=1024,
        n_head=16,
        n_head_kv=8,
        head_size=64,
        n_ff=4608,
        n_ctx_train=128_000,
        rope_base=1_000_000.0,
        attention_layers=(2, 5, 8, 10, 12, 14),
    ),
    "lfm2-135m": Shape(
        "lfm2",
        "hybrid as lfm2-350m, narrower",
        n_layer=16,
        n_embd=640,
        n_head=10,
        n_head_kv=5,
        head_size=64,
        n_ff=2560,
        n_ctx_train=128_000,
        rope_base=1_000_000.0,
        attention_layers=(2, 5, 8, 10, 12, 14),
    ),
    "llama-3b-half": Shape(
        "llama",
        "a model of 3B at half its depth, 14 layers",
        n_layer=14,
        n_embd=3072,
        n_head=24,
        n_head_kv=8,
        head_size=128,
        n_ff=8192,
        n_ctx_train=131_072,
        rope_base=500_000.0,
    ),
    "mamba2-130m": Shape(
        "mamba2",
        "recurrent, 24 layers",
        n_layer=24,
        n_embd=768,
        attention_layers=(),
    ),
}


@dataclass(frozen=True)
class _Tensor:
    """A tensor to write: its shape as in numpy, and the function that makes its elements."""

    name: str
    shape: tuple[int, ...]
    gain: float = 1.0
    constant: float | None = None

    @property
    def is_matrix(self) -> bool:
        """True for what a quantized model quantizes."""
        return len(self.shape) > 1 and self.constant is None and "conv" not in self.name


def write_model(
    path: str | os.PathLike[str],
    shape: str = "smollm2-135m",
    *,
    quant: str = "q8_0",
    vocab: int = 49152,
    seed: int = 1,
    repeats: bool = False,
) -> None:
    """Write a model with random weights. Memory: about that of the embeddings as float32.

    Those of ``MIXTURES`` need as much room beside the file as the model takes in F16, meanwhile.

    Args:
        path: the file; it appears when it is complete.
        shape: a name of ``SHAPES``.
        quant: a name of ``QUANTS``, for all matrices (of ``MIXTURES``: most of them); the rest is
            float32.
        vocab: how many tokens the vocabulary has.
        seed: for the weights.
        repeats: what layers compute is multiplied with zeros, so that the model says its last token
            again and again, as fast as any other: two of them agree on every token.
    """
    if shape not in SHAPES or quant not in QUANTS:
        raise ValueError(f"there is no shape {shape!r} with quantization {quant!r}")
    target = Path(path)
    part, whole = (target.with_name(f".{target.name}.{os.getpid()}.{n}") for n in ("part", "f16"))
    mixed = quant in MIXTURES
    try:
        writer = _Writer(
            *(whole if mixed else part, SHAPES[shape], shape, "f16" if mixed else quant),
            *(make_vocabulary(vocab), seed),
        )
        writer.silent = _LAST_OF_A_LAYER if repeats else ()
        writer.write()
        if mixed:
            quantize_file(whole, part, quant)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)


def find_model(name: str) -> str | None:
    """The file of ``SHAPE[:vocab=N][:quant=Q][:repeats=yes]``, or of a real model.

    Returns:
        None if there is no such shape and no such model.

    Raises:
        ParameterError: the options behind the shape are wrong, or the model was not fetched.
    """
    if name in real_models.MODELS:
        path = real_models.path_of(name)
        if not path.exists():
            fetch = f"python -m tools.real_models {name}"
            raise ParameterError(f"--model {name}: {path} is not there; run {fetch}")
        return str(path)
    shape, *parts = name.split(":")
    if shape not in SHAPES:
        return None
    options = dict(part.partition("=")[::2] for part in parts)
    quant, vocab = options.pop("quant", "q8_0"), options.pop("vocab", "49152")
    repeats = options.pop("repeats", "no") == "yes"
    if options or not vocab.isdigit() or quant not in QUANTS:
        raise ParameterError(f"--model {name}: a shape is written SHAPE[:vocab=N][:quant=Q]")
    return made_model(shape, quant, int(vocab), repeats=repeats)


def made_model(
    shape: str, quant: str = "q8_0", vocab: int = 49152, *, repeats: bool = False
) -> str:
    """The file of such a model, which is written to the user's cache the first time."""
    source = b"".join(Path(__file__).with_name(each).read_bytes() for each in _SOURCES)
    version = hashlib.sha256(source + platform.python_version().encode()).hexdigest()[:10]
    kind = "-repeats" if repeats else ""
    path = cache_directory() / "bench-models" / f"{shape}-{quant}-{vocab}{kind}-{version}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_model(path, shape, quant=quant, vocab=vocab, repeats=repeats)
    return str(path)


class _Writer:
    """Writes one file, a tensor at a time."""

    def __init__(
        self, path: Path, shape: Shape, name: str, quant: str, vocabulary: Vocabulary, seed: int
    ) -> None:
        import gguf

        self.gguf = gguf
        self.shape = shape
        self.vocabulary = vocabulary
        self.random = np.random.default_rng(seed)
        self.silent: tuple[str, ...] = ()
        self.type = gguf.GGMLQuantizationType[quant.upper()]
        self.out: gguf.GGUFWriter = gguf.GGUFWriter(path, shape.architecture)
        self.out.add_name(f"{name} (random weights)")
        self.out.add_file_type(int(gguf.LlamaFileType[_file_type_name(quant)]))

    def write(self) -> None:
        self._hyper_parameters()
        self._vocabulary()
        tensors = list(_tensors(self.shape, len(self.vocabulary.tokens)))
        for tensor in tensors:
            self._announce(tensor)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_ti_data_to_file()
        for tensor in tensors:
            self.out.write_tensor_data(self._data(tensor))
        self.out.close()

    # metadata

    def _hyper_parameters(self) -> None:
        shape, out = self.shape, self.out
        out.add_context_length(shape.n_ctx_train)
        out.add_embedding_length(shape.n_embd)
        out.add_block_count(shape.n_layer)
        out.add_layer_norm_rms_eps(1e-5)
        if shape.n_head:
            self._attention_parameters()
        if shape.window:
            out.add_sliding_window(shape.window)
            out.add_uint32(
                f"{shape.architecture}.attention.sliding_window_pattern", shape.window_pattern
            )
        if shape.architecture == "lfm2":
            out.add_shortconv_l_cache(3)
        if shape.architecture == "mamba2":
            self._state_space_parameters()

    def _attention_parameters(self) -> None:
        shape, out = self.shape, self.out
        out.add_head_count(shape.n_head)
        if shape.attention_layers is None:
            out.add_head_count_kv(shape.n_head_kv)
        else:
            layers = range(shape.n_layer)
            out.add_head_count_kv([shape.n_head_kv * shape.attends(layer) for layer in layers])
        out.add_key_length(shape.head_size)
        out.add_value_length(shape.head_size)
        out.add_feed_forward_length(shape.n_ff)
        out.add_rope_dimension_count(shape.head_size)
        out.add_rope_freq_base(shape.rope_base)

    def _state_space_parameters(self) -> None:
        inner, state, heads = _state_space(self.shape)
        self.out.add_ssm_conv_kernel(4)
        self.out.add_ssm_inner_size(inner)
        self.out.add_ssm_state_size(state)
        self.out.add_ssm_time_step_rank(heads)
        self.out.add_ssm_group_count(1)

    def _vocabulary(self) -> None:
        vocabulary, out, kinds = self.vocabulary, self.out, self.gguf.TokenType
        types = [kinds.NORMAL] * vocabulary.first_special + [kinds.CONTROL] * 3
        types += [kinds.USER_DEFINED] * (len(SPECIAL_TOKENS) - 3)
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("gpt-2")
        out.add_token_list(vocabulary.tokens)
        out.add_token_types(types)
        out.add_token_merges(vocabulary.merges)
        out.add_bos_token_id(vocabulary.special("<|endoftext|>"))
        out.add_eos_token_id(vocabulary.special("<|im_end|>"))
        out.add_pad_token_id(vocabulary.special("<|endoftext|>"))
        out.add_add_bos_token(False)
        out.add_chat_template(CHAT_TEMPLATE)

    # tensors

    def _type_of(self, tensor: _Tensor) -> gguf.GGMLQuantizationType:
        types = self.gguf.GGMLQuantizationType
        if not tensor.is_matrix:
            return types.F32
        block, _ = self.gguf.GGML_QUANT_SIZES[self.type]
        return types.F16 if tensor.shape[-1] % block else self.type

    def _announce(self, tensor: _Tensor) -> None:
        kind = self._type_of(tensor)
        block, size = self.gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(tensor.shape)) // block * size
        row_bytes = (*tensor.shape[:-1], tensor.shape[-1] // block * size)
        quantized = kind not in (self.gguf.GGMLQuantizationType.F32,)
        self.out.add_tensor_info(
            tensor.name,
            row_bytes if quantized else tensor.shape,
            np.dtype(np.uint8 if quantized else np.float32),
            n_bytes,
            raw_dtype=kind if quantized else None,
        )

    def _data(self, tensor: _Tensor) -> npt.NDArray[Any]:
        if tensor.constant is not None:
            return np.full(tensor.shape, tensor.constant, np.float32)
        scale = np.float32(tensor.gain / np.sqrt(tensor.shape[-1]))
        values: Array = self.random.standard_normal(tensor.shape, np.float32)
        values *= 0 if tensor.name.endswith(self.silent) else scale
        data: npt.NDArray[Any] = self.gguf.quantize(values, self._type_of(tensor))
        return data


def _file_type_name(quant: str) -> str:
    return "ALL_F32" if quant == "f32" else f"MOSTLY_{quant.upper()}"


def _state_space(shape: Shape) -> tuple[int, int, int]:
    """Return the inner size, the state size and the number of heads of a mamba2 layer."""
    return 2 * shape.n_embd, 128, 2 * shape.n_embd // 64


def _tensors(shape: Shape, n_vocab: int) -> Iterator[_Tensor]:
    """List all tensors; the embeddings also serve as the output layer."""
    norm = "token_embd_norm" if shape.architecture == "lfm2" else "output_norm"
    yield _Tensor("token_embd.weight", (n_vocab, shape.n_embd))
    yield _Tensor(f"{norm}.weight", (shape.n_embd,), constant=1.0)
    mixers = {"lfm2": _convolution_tensors, "mamba2": _state_space_tensors}
    mixer = mixers.get(shape.architecture, _attention_tensors)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}"
        yield _Tensor(f"{block}.attn_norm.weight", (shape.n_embd,), constant=1.0)
        yield from (_attention_tensors if shape.attends(layer) else mixer)(shape, block)
        yield from _feed_forward_tensors(shape, block)


_Part = Callable[[Shape, str], Iterator[_Tensor]]


def _attention_tensors(shape: Shape, block: str) -> Iterator[_Tensor]:
    queries, keys = shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    yield _Tensor(f"{block}.attn_q.weight", (queries, shape.n_embd))
    yield _Tensor(f"{block}.attn_k.weight", (keys, shape.n_embd))
    yield _Tensor(f"{block}.attn_v.weight", (keys, shape.n_embd))
    yield _Tensor(f"{block}.attn_output.weight", (shape.n_embd, queries))
    if shape.architecture in ("gemma3", "lfm2"):
        yield _Tensor(f"{block}.attn_q_norm.weight", (shape.head_size,), constant=1.0)
        yield _Tensor(f"{block}.attn_k_norm.weight", (shape.head_size,), constant=1.0)


def _convolution_tensors(shape: Shape, block: str) -> Iterator[_Tensor]:
    yield _Tensor(f"{block}.shortconv.conv.weight", (shape.n_embd, 3))
    yield _Tensor(f"{block}.shortconv.in_proj.weight", (3 * shape.n_embd, shape.n_embd))
    yield _Tensor(f"{block}.shortconv.out_proj.weight", (shape.n_embd, shape.n_embd))


def _state_space_tensors(shape: Shape, block: str) -> Iterator[_Tensor]:
    inner, state, heads = _state_space(shape)
    channels = inner + 2 * state
    yield _Tensor(f"{block}.ssm_in.weight", (inner + channels + heads, shape.n_embd))
    yield _Tensor(f"{block}.ssm_conv1d.weight", (channels, 4))
    yield _Tensor(f"{block}.ssm_conv1d.bias", (channels,), constant=0.0)
    yield _Tensor(f"{block}.ssm_dt.bias", (heads,), constant=-1.0)
    yield _Tensor(f"{block}.ssm_a", (heads, 1), constant=-0.1)
    yield _Tensor(f"{block}.ssm_d", (heads, 1), constant=0.5)
    yield _Tensor(f"{block}.ssm_norm.weight", (1, inner), constant=1.0)
    yield _Tensor(f"{block}.ssm_out.weight", (shape.n_embd, inner))


def _feed_forward_tensors(shape: Shape, block: str) -> Iterator[_Tensor]:
    if not shape.n_ff:
        return
    yield _Tensor(f"{block}.ffn_norm.weight", (shape.n_embd,), constant=1.0)
    yield _Tensor(f"{block}.ffn_gate.weight", (shape.n_ff, shape.n_embd))
    yield _Tensor(f"{block}.ffn_up.weight", (shape.n_ff, shape.n_embd))
    yield _Tensor(f"{block}.ffn_down.weight", (shape.n_embd, shape.n_ff))
    if shape.architecture == "gemma3":
        yield _Tensor(f"{block}.post_attention_norm.weight", (shape.n_embd,), constant=1.0)
        yield _Tensor(f"{block}.post_ffw_norm.weight", (shape.n_embd,), constant=1.0)


# --- command line ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks make-model",
        description="Write a model with random weights and a realistic shape.",
        epilog="shapes: " + "; ".join(f"{name} ({s.description})" for name, s in SHAPES.items()),
    )
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm2-135m")
    parser.add_argument("--quant", choices=QUANTS, default="q8_0")
    parser.add_argument(
        "--vocab", type=int, default=49152, metavar="N", help="tokens, e.g. 49152 or 152064"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the weights")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        write_model(
            options.out,
            options.shape,
            quant=options.quant,
            vocab=options.vocab,
            seed=options.seed,
        )
    except ImportError as error:
        print(f"{error}; install the extra: pip install 'llama-py[bench]'", file=sys.stderr)
        return 1
    except (LlamaError, OSError, ValueError) as error:
        parser.error(str(error))
    size = options.out.stat().st_size / 1e6
    print(f"{options.out}: {size:.0f} MB in {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
