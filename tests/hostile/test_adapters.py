"""LoRA files that would end the process, or do nothing, are found before llama.cpp loads them."""

from __future__ import annotations

import logging
import math
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py import Llama
from llama_py.errors import InvalidModelError, LlamaError, ModelNotFoundError
from llama_py.gguf.adapters import check_adapter_file
from llama_py.gguf.check import check_model_file
from llama_py.gguf.reader import GGML_TYPES
from tests.core.gguf_mutations import MUTATIONS, Gguf, mutate, parse
from tests.core.test_gguf_check import put
from tests.models import tiny_model

ROOT = Path(__file__).parents[2]
RANK = 2
#: Tensors of each tiny model that an adapter changes.
CHANGED = {
    "full": ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "token_embd.weight", "output.weight"),
    "iswa": ("blk.0.attn_v.weight", "blk.2.ffn_up.weight"),
    "recurrent": ("blk.0.ssm_in.weight", "blk.1.ssm_out.weight"),
    "hybrid_swa": ("blk.0.shortconv.in_proj.weight", "blk.0.ffn_gate.weight"),
    "moe": ("blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight"),
}


def shapes_of(name: str, shape: Sequence[int], rank: int = RANK) -> tuple[tuple[int, ...], ...]:
    """Of A and B as numpy has them: the length of a row comes last."""
    n_in, n_out, *more = shape
    if name == "token_embd.weight":
        return (n_out, rank), (n_in, rank)
    return (*more, rank, n_in), (*more, n_out, rank)


