"""Rules for metadata and tensors, whose violation would make llama.cpp end the process.

llama.cpp reports most contradictions as errors, which are left to it because it knows each
architecture. Others end the process (``GGML_ASSERT``, a division by zero, a crash inside a layer)
or never return; the rules here find those before. Most of them restate assertions of
``llama_model_base::load_hparams``, of the graphs in ``src/models`` and of ``ggml-cpu``.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from llama_py.errors import InvalidModelError
from llama_py.gguf.architectures import (
    DELTA_NET,
    EQUAL_HEADS,
    HEADS_ALONE,
    MAMBA2,
    NEEDED,
    ROTATES_WHOLE_HEAD,
    SQUARE_QUERIES,
)
from llama_py.gguf.reader import GGUFHeader
from llama_py.gguf.strings import duplicate_string, unspelled_byte
from llama_py.gguf.templates import template_problem

__all__ = ["NOT_FOR_WEIGHTS", "check_rules"]

_MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS
_MAX_WINDOW: Final = 2**30
_DATA_ALIGNMENT: Final = 32  # TENSOR_ALIGNMENT: mapped tensors must lie on it
_GATING_FUNCTIONS: Final = range(5)  # LLAMA_EXPERT_GATING_FUNC_TYPE_*
_VALUE_GATING: Final = (0, 1, 2)  # none (then it is sigmoid), softmax, sigmoid
_ROPE_SCALING: Final = ("none", "linear", "yarn", "longrope")
_CLASSIFIER_ACTIVATIONS: Final = ("gelu", "silu", "tanh")

#: Types of activations and of tables; there is no matrix multiplication with them.
NOT_FOR_WEIGHTS: Final = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})

#: Tensors of element-wise operations, which are F32 however the rest is quantized.
_ALWAYS_F32: Final = re.compile(
    r"^token_types\.weight$|_norm\.weight$|\.bias$|\.ssm_(a|d)$|\.ssm_conv1d\.weight$|\.shortconv\.conv\.weight$"
)


def check_rules(headers: Sequence[GGUFHeader], architecture: str) -> None:
    """Check the metadata and the tensors of a model (of all its parts, if it is split).

    Raises:
        InvalidModelError: llama.cpp would end the process, or never return.
    """
    facts = _HyperParameters(headers, architecture)
    for rule in _RULES:
        for problem in rule(facts):
            raise InvalidModelError(problem)


class _HyperParameters:
    """The hyper-parameters of a model, by name without the prefix of the architecture."""

    def __init__(self, headers: Sequence[GGUFHeader], architecture: str) -> None:
        self.headers = headers
        self.header = headers[0]
        self.architecture = architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.header.types

    def number(self, name: str) -> int | float | None:
        """Return a number, or None if it is missing or of another type."""
        value = self.header.scalars.get(self.key(name))
        return None if isinstance(value, (bool, str)) else value

    def integer(self, name: str, default: int = 0) -> int:
        value = self.number(name)
        return value if isinstance(value, int) else default

    def text(self, name: str) -> str | None:
        value = self.header.scalars.get(self.key(name))
        return value if isinstance(value, str) else None

    def per_layer(self, name: str) -> list[int]:
        """Return the one number for all layers, or those of an array with one for each."""
        array = self.header.arrays.get(self.key(name))
        if array is not None and array.values is not None:
            return [int(value) for value in array.values if math.isfinite(value)]
        value = self.number(name)
        return [] if value is None or not math.isfinite(value) else [int(value)]

    def head_sizes(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (suffix, key length, value length, rotated length), also for windowed layers."""
        heads = (self.per_layer("attention.head_count") or [0])[0]
        if heads <= 0:
            return
        even = self.integer("embedding_length") // heads
        keys = self.integer("attention.key_length", even)
        values = self.integer("attention.value_length", even)
        rotated = self.integer("rope.dimension_count", keys)
        yield "", keys, values, rotated
        yield (
            "_swa",
            self.integer("attention.key_length_swa", keys),
            self.integer("attention.value_length_swa", values),
            self.integer("rope.dimension_count_swa", rotated),
        )


