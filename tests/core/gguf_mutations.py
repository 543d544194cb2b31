"""Deterministic damage to GGUF files: see ``test_mutated_gguf.py``.

``mutate(model, seed)`` parses a healthy file, applies one mutation (a flipped byte, a changed
hyper-parameter, a tensor of another type, NaN weights, ...) and writes it again.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9

#: Values that are often at the edge of something.
EDGES = (0, 1, 2, 3, 7, 31, 255, 256, 4097, 65535, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**63, -1)


# --- a GGUF as data, with every field open to mutation --------------------------------------------


@dataclass
class Pair:
    """A key with its value type and the bytes of the value as they are in the file."""

    key: bytes
    type: int
    raw: bytes


@dataclass
class Tensor:
    name: bytes
    dims: list[int]
    type: int
    offset: int


@dataclass
class Gguf:
    pairs: list[Pair]
    tensors: list[Tensor]
    data: bytearray
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_pairs: int | None = None
    cut: int | None = None
    patches: list[tuple[float, bytes]] = field(default_factory=list)

    def encode(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        head = bytearray(self.magic + struct.pack("<IQQ", self.version, n_tensors, n_pairs))
        for pair in self.pairs:
            head += _string(pair.key) + struct.pack("<I", pair.type) + pair.raw
        for tensor in self.tensors:
            head += _string(tensor.name) + struct.pack("<I", len(tensor.dims))
            head += b"".join(_u64(size) for size in tensor.dims)
            head += struct.pack("<I", tensor.type & 0xFFFFFFFF) + _u64(tensor.offset)
        head += bytes(-len(head) % 32)
        for place, data in self.patches:
            at = int(place * len(head))
            head[at : at + len(data)] = data
        whole = bytes(head) + bytes(self.data)
        return whole if self.cut is None else whole[: self.cut]


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value & (2**64 - 1))


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def parse(data: bytes) -> Gguf:
    """Read a healthy file; the mutations start from it."""
    n_tensors, n_pairs = struct.unpack_from("<QQ", data, 8)
    at = 24
    pairs: list[Pair] = []
    for _ in range(n_pairs):
        key, at = _read_string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        end = _skip_value(data, at + 4, kind)
        pairs.append(Pair(key, kind, data[at + 4 : end]))
        at = end
    tensors: list[Tensor] = []
    for _ in range(n_tensors):
        name, at = _read_string(data, at)
        (n_dims,) = struct.unpack_from("<I", data, at)
        dims = list(struct.unpack_from(f"<{n_dims}Q", data, at + 4))
        kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * n_dims)
        tensors.append(Tensor(name, dims, kind, offset))
        at += 16 + 8 * n_dims
    at += -at % 32
    return Gguf(pairs, tensors, bytearray(data[at:]))


def _read_string(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size], at + 8 + size


def _skip_value(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _read_string(data, at)[1]
    if kind != ARRAY:
        return at + struct.calcsize(SCALARS[kind])
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner != STRING:
        return at + int(count) * struct.calcsize(SCALARS[inner])
    for _ in range(count):
        at = _read_string(data, at)[1]
    return at


# --- mutations ------------------------------------------------------------------------------------

Mutation = Callable[[Gguf, random.Random], None]


def flip_header_bits(model: Gguf, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        model.patches.append((rng.random(), bytes([rng.randrange(256)])))


def overwrite_header(model: Gguf, rng: random.Random) -> None:
    model.patches.append((rng.random(), rng.randbytes(rng.choice((4, 8, 32, 200)))))


def truncate(model: Gguf, rng: random.Random) -> None:
    size = len(model.encode())
    model.cut = rng.choice((rng.randrange(64), rng.randrange(size), size - rng.randrange(1, 4000)))


def change_counts(model: Gguf, rng: random.Random) -> None:
    value = rng.choice(EDGES) & (2**64 - 1)
    which = rng.randrange(3)
    if which == 0:
        model.n_tensors = rng.choice((value, len(model.tensors) - 1, len(model.tensors) + 1))
    elif which == 1:
        model.n_pairs = rng.choice((value, len(model.pairs) - 1, len(model.pairs) + 1))
    else:
        model.version = value & 0xFFFFFFFF


def change_scalar(model: Gguf, rng: random.Random) -> None:
    pair = rng.choice([p for p in model.pairs if p.type in SCALARS])
    form = SCALARS[pair.type]
    if form in "fd":
        floats = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 3.0, -float("inf"))
        pair.raw = struct.pack(f"<{form}", rng.choice(floats))
        return
    (old,) = struct.unpack(f"<{form}", pair.raw)
    near = (old + 1, old - 1, old * 2, old // 2, old * 3, old + 32, rng.randrange(200))
    value = rng.choice((*EDGES, *near, *near))
    size = struct.calcsize(form)
    pair.raw = (value & (2 ** (8 * size) - 1)).to_bytes(size, "little")


def change_type(model: Gguf, rng: random.Random) -> None:
    pair = rng.choice(model.pairs)
    pair.type = rng.choice((*SCALARS, STRING, 13, 99))
    if pair.type in SCALARS:
        size = struct.calcsize(SCALARS[pair.type])
        pair.raw = pair.raw[:size].ljust(size, b"\1")
    elif pair.type == STRING:
        pair.raw = _string(rng.choice((b"", b"llama", b"4", b"x" * 50)))


def wrap_in_array(model: Gguf, rng: random.Random) -> None:
    pair = rng.choice([p for p in model.pairs if p.type in SCALARS])
    count = rng.choice((0, 1, 4, 4, 513))
    pair.raw = struct.pack("<IQ", pair.type, count) + pair.raw * count
    pair.type = ARRAY


def change_array(model: Gguf, rng: random.Random) -> None:
    pair = rng.choice([p for p in model.pairs if p.type == ARRAY])
    inner, count = struct.unpack_from("<IQ", pair.raw)
    if inner == STRING:
        strings = _array_strings(pair)
        _change_strings(strings, rng)
        pair.raw = struct.pack("<IQ", STRING, len(strings)) + b"".join(map(_string, strings))
        return
    size = struct.calcsize(SCALARS[inner])
    values = bytearray(pair.raw[12:])
    if rng.random() < 0.5:
        count = max(0, count + rng.choice((-count, -1, 1, 100)))
        values = values[: count * size].ljust(count * size, b"\0")
    for _ in range(rng.choice((1, 1, 20)) if values else 0):
        at = rng.randrange(len(values) // size) * size
        values[at : at + size] = (rng.choice(EDGES) & (2 ** (8 * size) - 1)).to_bytes(
            size, "little"
        )
    if rng.random() < 0.2:
        inner = rng.choice((4, 5, 6))
    pair.raw = struct.pack("<IQ", inner, count) + bytes(values)


def _array_strings(pair: Pair) -> list[bytes]:
    (count,) = struct.unpack_from("<Q", pair.raw, 4)
    at, strings = 12, []
    for _ in range(count):
        text, at = _read_string(pair.raw, at)
        strings.append(text)
    return strings


def _change_strings(strings: list[bytes], rng: random.Random) -> None:
    for _ in range(rng.choice((1, 3, 30))):
        at = rng.randrange(len(strings)) if strings else 0
        action = rng.randrange(6)
        if action == 0:
            del strings[at:]
        elif action == 1:
            strings.insert(at, b"extra%d" % rng.randrange(999))
        elif strings:
            other = strings[rng.randrange(len(strings))]
            new = (b"", rng.randbytes(5), other, b"\xff\xfe", b"a b c", b"\0", b"y" * 3000)
            at = min(at, len(strings) - 1)
            strings[at] = rng.choice(new)


def change_string(model: Gguf, rng: random.Random) -> None:
    pair = rng.choice([p for p in model.pairs if p.type == STRING])
    texts = (
        b"",
        b"llama",
        b"mamba",
        b"bert",
        b"t5",
        b"gpt2",
        b"spm",
        b"no_vocab",
        b"none",
        b"\xff",
    )
    noise = (b"x" * 100_000, rng.randbytes(12), b"{% for x in %}", b"{{ messages | nofilter }}")
    pair.raw = _string(rng.choice((*texts, *noise)))


def remove_pair(model: Gguf, rng: random.Random) -> None:
    del model.pairs[rng.randrange(len(model.pairs))]


def duplicate_pair(model: Gguf, rng: random.Random) -> None:
    pair = replace(rng.choice(model.pairs))
    pair.key += rng.choice((b"", b"x", b"_swa"))
    model.pairs.insert(rng.randrange(len(model.pairs)), pair)


def add_known_key(model: Gguf, rng: random.Random) -> None:
    """Set an optional hyper-parameter that this model does not have."""
    arch = model.pairs[0].raw[8:]
    key, form, values = rng.choice(OPTIONAL)
    kind = {"I": 4, "f": 6, "?": 7, "s": STRING, "i": 5}[form]
    value = rng.choice(values)
    raw = _string(str(value).encode()) if form == "s" else struct.pack(f"<{form}", value)
    name = (
        key.encode()
        if key.startswith(("general", "tokenizer", "split"))
        else arch + b"." + key.encode()
    )
    model.pairs = [pair for pair in model.pairs if pair.key != name]
    model.pairs.append(Pair(name, kind, raw))


_UINTS = (0, 1, 2, 3, 4, 5, 8, 16, 31, 33, 64, 100, 512, 65536, 2**31 - 1, 2**31, 2**32 - 1)
OPTIONAL: tuple[tuple[str, str, tuple[float | int | str, ...]], ...] = (
    ("expert_count", "I", _UINTS),
    ("expert_used_count", "I", _UINTS),
    ("expert_group_count", "I", _UINTS),
    ("nextn_predict_layers", "I", _UINTS),
    ("attention.sliding_window", "I", _UINTS),
    ("attention.sliding_window_pattern", "I", _UINTS),
    ("attention.key_length", "I", _UINTS),
    ("attention.value_length", "I", _UINTS),
    ("attention.key_length_swa", "I", _UINTS),
    ("attention.causal", "?", (True, False)),
    ("attention.max_alibi_bias", "f", (0.0, 8.0, 1e30)),
    ("attention.clamp_kqv", "f", (0.0, 8.0, -1.0)),
    ("attention.scale", "f", (0.0, 1e30, -1.0)),
    ("embedding_length_out", "I", _UINTS),
    ("pooling_type", "I", _UINTS),
    ("rope.dimension_count", "I", _UINTS),
    ("rope.dimension_count_swa", "I", _UINTS),
    ("rope.scaling.type", "s", ("none", "linear", "yarn", "longrope", "bogus", "")),
    ("rope.scaling.factor", "f", (0.0, -1.0, 1e30, 1e-30)),
    ("rope.scaling.original_context_length", "I", _UINTS),
    ("rope.scaling.attn_factor", "f", (0.0, -1.0, 1e30)),
    ("rope.freq_base", "f", (0.0, -1.0, 1.0, 1e30)),
    ("context_length", "I", _UINTS),
    ("vocab_size", "I", _UINTS),
    ("logit_scale", "f", (0.0, -1.0, 1e30)),
    ("final_logit_softcapping", "f", (0.0, -1.0, 1e30)),
    ("general.alignment", "I", (0, 1, 2, 3, 8, 16, 32, 33, 64, 4096, 2**31)),
    ("general.file_type", "I", _UINTS),
    ("general.quantization_version", "I", _UINTS),
    ("split.count", "I", (0, 1, 2, 3, 65535)),
    ("split.no", "I", (0, 1, 2, 3, 65535)),
    ("tokenizer.ggml.pre", "s", ("default", "llama3", "bogus", "", "qwen2", "gpt-4o")),
    ("tokenizer.ggml.bos_token_id", "I", _UINTS),
    ("tokenizer.ggml.unknown_token_id", "I", _UINTS),
    ("tokenizer.ggml.token_type_count", "I", _UINTS),
    ("tokenizer.ggml.add_bos_token", "?", (True, False)),
    ("tokenizer.ggml.add_space_prefix", "?", (True, False)),
    ("tokenizer.ggml.add_eos_token", "?", (True, False)),
)


def change_tensor(model: Gguf, rng: random.Random) -> None:
    tensor = rng.choice(model.tensors)
    which = rng.randrange(6)
    if which == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(EDGES)
    elif which == 1:
        tensor.dims = rng.choice(([], tensor.dims[::-1], [*tensor.dims, 1], [1, *tensor.dims] * 3))
    elif which == 2:
        tensor.type = rng.choice((*range(-1, 45), 255, 2**31))
    elif which == 3:
        tensor.offset = rng.choice((*EDGES, tensor.offset + 32, tensor.offset - 32, 1 << 62))
    elif which == 4:
        tensor.name = rng.choice(
            (b"", b"x" * 63, b"x" * 64, rng.choice(model.tensors).name, b"\xff")
        )
    else:
        tensor.dims = [max(0, size + rng.choice((-1, 1, 32))) for size in tensor.dims]


def swap_types(model: Gguf, rng: random.Random) -> None:
    """Give a tensor another type of fitting size: valid GGUF, but perhaps of no use to a layer."""
    tensor = rng.choice(model.tensors)
    tensor.type = rng.choice((1, 2, 8, 24, 26, 27, 28, 30, 14, 12))
    lay_out(model)


def reshape_tensor(model: Gguf, rng: random.Random) -> None:
    """Change a shape consistently: offsets and data fit, the layer does not."""
    tensor = rng.choice(model.tensors)
    axis = rng.randrange(len(tensor.dims))
    tensor.dims[axis] = rng.choice((0, 1, tensor.dims[axis] * 2, tensor.dims[axis] + 32, 32))
    if rng.random() < 0.3:
        tensor.dims.append(rng.choice((1, 2)))
    lay_out(model)


_TYPE_SIZES = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    8: (32, 34),
    9: (32, 36),
    12: (256, 144),
    14: (256, 210),
}
_TYPE_SIZES |= {24: (1, 1), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2)}


def lay_out(model: Gguf) -> None:
    """Recompute offsets, and make the data large enough for them."""
    at = 0
    for tensor in model.tensors:
        tensor.offset = at
        block, size = _TYPE_SIZES.get(tensor.type, (1, 4))
        count = math.prod(tensor.dims)
        at += -(-(count // block * size) // 32) * 32
    model.data = (model.data * (at // len(model.data) + 1))[:at]


def remove_tensor(model: Gguf, rng: random.Random) -> None:
    del model.tensors[rng.randrange(len(model.tensors))]
    if rng.random() < 0.8:
        lay_out(model)


def rename_tensor(model: Gguf, rng: random.Random) -> None:
    tensor = rng.choice(model.tensors)
    endings = (b".bias", b".scale", b".input_scale", b"x")
    tensor.name = tensor.name.replace(b".weight", rng.choice(endings))


def damage_data(model: Gguf, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 50, 5000))):
        model.data[rng.randrange(len(model.data))] = rng.randrange(256)


def poison_data(model: Gguf, rng: random.Random) -> None:
    """Overwrite a range of weights with NaN, infinity or huge numbers."""
    value = rng.choice((float("nan"), float("inf"), -float("inf"), 3e38, 0.0))
    at = rng.randrange(len(model.data) // 4) * 4
    count = rng.choice((1, 1000, len(model.data) // 4))
    poison = struct.pack("<f", value) * min(count, (len(model.data) - at) // 4)
    model.data[at : at + len(poison)] = poison


MUTATIONS: tuple[Mutation, ...] = (
    flip_header_bits,
    flip_header_bits,
    overwrite_header,
    truncate,
    change_counts,
    change_scalar,
    change_scalar,
    change_scalar,
    change_type,
    wrap_in_array,
    change_array,
    change_array,
    change_string,
    remove_pair,
    duplicate_pair,
    add_known_key,
    add_known_key,
    change_tensor,
    change_tensor,
    swap_types,
    reshape_tensor,
    remove_tensor,
    rename_tensor,
    damage_data,
    poison_data,
)


def mutate(path: Path, seed: int) -> tuple[str, bytes]:
    """Return the name of the mutation that this seed makes, and the damaged file."""
    rng = random.Random(seed)
    model = parse(path.read_bytes())
    mutation = MUTATIONS[seed % len(MUTATIONS)]
    mutation(model, rng)
    return mutation.__name__, model.encode()
