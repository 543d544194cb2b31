"""Reads the header of a GGUF file without llama.cpp: its contents and their places.

The format is that of ``docs/gguf.md`` of ggml: a fixed header (magic, version, two counts), the
metadata pairs, one record per tensor, padding, and the tensors' bytes. Everything is
little-endian. The limits are those of llama.cpp's reader (``ggml/src/gguf.cpp``).

Only the header's pages are read, through ``mmap``. A vocabulary of 150 000 strings takes a
millisecond, because string arrays are walked in C: see ``gguf.strings``.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from llama_py.errors import InvalidModelError
from llama_py.gguf.strings import end_of_strings
from llama_py.regular_files import open_regular

__all__ = [
    "GGML_TYPES",
    "SCALARS",
    "GGUFArray",
    "GGUFHeader",
    "GGUFTensor",
    "Scalar",
    "read_header",
]

Scalar = bool | int | float | str

STRING: Final = 8
ARRAY: Final = 9

#: GGUF value type -> (name, ``struct`` format).
SCALARS: Final[dict[int, tuple[str, str]]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}

#: ggml type -> (name, elements per block, bytes per block); ``ggml_blck_size``, ``ggml_type_size``.
GGML_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

_MAX_VERSION: Final = 3
_MAX_DIMS: Final = 4
_MAX_NAME: Final = 64  # GGML_MAX_NAME, with its terminator
_MAX_LENGTH: Final = 2**30  # bytes of a string, elements of an array
_KEPT_ELEMENTS: Final = 4096  # numeric arrays up to this length are read


@dataclass(frozen=True)
class GGUFArray:
    """A metadata array: its element type, its length and its place in the file.

    Attributes:
        type: the name of the element type ("str", "i32", ...).
        count: number of elements.
        values: the elements of a short numeric array; None for strings and for long arrays.
        start, end: offsets of the elements in the file, in bytes.
    """

    type: str
    count: int
    values: tuple[bool | int | float, ...] | None
    start: int
    end: int


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor's record. ``shape[0]`` is the length of a row, as in ggml."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUFHeader:
    """The header of one file: version, metadata, and the records of its tensors.

    Attributes:
        places: where each metadata pair begins and ends in the file, in bytes; in their order.
    """

    version: int
    scalars: Mapping[str, Scalar]
    types: Mapping[str, str]
    arrays: Mapping[str, GGUFArray]
    tensors: tuple[GGUFTensor, ...]
    data_offset: int
    file_size: int
    buffer: mmap.mmap
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def alignment(self) -> int:
        """Bytes to which the data of each tensor is padded."""
        return int(self.scalars.get("general.alignment", 32))


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header of a file that begins like a GGUF.

    Raises:
        InvalidModelError: it is damaged; the message says what is wrong and where, and how many
            bytes are missing if the file is incomplete.
    """
    with open_regular(path) as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _FileReader(buffer).read()