_Rule = Callable[[_HyperParameters], Iterator[str]]
_RULES: list[_Rule] = []


def _rule(function: _Rule) -> _Rule:
    """Have ``check_rules`` apply this rule, after those above it."""
    _RULES.append(function)
    return function


@_rule
def _layers(facts: _HyperParameters) -> Iterator[str]:
    layers = facts.integer("block_count", 1)
    if not 0 < layers <= _MAX_LAYERS:
        yield f"{facts.key('block_count')} is {layers}; it must be 1 to {_MAX_LAYERS}"
    for name in ("nextn_predict_layers", "n_deepstack_layers"):
        some = facts.integer(name)
        if some > layers:
            yield f"{facts.key(name)} is {some}, of {layers} layers in all"


@_rule
def _experts(facts: _HyperParameters) -> Iterator[str]:
    experts = facts.integer("expert_count")
    used = max(facts.per_layer("expert_used_count"), default=0)
    if experts <= 1 and facts.architecture in ("hunyuan_vl", "hunyuan-dense"):
        experts = used = 0
    if experts > _MAX_EXPERTS:
        yield f"{facts.key('expert_count')} is {experts}; at most {_MAX_EXPERTS} are supported"
    if used > experts:
        yield f"{facts.key('expert_used_count')} is {used}, of {experts} experts in all"
    if experts and used <= 0:
        yield f"there are {experts} experts, but {facts.key('expert_used_count')} is {used}"
    gating = facts.integer("expert_gating_func")
    if gating not in _GATING_FUNCTIONS:
        yield f"{facts.key('expert_gating_func')} is {gating}, which is not known"
    groups = facts.integer("expert_group_count")
    used_groups = facts.integer("expert_group_used_count")
    wrong = groups >= max(experts, 1) if groups else False
    if groups > 1 and not wrong:
        wrong = experts % groups != 0 or not 0 < used_groups < groups
    if wrong:
        yield (
            f"{facts.key('expert_group_count')} is {groups}, with {used_groups} of them used and "
            f"{experts} experts: these do not go together"
        )


@_rule
def _value_experts(facts: _HyperParameters) -> Iterator[str]:
    """Check the experts that K2 Horizon has for a token's values, and its groups of norms."""
    if facts.architecture != "k2-horizon":
        return
    experts = facts.integer("attention.value_expert_count")
    used = facts.integer("attention.value_expert_used_count")
    if experts > _MAX_EXPERTS or used > experts or (experts > 0) != (used > 0):
        yield (
            f"{facts.key('attention.value_expert_used_count')} is {used}, of {experts} experts "
            f"(at most {_MAX_EXPERTS})"
        )
    gating = facts.integer("expert_gating_func")
    if experts and gating not in _VALUE_GATING:
        yield f"{facts.key('expert_gating_func')} is {gating}, which experts for values do not have"
    groups, width = facts.integer("attention.group_norm_groups"), facts.integer("embedding_length")
    if groups < 0 or (groups and width % groups):
        yield (
            f"{facts.key('attention.group_norm_groups')} is {groups}, which does not divide "
            f"{facts.key('embedding_length')}, {width}"
        )


@_rule
def _classifier(facts: _HyperParameters) -> Iterator[str]:
    name = facts.text("classifier.activation")
    if name is not None and name not in _CLASSIFIER_ACTIVATIONS:
        known = ", ".join(_CLASSIFIER_ACTIVATIONS)
        yield f"{facts.key('classifier.activation')} is {name!r}, not one of {known}"


