"""``quantize``: a model in other types of weights, by llama.cpp, in a process of its own.

What llama.cpp finds out midway (a type that needs an importance matrix, a matrix without the
tensor, weights that are quantized already) is checked before a byte is written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from typing_extensions import Unpack

from llama_py.core.quantize import FILE_TYPES, TENSOR_TYPES
from llama_py.errors import InvalidModelError, ParameterError
from llama_py.gguf.check import check_model_file
from llama_py.gguf.reader import GGML_TYPES, read_header
from llama_py.gguf.writer import refuse_folder
from llama_py.tools.imatrix import Matrix, read_matrix

__all__ = ["Choices", "PlannedTensor", "QuantizePlan", "plan_quantize", "quantize"]

#: Tensors of these types are garbage without a matrix (``tensor_requires_imatrix``).
_NEEDING = frozenset({"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"})
_EXEMPT = ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")
_FLOATS = frozenset({"F32", "F16", "BF16"})
_SIZES = {name: (block, size) for name, block, size in GGML_TYPES.values()}
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\] (\S+)\s+- \[([\d, ]*)\], type =\s*(\w+),(.*)")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor, its type in the source and in the target, and its elements."""

    name: str
    shape: tuple[int, ...]
    before: str
    after: str

    @property
    def n_bytes(self) -> int:
        """Its bytes in the target."""
        block, size = _SIZES[self.after]
        count = 1
        for length in self.shape:
            count *= length
        return count // block * size


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """The types of all tensors before and after, and the bytes of the target's tensors."""

    tensors: tuple[PlannedTensor, ...]

    @property
    def n_bytes(self) -> int:
        """The bytes of all tensors of the target."""
        return sum(each.n_bytes for each in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """The bits of the target by its weights."""
        weights = sum(
            each.n_bytes * _SIZES[each.after][0] // _SIZES[each.after][1] for each in self.tensors
        )
        return 8 * self.n_bytes / max(weights, 1)


class Choices(TypedDict, total=False):
    """How a model is quantized.

    Attributes:
        imatrix: an importance matrix for the source (``llama-imatrix``); types of fewer than three
            bits need one.
        output_type, embedding_type: types of those two tensors ("Q8_0").
        tensor_types: types of the tensors whose name a regular expression finds:
            ``[("ffn_down", "Q6_K")]``.
        allow_requantize: quantize what is quantized already, which loses more than either alone.
        quantize_output: False leaves ``output.weight`` as it is.
        pure: all tensors get the same type.
        prune_layers: numbers of layers to leave out.
        n_threads: None for all cores.
    """

    imatrix: str | os.PathLike[str] | None
    output_type: str | None
    embedding_type: str | None
    tensor_types: Sequence[tuple[str, str]]
    allow_requantize: bool
    quantize_output: bool
    pure: bool
    prune_layers: Sequence[int]
    n_threads: int | None


def quantize(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    file_type: str = "Q4_K_M",
    *,
    progress: Callable[[int, int, str], bool | None] | None = None,
    **choices: Unpack[Choices],
) -> QuantizePlan:
    """Write a model with other types of weights.

    The target gets its name when it is complete: whatever happens before, what was there stays.

    Args:
        source: a GGUF in F32, F16 or BF16.
        file_type: such as "Q4_K_M"; see ``FILE_TYPES``.
        progress: is called with the tensors that are done, all of them, and the last one's name; if
            it returns False, the work ends with ``InterruptedError``.
        choices: see ``Choices``.

    Raises:
        ParameterError: a type is unknown, a matrix is missing or incomplete, weights are quantized
            already; nothing was written.
        InvalidModelError: the source or the matrix cannot be used.
    """
    if Path(source).resolve() == Path(target).resolve():
        raise ParameterError(f"{target} is the source; choose another name for the target")
    refuse_folder(Path(target))
    request = _request(source, file_type, choices)
    plan = _plan(request)
    for line in _lines({**request, "target": os.fspath(target)}):
        found = _TENSOR.match(line)
        if found and progress and progress(int(found[1]), int(found[2]), found[3]) is False:
            raise InterruptedError("quantizing was cancelled; nothing was written")
    return plan


def plan_quantize(
    source: str | os.PathLike[str], file_type: str = "Q4_K_M", **choices: Unpack[Choices]
) -> QuantizePlan:
    """The types and sizes that ``quantize`` would give, without writing anything.

    Raises:
        ParameterError, InvalidModelError: see ``quantize``.
    """
    return _plan(_request(source, file_type, choices))


def _request(source: str | os.PathLike[str], file_type: str, choices: Choices) -> dict[str, Any]:
    """The choices as the process of llama.cpp reads them; without a target it writes nothing."""
    imatrix = choices.get("imatrix")
    types = choices.get("tensor_types", ())
    return {
        "source": os.fspath(source),
        "target": "",
        "imatrix": os.fspath(imatrix) if imatrix is not None else None,
        "file_type": _known(file_type, FILE_TYPES, "file_type"),
        "output_type": _known(choices.get("output_type"), TENSOR_TYPES, "output_type"),
        "embedding_type": _known(choices.get("embedding_type"), TENSOR_TYPES, "embedding_type"),
        "tensor_types": [(p, _known(t, TENSOR_TYPES, "tensor_types")) for p, t in types],
        "allow_requantize": choices.get("allow_requantize", False),
        "quantize_output": choices.get("quantize_output", True),
        "pure": choices.get("pure", False),
        "prune_layers": [*choices.get("prune_layers", ())],
        "n_threads": choices.get("n_threads") or 0,
    }


def _known(name: str | None, types: Mapping[str, int], what: str) -> str | None:
    if name is None:
        return None
    if name.upper() not in types:
        raise ParameterError(f"{what}: there is no type {name!r}; types are {', '.join(types)}")
    return name.upper()


def _plan(request: Mapping[str, Any]) -> QuantizePlan:
    """The plan of llama.cpp, checked for the errors that it would find too late."""
    check_model_file(request["source"])
    _refuse_layers(request)
    matrix = read_matrix(Path(request["imatrix"])) if request["imatrix"] else None
    tensors = []
    for line in _lines(request):
        if found := _TENSOR.match(line):
            shape = tuple(int(each) for each in found[4].split(","))
            before = found[5].upper()
            after = re.search(r"\((\w+)\)\s*$", found[6])
            tensors.append(
                PlannedTensor(found[3], shape, before, after[1].upper() if after else before)
            )
    plan = QuantizePlan(tuple(tensors))
    _refuse_requantizing(plan, request)
    _refuse_without_matrix(plan, matrix, request)
    return plan


def _refuse_layers(request: Mapping[str, Any]) -> None:
    header = read_header(Path(request["source"]))
    count = int(header.scalars.get(f"{header.scalars.get('general.architecture')}.block_count", 0))
    wrong = [each for each in request["prune_layers"] if not 0 <= each < count]
    if wrong:
        raise ParameterError(f"prune_layers: there is no layer {wrong[0]} of 0 to {count - 1}")


def _refuse_requantizing(plan: QuantizePlan, request: Mapping[str, Any]) -> None:
    again = [t for t in plan.tensors if t.before != t.after and t.before not in _FLOATS]
    if again and not request["allow_requantize"]:
        raise ParameterError(
            f"{len(again)} tensors are quantized already ({again[0].name} is {again[0].before}): "
            "take the F16 or BF16 of the model, or pass allow_requantize=True (--allow-requantize)"
        )


def _refuse_without_matrix(
    plan: QuantizePlan, matrix: Matrix | None, request: Mapping[str, Any]
) -> None:
    needing = [t for t in plan.tensors if _needs_matrix(t, request["file_type"])]
    if matrix is None:
        if needing:
            raise ParameterError(
                f"{request['file_type']} needs an importance matrix ({needing[0].name} would be "
                f"{needing[0].after}): make one with llama-imatrix, and pass imatrix=FILE"
            )
        return
    for tensor in plan.tensors:
        entry = matrix.entries.get(tensor.name)
        expected = tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        if entry is None and tensor in needing:
            raise ParameterError(
                f"{request['imatrix']} has nothing about {tensor.name}, and {tensor.after} needs it"
            )
        changed = tensor.before != tensor.after and not tensor.name.startswith("token_embd")
        if entry is not None and changed and entry.size != expected:
            raise ParameterError(
                f"{request['imatrix']} was made for another model: {tensor.name} has {entry.size} "
                f"entries there, and {expected} here"
            )


def _needs_matrix(tensor: PlannedTensor, file_type: str) -> bool:
    if tensor.before == tensor.after or tensor.name in _EXEMPT:
        return False
    return tensor.after in _NEEDING or (tensor.after == "Q2_K" and file_type == "Q2_K_S")


def _lines(request: Mapping[str, Any]) -> Iterator[str]:
    """The lines that llama.cpp writes; its process ends with this one, and when it is left.

    Raises:
        InvalidModelError: it refuses, or ends the process.
    """
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",
        "GGML_NO_BACKTRACE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "llama_py.tools.quantize_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    problem = ""
    with child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(dict(request)) + "\n")
            child.stdin.flush()
            for line in child.stdout:
                if line.startswith("error: "):
                    problem = line.removeprefix("error: ").strip()
                else:
                    yield line.rstrip("\n")
            code = child.wait()
        finally:
            child.kill()
    if problem:
        raise InvalidModelError(problem)
    if code:
        raise InvalidModelError(
            f"{request['source']} cannot be quantized: llama.cpp ended its process with {code}; "
            "the file is damaged, or of a kind that llama.cpp does not quantize"
        )
