"""``import llama_py`` is quick, and loads no native library until one is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

LIBRARIES = ("libllama", "libggml", "libmtmd", "llama_py_chat")
MAPPED = f"""
def mapped():
    maps = open("/proc/self/maps").read()
    return sorted(name for name in {LIBRARIES} if name in maps)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_libraries_load_when_they_are_needed(run_python: Run) -> None:
    code = f"""
import llama_py
from llama_py import llama_cpp
from llama_py._native import llama_h, ggml_h, gguf_h, mtmd_h, chat_h
{MAPPED}
print(mapped())
llama_cpp.llama_batch(); llama_cpp.LLAMA_DEFAULT_SEED; dir(llama_cpp)
print(mapped())
llama_cpp.llama_time_us()
print(mapped())
llama_cpp.mtmd_default_marker()
print(mapped())
"""
    done = run_python(code)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[]",
        "[]",
        "['libggml', 'libllama']",
        "['libggml', 'libllama', 'libmtmd']",
    ]


@pytest.mark.parametrize("module", ["llama_py", "llama_py.llama_cpp"])
def test_import_is_quick(run_python: Run, module: str) -> None:
    code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    run_python(f"import {module}", PYTHONDONTWRITEBYTECODE="")  # writes the bytecode, if it may
    times = [float(run_python(code).stdout) for _ in range(5)]
    assert min(times) < 0.15, times
