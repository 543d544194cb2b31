"""Quantized files are what llama.cpp makes; what it finds out midway is said before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py import Llama, demo_model_path
from llama_py.errors import InvalidModelError, LlamaError, ParameterError
from llama_py.gguf.check import whole_file
from llama_py.tools.imatrix import collect_matrix, merge_matrices, read_matrix
from llama_py.tools.quantize import plan_quantize, quantize
from tests.models import tiny_model
from tests.test_cli import run

FULL = Path(tiny_model("full"))


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model in F16."""
    path = tmp_path_factory.mktemp("floats") / "demo-f16.gguf"
    quantize(demo_model_path(), path, "F16", allow_requantize=True)
    return path


def types(path: Path) -> dict[str, str]:
    return {each.name: each.type for each in whole_file(path).tensors}


def weights(path: Path) -> list[str]:
    """Names of the tensors that are quantized."""
    return [each.name for each in whole_file(path).tensors if each.type not in ("F32", "F16")]


@pytest.mark.parametrize("file_type", ["Q8_0", "q4_0", "Q5_0", "IQ4_NL"])
def test_values_are_those_of_the_type(floats: Path, tmp_path: Path, file_type: str) -> None:
    """Another implementation reads the result: the weights are near those of the source."""
    target = tmp_path / "x.gguf"
    plan = quantize(floats, target, file_type, pure=True)
    assert {t.name: t.after for t in plan.tensors} == types(target)
    assert plan.n_bytes == sum(each.n_bytes for each in whole_file(target).tensors)
    readers = {t.name: t for t in gguf.GGUFReader(target).tensors}
    source = {t.name: t for t in gguf.GGUFReader(floats).tensors}
    bound = {"Q8_0": 0.01, "Q4_0": 0.12, "Q5_0": 0.06, "IQ4_NL": 0.12}[file_type.upper()]
    quantized = weights(target)
    assert quantized
    for name in quantized:
        old, new = (
            gguf.dequantize(each[name].data, each[name].tensor_type).ravel()
            for each in (source, readers)
        )
        assert np.linalg.norm(new - old) <= bound * np.linalg.norm(old), name


