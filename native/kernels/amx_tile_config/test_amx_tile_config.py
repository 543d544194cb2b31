"""What ``ldtilecfg`` is given on CPUs with AMX, read from object code: no such CPU is needed.

ggml fills a table of 64 bytes on its stack, rows and columns of eight tiles, and the instruction
reads it. GCC 12 drops these stores unless our header is included (``amx_tile_config.h``), and
then the first quantized matrix product of two rows ends the process.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from llama_py._native import loader

ROOT = Path(__file__).resolve().parents[3]
HEADER = Path(__file__).resolve().with_name("amx_tile_config.h")
#: Where ``tile_config_t`` has the bytes per row, and the rows, of the eight tiles.
COLUMNS, ROWS = set(range(16, 32)), set(range(48, 56))

STORE = re.compile(r"v?mov\S*\s+(?P<source>\S+),(?P<at>-?0x[0-9a-f]+)?\((?P<base>%\w+)\)$")
CONFIG = re.compile(r"ldtilecfg\s+(?P<at>-?0x[0-9a-f]+)?\((?P<base>%\w+)\)$")
ZEROED = re.compile(r"v?p?xor\w*\s+(?P<one>%\w+)(,(?P=one))+$")
WIDTHS = {"movb": 1, "movw": 2, "movl": 4, "movq": 8}
VECTORS = {"x": 16, "y": 32, "z": 64}


@pytest.fixture(scope="session")
def gcc() -> str:
    """A GCC that knows CPUs with AMX; other compilers have no such fault."""
    compiler = shutil.which("g++")
    if compiler is None or shutil.which("objdump") is None:
        pytest.skip("needs g++ and objdump")
    known = run(compiler, "-march=sapphirerapids", "-x", "c++", "-E", "-dM", "/dev/null")
    if known.returncode or "__clang__" in known.stdout or "__AMX_INT8__" not in known.stdout:
        pytest.skip("this g++ is not a GCC that knows -march=sapphirerapids")
    return compiler


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def compiled(gcc: str, llama_cpp: Path, source: Path, target: Path, *options: str) -> Path:
    """ggml's AMX code as the build compiles it, for a CPU with AMX."""
    folders = [llama_cpp / "ggml" / part for part in ("include", "src", "src/ggml-cpu")]
    includes = [f"-I{folder}" for folder in (*folders, folders[-1] / "amx")]
    flags = ["-std=gnu++17", "-O3", "-DNDEBUG", "-fPIC", "-march=sapphirerapids", "-D_GNU_SOURCE"]
    result = run(gcc, *flags, *options, *includes, "-c", source, "-o", target)
    assert result.returncode == 0, result.stderr[-2000:]
    return target