def write(path: Path, kind: str, names: Sequence[str] | None = None) -> Path:
    """A healthy adapter for a tiny model."""
    info = check_model_file(tiny_model(kind))
    writer = gguf.GGUFWriter(str(path), info.architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    writer.add_key_value(
        "adapter.alora.invocation_tokens",
        [3, 4],
        gguf.GGUFValueType.ARRAY,
        sub_type=gguf.GGUFValueType.UINT32,
    )
    writer.add_array("general.tags", ["a", "b"])
    rng = np.random.default_rng(1)
    for name in CHANGED[kind] if names is None else names:
        for half, shape in zip("ab", shapes_of(name, info.shapes[name]), strict=True):
            values = rng.normal(0, 0.3, shape).astype(np.float32)
            writer.add_tensor(f"{name}.lora_{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def use(model: Path, adapter: Path | None) -> list[float | None]:
    """The log-probabilities of a reply."""
    lora = None if adapter is None else str(adapter)
    with Llama(str(model), n_ctx=64, n_threads=1, lora_path=lora, verbose=False) as llm:
        reply = llm.create_completion("Once upon a time", max_tokens=2, temperature=0.0, logprobs=1)
        logprobs = reply["choices"][0]["logprobs"]
        assert logprobs is not None
        return [*logprobs["token_logprobs"]]


@pytest.mark.parametrize("kind", CHANGED)
def test_adapters_that_fit_are_used(kind: str, tmp_path: Path) -> None:
    model = tiny_model(kind)
    assert use(model, write(tmp_path / "fine.gguf", kind)) != use(model, None)


# ---- kinds of files that end the process ---------------------------------------------------------

Change = Callable[[Gguf], None]


def set_pair(key: str, kind: int, raw: bytes) -> Change:
    return lambda file: put(file, key, kind, raw)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def retype(index: int, kind: int, factor: float) -> Change:
    def change(file: Gguf) -> None:
        file.tensors[index].type = kind
        file.data = bytearray(int(len(file.data) * max(1, factor)) + (1 << 16))
        lay_out(file)

    return change


def reshape(index: int, dims: list[int]) -> Change:
    def change(file: Gguf) -> None:
        file.tensors[index].dims = dims
        file.data = bytearray(len(file.data) + (1 << 20))
        lay_out(file)

    return change


def without_rank(file: Gguf) -> None:
    reshape(0, [128, 0])(file)
    reshape(1, [0, 128])(file)


_SIZES = {0: 4, 1: 2, 26: 4, 28: 8}


def lay_out(file: Gguf) -> None:
    at = 0
    for tensor in file.tensors:
        tensor.offset = at
        at += -(-math.prod(tensor.dims) * _SIZES[tensor.type] // 32) * 32


def poison(value: float) -> Change:
    def change(file: Gguf) -> None:
        file.data[8:12] = struct.pack("<f", value)

    return change


BROKEN: dict[str, tuple[str, Change, str]] = {
    "alpha is a whole number": (
        "full", set_pair("adapter.lora.alpha", 4, struct.pack("<I", 2)), "alpha.*u32, not as f32"
    ),
    "alpha is a text": ("full", set_pair("adapter.lora.alpha", 8, text("2")), "str, not as f32"),
    "alpha is NaN": (
        "full", set_pair("adapter.lora.alpha", 6, struct.pack("<f", math.nan)), "alpha is nan"
    ),
    "the general type is a number": (
        "full", set_pair("general.type", 4, struct.pack("<I", 1)), "general.type.*not as str"
    ),
    "weights are whole numbers": ("full", retype(0, 26, 1), "'blk.0.attn_q.*lora_a'.* I32"),
    "weights are double": ("full", retype(1, 28, 2), "'blk.0.attn_q.*lora_b'.* F64"),
    "a third dimension": ("full", reshape(0, [128, RANK, 3]), r"\[128, 2, 3\].*as many matrices"),
    "too few experts": ("moe", reshape(2, [128, RANK, 1]), "ffn_down_exps.*as many matrices"),
    "ranks that differ": (
        "full", reshape(1, [RANK + 1, 128]), r"do not fit.*expected \[128, rank\]"
    ),
    "a rank of nothing": ("full", without_rank, "do not fit"),
    "A is not transposed": ("full", reshape(2, [RANK, 128]), "ffn_down.*do not fit"),
    "weights that are NaN": ("full", poison(math.nan), r"lora_a' \(F32\) .*number 2 of 256 is nan"),
    "weights that are infinite": ("full", poison(math.inf), "NaN or infinite"),
    "another architecture": (
        "full", set_pair("general.architecture", 8, text("gemma3")), "'gemma3'.*'llama'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_would_end_the_process_is_refused(case: str, tmp_path: Path) -> None:
    kind, change, said = BROKEN[case]
    path = write(tmp_path / "adapter.gguf", kind)
    file = parse(path.read_bytes())
    change(file)
    path.write_bytes(file.encode())
    with pytest.raises(InvalidModelError, match=f"(?s)adapter.gguf cannot be used.*{said}"):
        use(tiny_model(kind), path)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("damaged", [False, True])
def test_weights_of_any_type_are_finite(kind: str, damaged: bool, tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    path = write(tmp_path / "adapter.gguf", "full", [name])
    file = parse(path.read_bytes())
    number, block, size = next((n, b, s) for n, (t, b, s) in GGML_TYPES.items() if t == kind)
    rows = bytearray(math.prod(file.tensors[0].dims) // block * size)
    rows[size * 3 : size * 4] = (b"\xff" if damaged else b"\x01") * size  # a scale that is NaN
    file.data = rows + bytearray(-len(rows) % 32) + file.data[file.tensors[1].offset :]
    file.tensors[0].type, file.tensors[1].offset = number, len(rows) + -len(rows) % 32
    path.write_bytes(file.encode())
    if not damaged:
        assert all(use(tiny_model("full"), path)[1:])
        return
    said = rf"(?s)adapter.gguf cannot be used: .*'{name}.lora_a' \({kind}\) .*(nan|inf)"
    with pytest.raises(InvalidModelError, match=said):
        use(tiny_model("full"), path)


def test_embeddings_that_are_the_output_too_cannot_be_adapted(tmp_path: Path) -> None:
    path = write(tmp_path / "adapter.gguf", "iswa", ["token_embd.weight"])
    with pytest.raises(InvalidModelError, match=r"token_embd.*tied"):
        use(tiny_model("iswa"), path)


def test_what_is_no_adapter_is_said(tmp_path: Path) -> None:
    info = check_model_file(tiny_model("full"))
    with pytest.raises(ModelNotFoundError, match=r"no LoRA adapter at .*gone"):
        check_adapter_file(tmp_path / "gone.gguf", info)
    with pytest.raises(InvalidModelError, match="is not an adapter"):
        check_adapter_file(tiny_model("iswa"), info)
    (tmp_path / "page.gguf").write_text("<!doctype html>")
    with pytest.raises(InvalidModelError, match="web page"):
        check_adapter_file(tmp_path / "page.gguf", info)


@pytest.mark.parametrize(
    ("kind", "names", "said"),
    [
        ("hybrid_swa", ["blk.0.shortconv.conv.weight"], "shortconv.conv.weight"),
        ("hybrid_swa", ["blk.0.shortconv.conv.weight"], "changes nothing"),
        ("full", [], "changes nothing"),
    ],
)
def test_what_has_no_effect_is_said(
    kind: str, names: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "idle.gguf", kind, names)
    with caplog.at_level(logging.WARNING, logger="llama_py"):
        use(tiny_model(kind), path)
    assert any("idle.gguf" in line and said in line for line in caplog.messages)


# ---- files drawn at random ----------------------------------------------------------------------


#: Weights that are too large give logits that are not finite, which the decoding says.
ENDS = {"works", "InvalidModelError", "DecodeError"}


def damaged(seed: int, folder: Path) -> tuple[str, Path, str]:
    """The kind of the model, a damaged adapter for it, and what was done to it."""
    kind = [*CHANGED][(seed // len(MUTATIONS)) % len(CHANGED)]
    path = write(folder / "adapter.gguf", kind)
    rng = random.Random(seed)
    if seed % 3 == 0:  # other shapes and types, in an orderly file
        file = parse(path.read_bytes())
        tensor = rng.choice(file.tensors)
        edges = (0, 1, RANK, 3, 64, 128, 519)
        tensor.dims = [rng.choice((each, *edges)) for each in tensor.dims]
        tensor.dims += [rng.choice((1, 2, 4))] * rng.randrange(3)
        tensor.dims = tensor.dims[:4]
        tensor.type = rng.choice((0, 0, 1, 26, 28))
        file.data = bytearray(rng.randbytes(1 << 12)) * (1 << 9)
        lay_out(file)
        name, data = "reshape", file.encode()
    else:
        name, data = mutate(path, seed)
    path.write_bytes(data)
    return kind, path, name


def work(first: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            kind, path, name = damaged(seed, Path(folder))
            print("begin", seed, kind, name, flush=True)
            try:
                use(tiny_model(kind), path)
            except LlamaError as error:
                print("end", type(error).__name__, flush=True)
            else:
                print("end works", flush=True)


def run(first: int, last: int) -> Counter[str]:
    """Outcomes in a process of their own; a death is one of them."""
    command = [sys.executable, "-m", "tests.hostile.test_adapters", str(first), str(last)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60 + last - first, check=False
    )
    lines = done.stdout.splitlines()
    outcomes = Counter(line.split()[1] for line in lines if line.startswith("end"))
    if done.returncode:
        outcomes[f"died of {done.returncode} at: {lines[-1]}: {done.stderr[-300:]}"] += 1
    return outcomes


def test_damaged_adapters_end_in_an_error_or_work() -> None:
    outcomes = run(0, 120)
    assert {*outcomes} <= ENDS, outcomes
    assert outcomes["InvalidModelError"] > 60
    assert outcomes["works"] > 5


@pytest.mark.long
def test_many_damaged_adapters_end_in_an_error_or_work() -> None:
    outcomes = run(120, 6000)
    assert {*outcomes} <= ENDS, outcomes


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]))