@_rule
def _heads_alone(facts: _HyperParameters) -> Iterator[str]:
    """Find files of next-token heads: the first layer of the model is not there to be computed."""
    first = HEADS_ALONE.get(facts.architecture)
    if first is None or facts.integer("nextn_predict_layers") <= 0:
        return
    name = f"blk.0.{first}.weight"
    if not any(tensor.name == name for header in facts.headers for tensor in header.tensors):
        yield (
            "the file has the next-token heads (MTP) of a model and none of its layers "
            f"({name} is missing): load the whole model, which drafts with its own heads if the "
            "file has them"
        )


@_rule
def _rope_scaling(facts: _HyperParameters) -> Iterator[str]:
    name = facts.text("rope.scaling.type")
    if name is not None and name not in _ROPE_SCALING:
        yield f"{facts.key('rope.scaling.type')} is {name!r}, not one of {', '.join(_ROPE_SCALING)}"


@_rule
def _epsilons(facts: _HyperParameters) -> Iterator[str]:
    for name in ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon"):
        value = facts.number(f"attention.{name}")
        if value is not None and not 0 <= value < math.inf:
            yield f"{facts.key('attention.' + name)} is {value}; it must not be negative"


@_rule
def _rope_sections(facts: _HyperParameters) -> Iterator[str]:
    """Check that the sections of a multi-dimensional rotation fit into a head."""
    sections = facts.per_layer("rope.dimension_sections")
    size = max((keys for _, keys, _, _ in facts.head_sizes()), default=0)
    if any(each < 0 for each in sections) or sum(sections) > size > 0:
        yield f"{facts.key('rope.dimension_sections')} is {sections}, for heads of {size} elements"


@_rule
def _heads(facts: _HyperParameters) -> Iterator[str]:
    for suffix, keys, values, rotated in facts.head_sizes():
        key = facts.key(f"rope.dimension_count{suffix}")
        none = rotated == 0 and not facts.integer("attention.kv_lora_rank")
        if facts.has(f"rope.dimension_count{suffix}") and (none or rotated % 2):
            yield f"{key} is {rotated}; it must be even, and not zero"
        if rotated > keys:
            yield f"{key} is {rotated}, but attention heads have only {keys} elements"
        whole = facts.architecture in ROTATES_WHOLE_HEAD
        if whole and rotated != keys:
            yield f"{key} is {rotated}, but this architecture rotates whole heads of {keys}"
        if (whole or facts.architecture in EQUAL_HEADS) and keys != values:
            yield (
                f"attention heads have keys of {keys} and values of {values} elements, which "
                f"the architecture {facts.architecture!r} does not allow"
            )


@_rule
def _window(facts: _HyperParameters) -> Iterator[str]:
    window = facts.integer("attention.sliding_window")
    if window >= _MAX_WINDOW:
        yield f"{facts.key('attention.sliding_window')} is {window}: that is absurd"
    pattern = facts.per_layer("attention.sliding_window_pattern")
    is_array = facts.key("attention.sliding_window_pattern") in facts.header.arrays
    layers = facts.integer("block_count") - facts.integer("nextn_predict_layers")
    if is_array and len(pattern) < layers:
        yield f"the pattern of windowed layers has {len(pattern)} entries for {layers} layers"
    if window > 0 and (not any(pattern) if is_array else pattern == [1]):
        yield (
            f"{facts.key('attention.sliding_window')} is {window}, but the pattern of the "
            "layers has no layer with a window"
        )


@_rule
def _temperature(facts: _HyperParameters) -> Iterator[str]:
    length = facts.number("attention.temperature_length")
    own_default = facts.architecture == "llama4"
    if facts.number("attention.temperature_scale") and length == 0 and not own_default:
        yield f"{facts.key('attention.temperature_length')} is 0, but there is a scale for it"