def configurations(binary: Path) -> Iterator[list[str]]:
    """For each ``ldtilecfg``, the instructions that lead to it, itself at the end."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(binary)]
    before: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        for line in objdump.stdout or ():
            _, tab, instruction = line.partition(":\t")
            if tab:
                before = [*before[-39:], re.sub(r"\s*[#<].*", "", instruction).strip()]
            if tab and before[-1].startswith("ldtilecfg"):
                yield before


def stored(instructions: list[str]) -> set[int]:
    """Which bytes of the table hold more than the zeros that it was cleared with."""
    table = CONFIG.match(instructions[-1])
    assert table, instructions[-1]
    start, kept, zeros = _number(table["at"]), set[int](), set[str]()
    for line in instructions[:-1]:
        zeroed = ZEROED.match(line)
        store = STORE.match(line)
        if store:
            where = _number(store["at"]) - start
            covered = set(range(where, where + _width(line.split()[0], store["source"])))
            if store["base"] == table["base"] and store["source"][-2:] not in zeros:
                kept |= covered
        elif zeroed:
            zeros.add(zeroed["one"][-2:])
        else:
            zeros.discard(line[-2:])
    return kept & set(range(64))


def _number(text: str | None) -> int:
    return int(text or "0", 16)


def _width(mnemonic: str, source: str) -> int:
    """Bytes that a store writes."""
    if source.startswith("%") and source[2:4] == "mm":
        return 8 if mnemonic.lstrip("v") in ("movq", "movlps", "movsd") else VECTORS[source[1]]
    if mnemonic in WIDTHS:
        return WIDTHS[mnemonic]
    return 8 if source.startswith("%r") and source[-1] not in "dwb" else 4


def all_there(found: Iterable[list[str]]) -> None:
    every = [*found]
    assert every, "no ldtilecfg: is this ggml's AMX code?"
    for instructions in every:
        assert stored(instructions) >= COLUMNS | ROWS, "\n".join(instructions)


def beginning(llama_cpp: Path, folder: Path) -> Path:
    """ggml's AMX code up to the function that configures the tiles, and a call of it."""
    text = (llama_cpp / "ggml/src/ggml-cpu/amx/mmq.cpp").read_text(encoding="utf-8")
    end = text.index("\n}\n", text.index("void ggml_tile_config_init(")) + 3
    source = folder / "beginning.cpp"
    source.write_text(text[:end] + "}\nvoid first() { ggml_tile_config_init(); }\n#endif\n")
    return source


def test_with_our_header_all_of_the_table_is_stored(
    gcc: str, llama_cpp: Path, tmp_path: Path
) -> None:
    source = llama_cpp / "ggml/src/ggml-cpu/amx/mmq.cpp"
    binary = compiled(gcc, llama_cpp, source, tmp_path / "mmq.o", "-include", str(HEADER))
    all_there(configurations(binary))


def test_without_our_header_gcc_12_drops_it(gcc: str, llama_cpp: Path, tmp_path: Path) -> None:
    """When this fails with every GCC in use, the header has done its work."""
    if int(run(gcc, "-dumpversion").stdout.split(".")[0]) > 12:
        pytest.skip("known of GCC 12")
    source = beginning(llama_cpp, tmp_path)
    (without,) = configurations(compiled(gcc, llama_cpp, source, tmp_path / "without.o"))
    assert not stored(without) & (COLUMNS | ROWS), "the header is no longer needed"
    option = ("-include", str(HEADER))
    all_there(configurations(compiled(gcc, llama_cpp, source, tmp_path / "with.o", *option)))


def test_the_libraries_in_use_store_it(gcc: str) -> None:
    """On a machine with AMX, and in a build for many CPUs."""
    folder = Path(loader.library("ggml")._name).parent
    found = [each for path in folder.glob("*ggml-cpu*.so") for each in configurations(path)]
    if not found:
        pytest.skip("these libraries were built without AMX")
    all_there(found)


@pytest.mark.parametrize("portable", [False, True], ids=["this-cpu", "every-cpu"])
def test_the_build_includes_our_header(portable: bool, gcc: str, tmp_path: Path) -> None:
    """In the CPU backend, and in each of its variants where there are many."""
    commands = configured(gcc, tmp_path, f"-DLLAMA_PY_PORTABLE={'ON' if portable else 'OFF'}")
    assert len(commands) > 5 if portable else len(commands) == 1
    assert not portable or any("-mamx-int8" in command for command in commands)
    assert all(f"-include {HEADER} " in command for command in commands), commands


def test_the_header_can_be_left_out(gcc: str, tmp_path: Path) -> None:
    commands = configured(gcc, tmp_path, "-DLLAMA_PY_AMX_TILE_CONFIG=OFF")
    assert commands
    assert not any("amx_tile_config.h" in command for command in commands)


def configured(gcc: str, folder: Path, option: str) -> list[str]:
    """How a build with this option compiles ggml's AMX code. Nothing is compiled."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    options = [option, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_CXX_COMPILER={gcc}"]
    result = run(cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    entries = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    return [entry["command"] for entry in entries if entry["file"].endswith("/amx/mmq.cpp")]
