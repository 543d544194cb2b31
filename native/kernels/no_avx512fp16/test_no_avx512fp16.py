"""ggml's half-precision loops on CPUs with AVX512-FP16: no such CPU is needed.

With these instructions a loop takes more values at a time than a head of 64 has, and all of it runs
through the scalar remainder. Our build leaves them out (``rule.cmake``).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native import builds

#: The CPU that the builds of these tests are for, whatever the machine is.
CPU = "-march=sapphirerapids"
RULE = "-mno-avx512fp16"
#: The most common size of an attention head.
HEAD = 64


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("needs g++")
    command = [found, CPU, "-x", "c++", "-E", "-dM", "/dev/null"]
    known = subprocess.run(command, capture_output=True, text=True, check=False)
    if "__AVX512FP16__" not in known.stdout:
        pytest.skip("this compiler does not know AVX512-FP16")
    return found


def step(compiler: str, llama_cpp: Path, *flags: str) -> int:
    """How many half-precision values a loop of ggml takes at a time."""
    folders = [llama_cpp / "ggml" / part for part in ("include", "src", "src/ggml-cpu")]
    includes = [f"-I{folder}" for folder in folders]
    source = '#include "simd-mappings.h"\nSTEP GGML_F16_STEP\n'
    text = builds.run(
        compiler, CPU, *flags, "-std=gnu++17", *includes, "-x", "c++", "-E", "-", given=source
    )
    (line,) = (line for line in text.splitlines() if line.startswith("STEP "))
    return int(line.split()[1])


def test_with_the_rule_a_head_takes_no_remainder(compiler: str, llama_cpp: Path) -> None:
    assert HEAD % step(compiler, llama_cpp, RULE) == 0


def test_without_the_rule_a_head_is_all_remainder(compiler: str, llama_cpp: Path) -> None:
    """When this fails, ggml has another loop, and the rule may have done its work."""
    assert step(compiler, llama_cpp) > HEAD


def configured(folder: Path, compiler: str, *options: str) -> tuple[list[str], str]:
    """How a build compiles ggml's vector loops, and what became of the rule."""
    loops = ("/ggml-cpu/vec.cpp", "/ggml-cpu/ops.cpp", "/ggml-cpu/ggml-cpu.c")
    commands, rules = builds.configured(folder, compiler, loops, *options)
    return commands, rules["LLAMA_PY_NO_AVX512FP16"]


#: What a build with ``-march=native`` on that CPU is like.
FOR_THAT_CPU = (f"-DCMAKE_C_FLAGS={CPU}", f"-DCMAKE_CXX_FLAGS={CPU}")


@pytest.mark.slow
def test_a_build_for_such_a_cpu_leaves_the_instructions_out(compiler: str, tmp_path: Path) -> None:
    commands, rule = configured(tmp_path, compiler, *FOR_THAT_CPU)
    assert len(commands) == 3
    for command in commands:  # it has the last word
        assert command.rindex(RULE) > command.rindex(CPU), command
    assert rule == "applied"


@pytest.mark.slow
def test_the_rule_can_be_turned_off(compiler: str, tmp_path: Path) -> None:
    off = "-DLLAMA_PY_NO_AVX512FP16=OFF"
    commands, rule = configured(tmp_path, compiler, *FOR_THAT_CPU, off)
    assert commands
    assert not any(RULE in command for command in commands)
    assert rule == "off"


@pytest.mark.slow
def test_other_builds_are_as_they_were(compiler: str, tmp_path: Path) -> None:
    commands, rule = configured(tmp_path, compiler)
    assert commands
    assert not any(RULE in command for command in commands)
    assert rule == "without effect"