def test_a_quantized_model_still_answers(floats: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    quantize(
        floats,
        tmp_path / "x.gguf",
        "Q8_0",
        progress=lambda done, total, name: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1] == len(whole_file(floats).tensors)
    with Llama(tmp_path / "x.gguf", n_ctx=256) as llm:
        reply = llm.create_chat_completion(
            [{"role": "user", "content": "What is 2 + 3?"}], temperature=0
        )
        assert reply["choices"][0]["message"]["content"] == "2 + 3 = 5."


def test_types_of_single_tensors(floats: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    quantize(floats, target, "Q4_0", tensor_types=[("ffn_down", "Q8_0")], embedding_type="q8_0")
    found = types(target)
    assert found["blk.0.ffn_down.weight"] == "Q8_0"
    assert found["token_embd.weight"] == "Q8_0"
    assert found["blk.0.ffn_up.weight"] == "Q4_0"


@pytest.mark.parametrize(
    ("source", "file_type", "words"),
    [
        ("demo", "Q4_0", "are quantized already"),
        ("floats", "IQ2_XXS", "needs an importance matrix"),
        ("floats", "Q9", "there is no type 'Q9'"),
    ],
)
def test_what_cannot_be_is_said_before(
    floats: Path, tmp_path: Path, source: str, file_type: str, words: str
) -> None:
    path = floats if source == "floats" else Path(demo_model_path())
    with pytest.raises(ParameterError, match=words):
        quantize(path, tmp_path / "x.gguf", file_type)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ParameterError, match="is a folder"):
        quantize(floats, tmp_path, "Q8_0")
    with pytest.raises(ParameterError, match="no layer 99 of 0 to"):
        plan_quantize(floats, "Q8_0", prune_layers=[0, 99])


def matrix(path: Path, source: Path, leave_out: str = "", width: int = 0) -> Path:
    """An importance matrix of ones."""
    writer = gguf.GGUFWriter(path, "", use_temp_file=False)
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a text"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for tensor in whole_file(source).tensors:
        if len(tensor.shape) == 2 and tensor.name != leave_out:
            size = width or tensor.shape[0]
            values = np.linspace(1, 4, size, dtype=np.float32).reshape(1, -1)
            writer.add_tensor(f"{tensor.name}.in_sum2", values * 7)
            writer.add_tensor(f"{tensor.name}.counts", np.full((1, 1), 7, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_matrix_changes_what_is_written(floats: Path, tmp_path: Path) -> None:
    made = matrix(tmp_path / "m.gguf", floats)
    read = read_matrix(made)
    assert (read.datasets, read.n_chunks) == (("a text",), 3)
    quantize(floats, tmp_path / "with.gguf", "Q4_0", imatrix=made)
    quantize(floats, tmp_path / "without.gguf", "Q4_0")
    scalars = whole_file(tmp_path / "with.gguf").scalars
    assert scalars["quantize.imatrix.entries_count"] == len(read.entries)
    assert scalars["quantize.imatrix.dataset"] == "a text"
    assert (tmp_path / "with.gguf").read_bytes()[-4096:] != (
        tmp_path / "without.gguf"
    ).read_bytes()[-4096:]


def test_a_matrix_that_does_not_fit_is_refused_before(floats: Path, tmp_path: Path) -> None:
    wide = matrix(tmp_path / "wide.gguf", floats, width=32)
    with pytest.raises(ParameterError, match="made for another model"):
        quantize(floats, tmp_path / "x.gguf", "Q4_0", imatrix=wide)
    with pytest.raises(InvalidModelError, match="not an importance matrix"):
        quantize(floats, tmp_path / "x.gguf", "Q4_0", imatrix=floats)
    assert not (tmp_path / "x.gguf").exists()


def test_it_can_be_cancelled(floats: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"the old one")
    with pytest.raises(InterruptedError):
        quantize(floats, target, "Q8_0", progress=lambda done, total, name: done < 5)
    assert target.read_bytes() == b"the old one"
    assert len([*tmp_path.iterdir()]) == 1


KILLED = """
import os, signal, sys
from llama_py.tools.quantize import quantize

quantize(sys.argv[1], sys.argv[2], "Q8_0", progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name")
def test_a_parent_that_is_killed_leaves_nothing(floats: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(floats), str(target)], check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    time.sleep(1)
    assert not [*tmp_path.iterdir()]


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    dice = np.random.default_rng(5)
    data, head = FULL.read_bytes(), whole_file(FULL).data_offset
    path = tmp_path / "m.gguf"
    for _ in range(int(os.environ.get("LLAMA_PY_DAMAGED", "4"))):
        damaged = bytearray(data)
        for place in dice.integers(4, head, 2):
            damaged[place] = dice.integers(256)
        path.write_bytes(damaged)
        try:
            planned, problem = plan_quantize(path, "Q8_0"), ""
        except LlamaError as error:
            planned, problem = None, str(error)
        if planned is None:
            assert str(path) in problem
        else:
            assert {each.name for each in planned.tensors} == {*types(path)}
        assert [*tmp_path.iterdir()] == [path]


def test_the_command(floats: Path, tmp_path: Path) -> None:
    planned = run("quantize", str(floats), "unused", "Q8_0", "--dry-run").stdout
    assert "token_embd.weight" in planned
    assert "F16 -> Q8_0" in planned
    done = run("quantize", str(floats), str(tmp_path / "x.gguf"), "Q8_0")
    assert "8.5" in done.stdout
    refused = run("quantize", str(floats), str(floats), "Q8_0")
    assert (refused.returncode, "is the source" in refused.stderr) == (2, True)


# ---- matrices --------------------------------------------------------------------------------

TEXT = " ".join(f"{n} and {n * 7 % 13} are {n + n * 7 % 13}." for n in range(400))


def test_a_matrix_has_the_sums_of_what_the_layers_saw(tmp_path: Path) -> None:
    """The inputs of the first layer's queries are the normed embeddings: computed here again."""
    path = tmp_path / "m.gguf"
    assert collect_matrix(FULL, TEXT, path, n_ctx=32, n_batch=64, chunks=4) == 4
    found = read_matrix(path)
    tensors = {t.name: t for t in gguf.GGUFReader(FULL).tensors}
    table = gguf.dequantize(
        tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type
    )
    norm = gguf.dequantize(
        tensors["blk.0.attn_norm.weight"].data, tensors["blk.0.attn_norm.weight"].tensor_type
    )
    with Llama(FULL, n_ctx=256) as llm:
        pieces = np.asarray(llm.tokenize(TEXT.encode())[:128]).reshape(4, 32)
        if llm.vocab.add_bos:
            pieces[:, 0] = llm.token_bos()
    rows = table[pieces.ravel()].astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5) * norm
    expected = (normed**2).mean(axis=0)
    assert found.entries["blk.0.attn_q.weight"] == pytest.approx(expected, rel=1e-3)
    assert {name.split(".")[0] for name in found.entries} == {"blk"}


def test_a_matrix_goes_on_and_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.gguf", tmp_path / "parts.gguf"
    collect_matrix(FULL, TEXT, whole, n_ctx=32, n_batch=32, chunks=6, output=True)
    collect_matrix(FULL, TEXT, parts, n_ctx=32, n_batch=32, chunks=2, output=True)
    with pytest.raises(ParameterError, match="pass resume=True"):
        collect_matrix(FULL, TEXT, parts, n_ctx=32, n_batch=32)
    with pytest.raises(ParameterError, match="n_ctx=32, not 64"):
        collect_matrix(FULL, TEXT, parts, n_ctx=64, n_batch=64, resume=True)
    collect_matrix(FULL, TEXT, parts, n_ctx=32, n_batch=32, chunks=6, output=True, resume=True)
    one, other = read_matrix(whole), read_matrix(parts)
    assert (one.n_chunks, other.n_chunks) == (6, 6)
    assert one.entries.keys() == other.entries.keys()
    for name, values in one.entries.items():
        assert other.entries[name] == pytest.approx(values, rel=1e-4)
    assert any(not name.startswith("blk.") for name in one.entries)
    merge_matrices([whole, parts], tmp_path / "both.gguf")
    both = read_matrix(tmp_path / "both.gguf")
    assert both.n_chunks == 12
    assert both.entries["blk.0.attn_q.weight"] == pytest.approx(
        one.entries["blk.0.attn_q.weight"], rel=1e-4
    )


def test_experts_have_counts_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    collect_matrix(tiny_model("moe"), TEXT, path, n_ctx=64, n_batch=64, chunks=2)
    counts = {t.name: t.data for t in gguf.GGUFReader(path).tensors if t.name.endswith(".counts")}
    experts = [each for name, each in counts.items() if "_exps" in name]
    assert experts
    assert all(each.size > 1 for each in experts)
