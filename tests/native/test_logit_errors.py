"""How far logits are from float64 arithmetic: with each setting, and each rule of the build.

``python -m pytest -m long tests/native/test_logit_errors.py -s`` prints the figures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py._native import loader
from llama_py._native.loader import build_info
from tests.embeddings.reference import Reference
from tests.models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
#: Rules that change results, and what a build without one is configured with.
RULES = {
    "LLAMA_PY_NO_AVX512FP16": "-DLLAMA_PY_NO_AVX512FP16=OFF",
    "LLAMA_PY_ATTENTION_HEADS": "-DLLAMA_PY_ATTENTION_HEADS=OFF",
    "LLAMA_PY_HALF_PRODUCTS": "-DLLAMA_PY_HALF_PRODUCTS=OFF",
    "LLAMA_PY_Q8_PRODUCTS": "-DLLAMA_PY_Q8_PRODUCTS=OFF",
    "LLAMA_PY_ATTENTION_TILES": "-DLLAMA_PY_ATTENTION_TILES=OFF",
}
#: Heads of 64, as small models have them.
SHAPE: dict[str, Any] = {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 256}
TOKENS = [(7919 * i + i * i) % 250 + 1 for i in range(300)]
#: The last ones are evaluated one by one, as replies are.
REPLY = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "two threads": {"n_threads": 2},
    "no flash attention": {"flash_attn": False},
    "cells in F32": {"flash_attn": False, "type_k": "f32", "type_v": "f32"},
    "small batches": {"n_ubatch": 32},
}

CHILD = """
import sys
import numpy as np
from llama_py import Llama

path, out, settings, tokens, reply = sys.argv[1], sys.argv[2], *map(eval, sys.argv[3:])
with Llama(path, n_ctx=512, logits_all=True, **{"n_threads": 1, **settings}) as llm:
    llm.eval(tokens[:-reply])
    for token in tokens[-reply:]:
        llm.eval([token])
    np.save(out, llm.scores[: len(tokens)])
"""


def logits(path: Path, folder: Path, settings: dict[str, Any], library: Path | None) -> Any:
    """Those of a process of its own, float64 ``(len(TOKENS), n_vocab)``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if library is not None:
        environment[loader.VARIABLE] = str(library)
    out = folder / "logits.npy"
    arguments = [str(path), str(out), repr(settings), repr(TOKENS), repr(REPLY)]
    subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, env=environment)
    return np.load(out).astype(np.float64)


def expected(path: Path) -> Any:
    reference = Reference(path)
    output = reference.weights.get("output.weight", reference.weights["token_embd.weight"])
    return reference.rows(TOKENS) @ output.T


def error(found: Any, right: Any) -> float:
    """NMSE: the mean squared difference by the mean square."""
    return float(np.mean((found - right) ** 2) / np.mean(right**2))


@pytest.mark.long
@pytest.mark.parametrize(("quant", "most"), [("f32", 1e-5), ("f16", 1e-4)])
def test_no_setting_is_far_from_float64(quant: str, most: float, tmp_path: Path) -> None:
    path = tiny_model("full", quant=quant, **SHAPE)
    right = expected(path)
    for name, settings in SETTINGS.items():
        found = error(logits(path, tmp_path, settings, None), right)
        print(f"{quant}, {name}: NMSE {found:.1e}")
        assert found < most, name


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_with_a_rule_the_error_is_not_larger(rule: str, tmp_path: Path) -> None:
    state = build_info().get("rules", {}).get(rule)
    if state != "applied":
        pytest.skip(f"this build is the same with and without it: {state or 'not known'}")
    without = build_without(rule, tmp_path / "build")
    for quant in ("f32", "f16", "q8_0"):
        path = tiny_model("full", quant=quant, **SHAPE)
        right = expected(path)
        for name, settings in SETTINGS.items():
            ours = error(logits(path, tmp_path, settings, None), right)
            theirs = error(logits(path, tmp_path, settings, without), right)
            print(f"{rule}, {quant}, {name}: NMSE {ours:.2e} with it, {theirs:.2e} without")
            assert ours <= 1.1 * theirs, name


def build_without(rule: str, folder: Path) -> Path:
    """The libraries in use, with a CPU backend that was built without a rule."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    source = ["-S", str(ROOT), "-B", str(folder), "-G", "Ninja", RULES[rule]]
    subprocess.run([cmake, *source], check=True, stdout=subprocess.DEVNULL)
    build = [cmake, "--build", str(folder), "--target", "ggml-cpu"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    there = Path(loader.library("ggml")._name).parent
    libraries = shutil.copytree(there, folder / "lib", ignore=shutil.ignore_patterns("licenses"))
    (built,) = (folder / "bin").glob("libggml-cpu.so")
    shutil.copy(built, libraries / built.name)
    return Path(libraries)