@_rule
def _delta_net(facts: _HyperParameters) -> Iterator[str]:
    if facts.architecture not in DELTA_NET:
        return
    inner, size = facts.integer("ssm.inner_size"), facts.integer("ssm.state_size")
    values, keys = facts.integer("ssm.time_step_rank"), facts.integer("ssm.group_count")
    if not keys or not values or values % keys or inner != values * size:
        yield (
            f"{facts.key('ssm.inner_size')} is {inner}, which {values} heads of {size} elements "
            f"({keys} of keys) do not make"
        )


@_rule
def _state_space(facts: _HyperParameters) -> Iterator[str]:
    if facts.architecture not in MAMBA2:
        return
    inner = facts.integer("ssm.inner_size", 1)
    heads = facts.integer("ssm.time_step_rank", 1)
    groups = facts.integer("ssm.group_count", 1)
    if not (inner and heads and groups) or inner % heads or inner % groups or heads % groups:
        yield (
            f"{facts.key('ssm.inner_size')} is {inner}, which {heads} heads (ssm.time_step_rank) "
            f"in {groups} groups (ssm.group_count) cannot share"
        )
    if facts.architecture == "granitehybrid" and inner != 2 * facts.integer("embedding_length"):
        yield (
            f"{facts.key('ssm.inner_size')} is {inner}; it must be twice the embedding length, "
            f"{facts.integer('embedding_length')}"
        )


