"""A pointer to one struct is not a pointer to another: in mypy, and at run time."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from llama_py._native import llama_h, mtmd_h

ROOT = Path(__file__).resolve().parents[2]

GOOD = """\
import ctypes
from llama_py import llama_cpp as C

model = C.llama_model_load_from_file(b"m.gguf", C.llama_model_default_params())
context = C.llama_init_from_model(model, C.llama_context_default_params())
batch = C.llama_batch_init(8, 0, 1)
tokens = (C.llama_token * 8)()
n: int = C.llama_tokenize(C.llama_model_get_vocab(model), b"hi", 2, tokens, 8, True, False)
batch.n_tokens = n
batch.token[0] = tokens[0]
batch.token = tokens
status: int = C.llama_decode(context, batch)
best: float = C.llama_get_logits_ith(context, -1)[0]
offset: int = C.llama_batch.token.offset
sampler: C.llama_sampler_p = C.llama_sampler_init_greedy()
C.llama_log_set(C.ggml_log_callback(lambda level, text, data: None), None)
kept: bool = C.llama_memory_seq_rm(C.llama_get_memory(context), 0, 1, -1)
"""
BAD = {
    "a model where a context belongs": "C.llama_n_ctx(model)",
    "a context where a memory belongs": "C.llama_memory_clear(context, True)",
    "a vocabulary where a model belongs": "C.llama_model_size(C.llama_model_get_vocab(model))",
    "an int where a context belongs": "C.llama_n_ctx(0)",
    "text that is not bytes": 'C.llama_model_load_from_file("m", C.llama_model_default_params())',
    "an array of other numbers": "C.llama_batch_get_one((ctypes.c_float * 1)(), 1)",
    "a field that does not exist": "batch.n_token",
    "a value of the wrong type": 'batch.n_tokens = "8"',
    "a callback with other arguments": "C.ggml_abort_callback(lambda: True)",
    "a deprecated function": "C.llama_new_context_with_model",
}


def run_mypy(source: str, folder: Path) -> str:
    snippet = folder / "snippet.py"
    snippet.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--show-error-codes"]
    command += ["--cache-dir", str(folder / "cache"), str(snippet)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_mypy_tells_them_apart(tmp_path: Path) -> None:
    report = run_mypy(GOOD + "\n".join(BAD.values()) + "\n", tmp_path)
    first = len(GOOD.splitlines()) + 1
    wrong = {line for line in range(1, first + len(BAD)) if f"snippet.py:{line}: error" in report}
    assert wrong == set(range(first, first + len(BAD))), report


@pytest.mark.parametrize(
    "other", [llama_h.llama_model_p(8), mtmd_h.mtmd_context_p(8), ctypes.c_void_p(8)]
)
def test_run_time_tells_them_apart(other: ctypes.c_void_p) -> None:
    with pytest.raises(ctypes.ArgumentError, match="argument 1"):
        llama_h.llama_n_ctx(other)  # type: ignore[arg-type]


def test_a_struct_field_takes_its_own_handle_only() -> None:
    params = mtmd_h.mtmd_context_params()
    with pytest.raises(TypeError):
        params.device = llama_h.llama_model_p(8)  # type: ignore[assignment]
