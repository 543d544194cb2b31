"""Checks a LoRA adapter in pure Python, before llama.cpp loads it for a model.

llama.cpp compares the shapes of an adapter's tensors with the model's, and nothing else: other
types, a third dimension or fewer experts than the model has end the process when the adapter is
used. Tensors that change nothing are loaded all the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llama_py.errors import InvalidModelError
from llama_py.gguf.check import GGUFInfo, naming, read_gguf
from llama_py.gguf.reader import GGUFHeader, GGUFTensor
from llama_py.gguf.rules import NOT_FOR_WEIGHTS

__all__ = ["AdapterInfo", "check_adapter_file"]

_A, _B, _NORM = ".lora_a", ".lora_b", "_norm.weight"
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
#: Weights that are not multiplied with in the way that adapters change.
_WITHOUT_EFFECT: Final = (
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
    ".bias",
)
#: Metadata that llama.cpp reads without asking for its type, which ends the process.
_TYPES: Final = {
    "general.type": "str",
    "general.architecture": "str",
    "adapter.type": "str",
    "adapter.lora.alpha": "f32",
}
_INVOCATION = "adapter.alora.invocation_tokens"


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that llama.cpp may load.

    Attributes:
        path: its file.
        header: the file's.
        remarks: what has no effect, a sentence each.
    """

    path: Path
    header: GGUFHeader
    remarks: tuple[str, ...]


def check_adapter_file(path: str | os.PathLike[str], model: GGUFInfo) -> AdapterInfo:
    """Check an adapter for a model.

    Raises:
        ModelNotFoundError: there is no such file.
        InvalidModelError: it is not an adapter, or none for this model, or it is damaged; the
            message names the tensor, and what it should be.
    """
    path = Path(path)
    with naming(path, "LoRA adapter"):
        header = read_gguf(path)
        _check_metadata(header, model)
        pairs, norms = _pairs(header)
        for name, (a, b) in pairs.items():
            for problem in _problems(name, a, b, model.shapes):
                raise InvalidModelError(problem)
    return AdapterInfo(path, header, tuple(_remarks(pairs, norms)))


def _check_metadata(header: GGUFHeader, model: GGUFInfo) -> None:
    for key, kind in _TYPES.items():
        found = header.types.get(key, kind)
        if found != kind:
            raise InvalidModelError(f"its {key} is stored as {found}, not as {kind}")
    general = header.scalars.get("general.type")
    if general != "adapter":
        raise InvalidModelError(f"it is not an adapter: general.type is {general!r}, not 'adapter'")
    form = header.scalars.get("adapter.type")
    if form != "lora":
        raise InvalidModelError(f"its adapter.type is {form!r}; only 'lora' can be loaded")
    architecture = header.scalars.get("general.architecture")
    if architecture != model.architecture:
        raise InvalidModelError(
            f"it was made for a model of the architecture {architecture!r}, and {model.path.name} "
            f"is {model.architecture!r}"
        )
    invocation = header.arrays.get(_INVOCATION)
    if _INVOCATION in header.types and (invocation is None or invocation.type != "u32"):
        raise InvalidModelError(f"its {_INVOCATION} is not an array of u32")
    alpha = header.scalars.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, float) or not math.isfinite(alpha):
        raise InvalidModelError(f"its adapter.lora.alpha is {alpha}")


def _pairs(
    header: GGUFHeader,
) -> tuple[dict[str, tuple[GGUFTensor, GGUFTensor]], list[str]]:
    """Tensors of the model -> A and B; and tensors of norms, which llama.cpp passes over."""
    halves: dict[str, dict[str, GGUFTensor]] = {}
    norms = []
    for tensor in header.tensors:
        suffix = next((each for each in (_A, _B) if tensor.name.endswith(each)), None)
        if suffix is not None:
            halves.setdefault(tensor.name.replace(suffix, ""), {})[suffix] = tensor
        elif tensor.name.endswith(_NORM):
            norms.append(tensor.name)
        else:
            raise InvalidModelError(
                f"tensor {tensor.name!r} is of no kind that an adapter has: its name ends with "
                f"neither {_A} nor {_B}"
            )
    for name, found in halves.items():
        if len(found) < 2:
            missing = _B if _A in found else _A
            raise InvalidModelError(
                f"tensor {name + missing!r} is missing: only its other half is there"
            )
    return {name: (found[_A], found[_B]) for name, found in halves.items()}, norms


def _problems(
    name: str, a: GGUFTensor, b: GGUFTensor, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    """Why a pair does not fit the model."""
    if name not in shapes:
        yield f"tensor {name!r} is not in the model; was the adapter made for another one?"
        return
    for half in (a, b):
        if half.type in NOT_FOR_WEIGHTS:
            yield f"tensor {half.name!r} has the type {half.type}, which weights cannot have"
    (n_in, n_out, *more), (a_in, a_out, *a_more), (b_in, b_out, *b_more) = map(
        _four, (shapes[name], a.shape, b.shape)
    )
    if name.endswith(_EMBEDDING):
        yield from _embedding_problems(a, b, (n_in, n_out), shapes)
        a_in, a_out = n_in, a_in  # A has a row for each token, and B one for each feature
        n_out = n_in
    if (a_in, a_out, b_out) != (n_in, b_in, n_out) or b_in <= 0:
        yield (
            f"tensors {a.name!r} {list(a.shape)} and {b.name!r} {list(b.shape)} do not fit "
            f"{name!r} {list(shapes[name])}: expected [{n_in}, rank] and [rank, {n_out}]"
        )
    for half, rest in ((a, a_more), (b, b_more)):
        if rest != more:
            yield (
                f"tensor {half.name!r} has the shape {list(half.shape)}, and {name!r} of the model "
                f"{list(shapes[name])}: it needs as many matrices"
            )


def _embedding_problems(
    a: GGUFTensor, b: GGUFTensor, shape: tuple[int, int], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    if _HEAD not in shapes:
        yield (
            f"tensor {a.name!r} changes the embeddings of tokens, which this model uses for its "
            "output as well (tied embeddings); llama.cpp cannot adapt those"
        )
    if _four(a.shape)[1] != shape[1]:
        yield f"tensor {a.name!r} has {_four(a.shape)[1]} rows, and the model {shape[1]} tokens"


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    n_in, n_out, n_matrices, rest = (*shape, 1, 1, 1, 1)[:4]
    return n_in, n_out, n_matrices, rest


def _remarks(pairs: Mapping[str, tuple[GGUFTensor, GGUFTensor]], norms: list[str]) -> Iterator[str]:
    idle = [*(name for name in pairs if name.endswith(_WITHOUT_EFFECT)), *norms]
    if idle:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        yield f"llama.cpp does not apply it to {', '.join(sorted(idle)[:3])}{more}"
    if len(pairs) == sum(name in pairs for name in idle):
        yield "it changes nothing: none of its tensors has an effect"