@_rule
def _widths(facts: _HyperParameters) -> Iterator[str]:
    """Check head_count where the query tensor has the width of the embeddings."""
    if facts.architecture not in SQUARE_QUERIES:
        return
    width = facts.integer("embedding_length")
    counts = set(facts.per_layer("attention.head_count")) - {0}
    if not counts:
        yield f"{facts.key('attention.head_count')} is missing, or 0"
    for heads in counts:
        size = facts.integer("attention.key_length", width // heads if heads > 0 else 0)
        if heads * size != width:
            yield (
                f"{heads} attention heads of {size} elements do not make "
                f"{facts.key('embedding_length')}, which is {width}"
            )


@_rule
def _short_convolution(facts: _HyperParameters) -> Iterator[str]:
    if facts.integer("shortconv.l_cache", 2) < 2 and facts.architecture in ("lfm2", "lfm2moe"):
        yield f"{facts.key('shortconv.l_cache')} must be at least 2"


@_rule
def _vocabulary(facts: _HyperParameters) -> Iterator[str]:
    model = facts.header.scalars.get("tokenizer.ggml.model")
    if model in ("none", "no_vocab"):
        if facts.architecture != "wavtokenizer-dec":  # which reads codes, and writes sound
            yield f"the file has no vocabulary (tokenizer.ggml.model is {model!r})"
        return
    tokens = facts.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.type != "str":
        return  # llama.cpp says so
    if not tokens.count:
        yield "the vocabulary is empty (tokenizer.ggml.tokens)"
    twice = duplicate_string(facts.header.buffer, tokens.start, tokens.count)
    if twice is not None:
        yield f"the token {twice!r} is twice in the vocabulary (tokenizer.ggml.tokens)"


@_rule
def _byte_tokens(facts: _HyperParameters) -> Iterator[str]:
    """Find the tokens of a SentencePiece vocabulary that spell bytes.

    Text that no other token covers is spelled with them; the tokenizer throws an exception that
    nothing catches if one is missing. Bytes below 0x80 may also be tokens of one character.
    """
    tokens = facts.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or facts.header.scalars.get("tokenizer.ggml.model") != "llama":
        return
    at = tokens.start
    for byte in range(0x80, 0x100):
        text = b"<0x%02X>" % byte
        entry = struct.pack("<Q", len(text)) + text
        found = facts.header.buffer.find(entry, at, tokens.end)
        if found < 0:
            found = facts.header.buffer.find(entry, tokens.start, tokens.end)
        if found < 0:
            yield f"the vocabulary has no token {text.decode()}, without which it cannot spell text"
        at = found


@_rule
def _unspelled_byte(facts: _HyperParameters) -> Iterator[str]:
    """Find bytes that an RWKV vocabulary has no token for, although tokens begin with them.

    Its tokenizer goes on behind the longest token that fits. Where none does, it stays where it
    is forever, and takes memory all the time.
    """
    tokens = facts.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or facts.header.scalars.get("tokenizer.ggml.model") != "rwkv":
        return
    byte = unspelled_byte(facts.header.buffer, tokens.start, tokens.count)
    if byte is not None:
        yield (
            f"the vocabulary has tokens that begin with the byte 0x{byte:02X}, and none for this "
            "byte alone, without which its tokenizer would never end"
        )


@_rule
def _templates(facts: _HyperParameters) -> Iterator[str]:
    """Chat templates that llama.cpp's parser, which is recursive, would not survive."""
    for key, value in facts.header.scalars.items():
        if not key.startswith("tokenizer.chat_template") or not isinstance(value, str):
            continue
        if problem := template_problem(value):
            yield f"its chat template ({key}) cannot be used: {problem}"


@_rule
def _needed_tensors(facts: _HyperParameters) -> Iterator[str]:
    """Find missing tensors that llama.cpp treats as optional when loading, but uses in any case."""
    table = NEEDED.get(facts.architecture)
    if table is None:
        return
    names = {tensor.name for header in facts.headers for tensor in header.tensors}
    for name in names:
        match = re.fullmatch(r"(blk\.\d+\.)(.+)", name)
        for needed in table.get(match[2], ()) if match else ():
            if match and not any(match[1] + other in names for other in needed):
                yield f"tensor {match[1]}{needed[0]} is missing"


@_rule
def _head_counts(facts: _HyperParameters) -> Iterator[str]:
    """Check head_count against the tensor that joins the heads."""
    counts = facts.per_layer("attention.head_count")
    sizes = list(facts.head_sizes())
    for header in facts.headers:
        for tensor in header.tensors:
            match = re.fullmatch(r"blk\.(\d+)\.attn_output\.weight", tensor.name)
            if match is None or not counts or not tensor.shape:
                continue
            heads = counts[min(int(match[1]), len(counts) - 1)]
            wrong = heads > 0 and tensor.shape[0] % heads != 0
            if facts.architecture in EQUAL_HEADS | ROTATES_WHOLE_HEAD and heads > 0:
                wrong |= tensor.shape[0] not in {heads * size for _, _, size, _ in sizes}
            if wrong:
                yield (
                    f"tensor {tensor.name!r} has rows of {tensor.shape[0]} elements, which "
                    f"do not fit {heads} heads ({facts.key('attention.head_count')})"
                )


@_rule
def _tensors(facts: _HyperParameters) -> Iterator[str]:
    for header in facts.headers:
        for tensor in header.tensors:
            if (header.data_offset + tensor.offset) % _DATA_ALIGNMENT:
                yield (
                    f"the data of tensor {tensor.name!r} is not aligned to {_DATA_ALIGNMENT} "
                    "bytes (general.alignment is too small): write the file again, e.g. with "
                    "llama.cpp's llama-quantize"
                )
            if tensor.type == "F32":
                continue
            # The CPU backend lacks operations for other types, and would end the process.
            named = tensor.name.endswith((".weight", ".bias", ".scale", ".input_scale"))
            # Vectors of integers are tables (which token, which expert), unless named as weights.
            vector = len(tensor.shape) <= 1 and (named or tensor.type not in NOT_FOR_WEIGHTS)
            if vector or _ALWAYS_F32.search(tensor.name):
                yield (
                    f"tensor {tensor.name!r} has the type {tensor.type}; norms, biases and vectors "
                    "must be F32: convert or quantize the model again with llama.cpp's own tools"
                )
            elif named and tensor.type in NOT_FOR_WEIGHTS and "tid2eid" not in tensor.name:
                yield f"tensor {tensor.name!r} has the type {tensor.type}, which no weight can have"
