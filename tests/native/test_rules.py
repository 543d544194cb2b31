"""Rules of the build (``cmake/Rules.cmake``, ``cmake/IncludedFirst.cmake``): where they apply.

Builds are configured only. AVX512-FP16 and AMX have tests of their own.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import configured

pytestmark = pytest.mark.slow

KERNELS = ("/llamafile/sgemm.cpp",)
BUFFERS = ("/src/ggml-backend.cpp", "/ggml-cpu/repack.cpp", "/amx/amx.cpp")
MEMORY = ("/src/ggml.c",)
ATTENTION = ("/ggml-cpu/ops.cpp",)
PREFETCH = "-fprefetch-loop-arrays"


@pytest.fixture(scope="module")
def gcc() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("needs g++")
    named = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    command = [found, "-march=znver3", "-x", "c++", "-E", "-dM", "/dev/null"]
    known = subprocess.run(command, capture_output=True, text=True, check=False)
    if "clang" in named or known.returncode:
        pytest.skip("this g++ is no GCC for x86")
    return found


def for_cpu(name: str) -> tuple[str, str]:
    return f"-DCMAKE_C_FLAGS=-march={name}", f"-DCMAKE_CXX_FLAGS=-march={name}"


@pytest.mark.parametrize(
    ("cpu", "more", "state"),
    [
        ("znver3", (), "applied"),
        ("znver3", ("-DLLAMA_PY_LLAMAFILE_PREFETCH=OFF",), "off"),
        ("sapphirerapids", (), "without effect"),
        ("x86-64", (), "without effect"),
    ],
)
def test_kernels_prefetch_where_that_pays(
    gcc: str, tmp_path: Path, cpu: str, more: tuple[str, ...], state: str
) -> None:
    (command,), rules = configured(tmp_path, gcc, KERNELS, *for_cpu(cpu), *more)
    assert rules["LLAMA_PY_LLAMAFILE_PREFETCH"] == state
    assert (PREFETCH in command.split()) == (state == "applied")


def test_headers_can_be_turned_off(gcc: str, tmp_path: Path) -> None:
    headers = {
        "LLAMA_PY_TENSOR_ALIGNMENT": "tensor_alignment.h",
        "LLAMA_PY_HUGE_PAGES": "huge_pages.h",
        "LLAMA_PY_ATTENTION_HEADS": "attention_heads.h",
        "LLAMA_PY_ATTENTION_TILES": "attention_tiles.h",
        "LLAMA_PY_GELU": "gelu.h",
        "LLAMA_PY_HALF_PRODUCTS": "half_products.h",
        "LLAMA_PY_Q8_PRODUCTS": "q8_products.h",
    }
    files = BUFFERS + MEMORY + ATTENTION + KERNELS
    commands, states = configured(tmp_path / "on", gcc, files, *for_cpu("icelake-server"))
    assert len(commands) == len(files)
    used = [sum(header in command for command in commands) for header in headers.values()]
    assert used == [len(BUFFERS), len(MEMORY), *[len(ATTENTION)] * 3, *[len(KERNELS)] * 2]
    assert [states[rule] for rule in headers] == ["applied"] * 7
    options = [f"-D{rule}=OFF" for rule in headers]
    commands, states = configured(tmp_path / "off", gcc, files, *options)
    assert len(commands) == len(files)
    assert not any(".h " in command.partition(" -o ")[0] for command in commands)
    assert [states[rule] for rule in headers] == ["off"] * 7


def test_the_cells_of_windows_can_be_left_as_llama_cpp_has_them(gcc: str, tmp_path: Path) -> None:
    source = ("/llama-kv-cache.cpp",)
    (command,), rules = configured(tmp_path / "on", gcc, source)
    assert rules["LLAMA_PY_WINDOW_CELLS"] == "applied"
    assert "/corrected/llama-kv-cache.cpp" in command
    (command,), rules = configured(tmp_path / "off", gcc, source, "-DLLAMA_PY_WINDOW_CELLS=OFF")
    assert rules["LLAMA_PY_WINDOW_CELLS"] == "off"
    assert "/corrected/" not in command


def test_a_fault_that_is_not_where_it_was_does_not_come_back_in_silence(
    llama_cpp: Path, tmp_path: Path
) -> None:
    """Another llama.cpp, whose lines are others: the build stops, and says what to look at."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    text = (llama_cpp / "src" / "llama-kv-cache.cpp").read_text(encoding="utf-8")
    changed = text.replace("if (seq_pos_max_rm[s] == -1)", "if (seq_pos_max_rm[s] < 0)")
    assert changed != text
    (tmp_path / "source" / "src").mkdir(parents=True)
    (tmp_path / "source" / "src" / "llama-kv-cache.cpp").write_text(changed, encoding="utf-8")
    rule = Path(__file__).parents[2] / "cmake" / "CorrectedSource.cmake"
    script = tmp_path / "try.cmake"
    script.write_text(
        f'set(LLAMA_PY_SOURCE_DIR "{tmp_path / "source"}")\ninclude("{rule}")\n', encoding="utf-8"
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "LLAMA_PY_WINDOW_CELLS" in done.stderr
    assert "docs/upstream-notes.md" in done.stderr


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (("-DGGML_AVX2=OFF", "-DGGML_FMA=OFF", "-DGGML_F16C=OFF"), ()),
        ((), ("LLAMA_PY_ATTENTION_HEADS", "LLAMA_PY_GELU", "LLAMA_PY_HALF_PRODUCTS")),
        (
            ("-DGGML_AVX_VNNI=ON",),
            (
                "LLAMA_PY_ATTENTION_HEADS",
                "LLAMA_PY_GELU",
                "LLAMA_PY_HALF_PRODUCTS",
                "LLAMA_PY_Q8_PRODUCTS",
            ),
        ),
    ],
)
def test_a_rule_whose_instructions_are_not_there_has_no_effect(
    gcc: str, tmp_path: Path, options: tuple[str, ...], reached: tuple[str, ...]
) -> None:
    """``llama-py inspect`` shows what a build has, and not what it would have elsewhere."""
    _, states = configured(tmp_path, gcc, KERNELS, *options)
    rules = ("ATTENTION_HEADS", "GELU", "HALF_PRODUCTS", "Q8_PRODUCTS")
    names = [f"LLAMA_PY_{rule}" for rule in rules]
    wanted = ["applied" if name in reached else "without effect" for name in names]
    assert [states[name] for name in names] == wanted


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "alderlake", "icelake-server"])
@pytest.mark.parametrize(
    "header", ["attention_heads.h", "gelu.h", "half_products.h", "q8_products.h"]
)
def test_a_header_needs_no_other_one(gcc: str, llama_cpp: Path, header: str, cpu: str) -> None:
    """Each rule can be turned off by itself."""
    source = llama_cpp / "ggml" / "src"
    folders = [source, source / "ggml-cpu", llama_cpp / "ggml" / "include"]
    includes = [f"-I{folder}" for folder in folders]
    path = Path(__file__).parents[2] / "cmake" / header
    options = ["-std=gnu++17", f"-march={cpu}", "-fsyntax-only", "-w", "-x", "c++", "/dev/null"]
    command = [gcc, *includes, "-include", str(path), *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