class _FileReader:
    """A cursor over the file. ``doing`` names what is being read, for messages."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.at = 0
        self.doing = "the header"
        self._places: dict[str, tuple[int, int]] = {}

    def read(self) -> GGUFHeader:
        self.at = 4
        version = self._version()
        n_tensors, n_pairs = self.unpack("QQ")
        # The smallest pair is a key of one byte with a value of one; the smallest record has no
        # dimensions.
        for count, smallest, what in (
            (n_pairs, 14, "metadata entries"),
            (n_tensors, 24, "tensors"),
        ):
            if count * smallest > self.size:
                raise self.fail(f"the header announces {count} {what}, more than the file can hold")
        scalars, types, arrays = self._pairs(n_pairs)
        key = "general.alignment"
        alignment = scalars.get(key, 32)
        wrong_type = types.get(key, "u32") != "u32"
        if wrong_type or not isinstance(alignment, int) or alignment <= 0:
            raise InvalidModelError(f"{key} is {alignment!r}, and not a power of two")
        if alignment & (alignment - 1):
            raise InvalidModelError(f"{key} is {alignment}, and not a power of two")
        records = self._tensor_records(n_tensors)
        data_offset = -(-self.at // alignment) * alignment if records else self.at
        tensors = _lay_out(records, alignment)
        needed = data_offset
        if tensors:
            needed += tensors[-1].offset + tensors[-1].n_bytes
        if needed > self.size:
            raise InvalidModelError(
                f"the file is cut off: its tensors need {needed} bytes, but it has {self.size} "
                f"({needed - self.size} are missing); download it again"
            )
        return GGUFHeader(
            version,
            scalars,
            types,
            arrays,
            tensors,
            data_offset,
            self.size,
            self.buffer,
            self._places,
        )

    def fail(self, problem: str) -> InvalidModelError:
        return InvalidModelError(f"{problem} ({self.doing}, at byte {self.at})")

    # pieces

    def need(self, size: int) -> None:
        if size > self.size - self.at:
            raise InvalidModelError(
                f"the file ends inside {self.doing}: it has {self.size} bytes, and at least "
                f"{self.at + size} are needed before the tensors even begin; it is cut off or "
                "damaged: download it again"
            )

    def unpack(self, form: str) -> tuple[Any, ...]:
        packed = struct.Struct("<" + form)
        self.need(packed.size)
        values = packed.unpack_from(self.buffer, self.at)
        self.at += packed.size
        return values

    def string(self) -> str:
        (length,) = self.unpack("Q")
        if length > _MAX_LENGTH:
            raise self.fail(f"a string claims to have {length} bytes")
        self.need(length)
        self.at += length
        return self.buffer[self.at - length : self.at].decode("utf-8", "replace")

    def _version(self) -> int:
        (version,) = self.unpack("I")
        if version & 0xFFFF == 0:
            raise self.fail(
                f"the GGUF version is {version:#010x}: the file is big-endian, and this machine "
                "is not; use a little-endian file"
            )
        if version == 1:
            raise self.fail("GGUF version 1 is no longer supported; convert the model again")
        if version > _MAX_VERSION:
            raise self.fail(
                f"GGUF version {version} is newer than the newest that is supported "
                f"({_MAX_VERSION}); a newer llama_py may read it"
            )
        return int(version)

    # metadata

    def _pairs(self, count: int) -> tuple[dict[str, Scalar], dict[str, str], dict[str, GGUFArray]]:
        scalars: dict[str, Scalar] = {}
        types: dict[str, str] = {}
        arrays: dict[str, GGUFArray] = {}
        for index in range(count):
            self.doing = f"metadata entry {index + 1} of {count}"
            start = self.at
            key = self.string()
            if not key:
                raise self.fail("a metadata key is empty")
            if key in types:
                raise self.fail(f"the metadata key {key!r} occurs twice")
            self.doing = f"the metadata entry {key!r}"
            (kind,) = self.unpack("I")
            if kind == ARRAY:
                arrays[key] = self._array()
                types[key] = "array"
            elif kind == STRING:
                scalars[key], types[key] = self.string(), "str"
            else:
                types[key], form = self._type(kind)
                # Any byte but zero is true, and struct's "?" agrees.
                scalars[key] = self.unpack(form)[0]
            self._places[key] = start, self.at
        return scalars, types, arrays

    def _type(self, kind: int) -> tuple[str, str]:
        if kind not in SCALARS:
            raise self.fail(f"{kind} is not a GGUF value type")
        return SCALARS[kind]

    def _array(self) -> GGUFArray:
        kind, count = self.unpack("IQ")
        if count > _MAX_LENGTH:
            raise self.fail(f"an array claims to have {count} elements")
        start = self.at
        if kind == STRING:
            self.need(8 * count)
            end = end_of_strings(self.buffer, start, count)
            if end is None:
                self.at = self.size
                raise self.fail(f"the file ends inside {self.doing}: it is cut off or damaged")
            self.at = end
            return GGUFArray("str", count, None, start, self.at)
        name, form = self._type(kind)
        self.need(count * struct.calcsize("<" + form))
        values = None
        if count <= _KEPT_ELEMENTS:
            values = self.unpack(f"{count}{form}")
        else:
            self.at += count * struct.calcsize("<" + form)
        return GGUFArray(name, count, values, start, self.at)

    # tensors

    def _tensor_records(self, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        records = []
        names: set[str] = set()
        for index in range(count):
            self.doing = f"the record of tensor {index + 1} of {count}"
            name = self.string()
            if len(name.encode()) >= _MAX_NAME or name in names:
                raise self.fail(f"the tensor name {name!r} is too long, or occurs twice")
            names.add(name)
            (n_dims,) = self.unpack("I")
            if n_dims > _MAX_DIMS:
                raise self.fail(f"tensor {name!r} has {n_dims} dimensions, more than {_MAX_DIMS}")
            shape = self.unpack(f"{n_dims}Q")
            if math.prod(shape) >= 2**63 or any(length >= 2**63 for length in shape):
                raise self.fail(f"the shape of tensor {name!r} is absurd: {list(shape)}")
            records.append((name, shape, *self.unpack("IQ")))
        return records


def _lay_out(
    records: list[tuple[str, tuple[int, ...], int, int]], alignment: int
) -> tuple[GGUFTensor, ...]:
    """Check types, row lengths and offsets: each tensor begins where the one before ends."""
    tensors = []
    expected = 0
    for name, shape, kind, offset in records:
        if kind not in GGML_TYPES:
            raise InvalidModelError(
                f"tensor {name!r} has the unknown type {kind}; the file is damaged, or was made "
                "for a newer (or a very old) llama.cpp"
            )
        type_name, block, block_bytes = GGML_TYPES[kind]
        row = shape[0] if shape else 1
        if row % block:
            raise InvalidModelError(
                f"tensor {name!r} has rows of {row} elements, which {type_name} cannot hold "
                f"(blocks of {block})"
            )
        n_bytes = math.prod(shape) // block * block_bytes
        if offset != expected or n_bytes >= 2**62:
            raise InvalidModelError(
                f"the data of tensor {name!r} is said to begin at {offset}, but belongs at "
                f"{expected}: the tensor records are damaged"
            )
        tensors.append(GGUFTensor(name, shape, type_name, offset, n_bytes))
        expected += -(-n_bytes // alignment) * alignment
    return tuple(tensors)
