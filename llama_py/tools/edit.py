"""``edit`` and ``diff``: the metadata of a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_py.errors import ParameterError
from llama_py.gguf.check import whole_file
from llama_py.gguf.reader import GGUFHeader
from llama_py.gguf.writer import TensorPiece, Value, kept_pairs, new_file, pair, write_gguf

__all__ = ["Difference", "diff", "edit"]

#: Keys that say how the file itself is laid out.
_LAYOUT = frozenset({"general.alignment"})


def edit(
    source: Path,
    target: Path | None = None,
    *,
    set_values: Mapping[str, Value | tuple[str, Value | Sequence[Value]]] | None = None,
    remove: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Path:
    """Change metadata; the tensors stay as they are, byte for byte.

    Args:
        target: the new file; None replaces the old one when the new one is complete. It is not
            replaced where it is a link: others use what it leads to.
        set_values: values by key. A key that is there keeps its type; that of a new one follows its
            value (bool, i32 or i64, f32, str), or is named: ``("u32", 7)``.
        remove: keys to leave out.

    Raises:
        ParameterError: a key is not there, a value is not of its type, or the source is a link.
        InvalidModelError: the source is not a whole GGUF.
    """
    target = target or source
    if target.is_symlink():
        raise ParameterError(
            f"{target} is a link to {target.resolve()}, which others use (the hub's cache has such "
            "links); name another file for the result (-o, --output)"
        )
    header = whole_file(source)
    pairs = kept_pairs(header)
    for key in remove:
        if key not in pairs:
            raise ParameterError(f"{source} has no key {key!r}")
        del pairs[key]
    for key, value in (set_values or {}).items():
        pairs[key] = _pair(header, key, value)
    touched = {*remove, *(set_values or {})}
    if _LAYOUT & touched:
        raise ParameterError(f"{', '.join(_LAYOUT & touched)} says how the file is laid out")
    pieces = [TensorPiece.of(header, tensor) for tensor in header.tensors]
    with new_file(target) as (file, _):
        write_gguf(file.write, [*pairs.values()], pieces, header.alignment, progress)
    return target


def _pair(
    header: GGUFHeader, key: str, value: Value | tuple[str, Value | Sequence[Value]]
) -> bytes:
    if isinstance(value, tuple):
        return pair(key, *value)
    if not isinstance(value, (str, bool, int, float)):
        raise ParameterError(f"{key}: {value!r} is not a value; a list needs a type, such as u32")
    kind = header.types.get(key)
    if kind == "array":
        raise ParameterError(f"{key} is a list: give its type and its values")
    return pair(key, kind or _kind_of(value), value)


def _kind_of(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "f32" if isinstance(value, float) else "str"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference of two files.

    Attributes:
        name: the key, or the tensor.
        left, right: what each file has, as text; None if it does not have it.
    """

    name: str
    left: str | None
    right: str | None


def diff(left: Path, right: Path, *, contents: bool = True) -> list[Difference]:
    """The differences of two files: metadata, tensors, and the bytes of tensors.

    Args:
        contents: compare the bytes of tensors, too.
    """
    one, other = whole_file(left), whole_file(right)
    found = _differences(_metadata(one), _metadata(other))
    tensors = _differences(_shapes(one), _shapes(other))
    found += tensors
    if contents:
        differ = {each.name for each in tensors}
        places = {each.name: each for each in other.tensors}
        for tensor in one.tensors:
            if tensor.name in differ or tensor.name not in places:
                continue
            first = _bytes(one, tensor.offset, tensor.n_bytes)
            if first != _bytes(other, places[tensor.name].offset, tensor.n_bytes):
                found.append(Difference(tensor.name, "its bytes", "other bytes"))
    return found


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[Difference]:
    names = dict.fromkeys([*one, *other])
    both = (Difference(name, one.get(name), other.get(name)) for name in names)
    return [each for each in both if each.left != each.right]


def _metadata(header: GGUFHeader) -> dict[str, str]:
    shown = {key: repr(value) for key, value in header.scalars.items()}
    for key, array in header.arrays.items():
        content = hash(header.buffer[array.start : array.end]) & 0xFFFFFFFF
        shown[key] = f"{array.count} x {array.type} ({content:08x})"
    return {key: shown[key] for key in header.places}


def _shapes(header: GGUFHeader) -> dict[str, str]:
    return {each.name: f"{each.type} {list(each.shape)}" for each in header.tensors}


def _bytes(header: GGUFHeader, offset: int, size: int) -> memoryview:
    start = header.data_offset + offset
    return memoryview(header.buffer)[start : start + size]
