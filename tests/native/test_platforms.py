"""Other compilers and processors, as far as the ones that are installed here show them.

What was built and run with each is in ``docs/platforms.md``. Here is what a syntax check sees:
declarations that another ABI lays out otherwise, and kernels that another compiler does not take.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "native" / "kernels"

#: C compilers, of any of which an installation may have been made.
C_COMPILERS = (
    "gcc",
    "clang-14",
    "clang-19",
    "aarch64-linux-gnu-gcc",
    "x86_64-w64-mingw32-gcc",
    "x86_64-w64-mingw32-gcc-posix",
    "musl-gcc",
)
X86 = (
    "g++",
    "clang++-14",
    "clang++-15",
    "clang++-16",
    "clang++-19",
    "x86_64-w64-mingw32-g++-posix",
)
#: Files of ggml, and headers of rules that the build includes first.
CHANGED = {
    "ggml-cpu/ops.cpp": ("attention_heads", "attention_tiles", "gelu"),
    "ggml-cpu/llamafile/sgemm.cpp": ("half_products", "q8_products"),
    "ggml-cpu/ggml-cpu.cpp": ("weight_panels",),
    "ggml-cpu/repack.cpp": ("tensor_alignment",),
}
CPUS = ("haswell", "alderlake", "icelake-server")


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def checked(*command: str | Path) -> str:
    """What a compiler says against it."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("name", C_COMPILERS)
def test_the_declarations_are_those_of_every_abi(name: str, llama_cpp: Path) -> None:
    folders = ("include", "ggml/include", "tools/mtmd")
    includes = [f"-I{llama_cpp / folder}" for folder in folders]
    includes.append(f"-I{ROOT / 'native' / 'shim'}")
    options = ["-std=c11", "-fsyntax-only", *includes, str(ROOT / "native" / "abi_check.c")]
    assert checked(compiler(name), *options) == ""


@pytest.mark.slow
def test_32_bits_are_refused_with_a_sentence(gcc: str, tmp_path: Path) -> None:
    cmake = compiler("cmake")
    options = ["-DCMAKE_C_FLAGS=-m32", "-DCMAKE_CXX_FLAGS=-m32"]
    # No 32-bit libraries are linked to find that out.
    options.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    said = checked(cmake, "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options)
    assert "llama_py is for 64-bit systems" in " ".join(said.split())


@pytest.mark.long
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", X86)
def test_compilers_take_the_kernels(name: str, cpu: str, llama_cpp: Path) -> None:
    found, ggml = compiler(name), llama_cpp / "ggml"
    options = [f"-march={cpu}", "-std=c++17", "-w", "-fsyntax-only", "-D_GNU_SOURCE"]
    options += ["-DGGML_USE_LLAMAFILE", "-DGGML_USE_CPU_REPACK"]
    folders = (ggml / "src", ggml / "src" / "ggml-cpu", ggml / "include")
    options += [f"-I{folder}" for folder in folders]
    said = {
        "weight_panels.cpp": checked(found, *options, KERNELS / "weight_panels/weight_panels.cpp")
    }
    for file, rules in CHANGED.items():
        first = [part for rule in rules for part in ("-include", KERNELS / rule / f"{rule}.h")]
        said[file] = checked(found, *options, *first, ggml / "src" / file)
    assert {file: text[:2000] for file, text in said.items() if text} == {}
