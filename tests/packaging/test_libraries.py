"""The native libraries of this installation: all there, relocatable, of the pinned source."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llama_py._native import loader
from llama_py.version import LLAMA_CPP_COMMIT, __version__

ROOT = Path(__file__).resolve().parents[2]
linux_only = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("readelf") is None, reason="reads ELF with readelf"
)


@cache
def directory() -> Path:
    """Where the loaded libraries are."""
    return Path(loader.library("llama")._name).parent


def shared_objects() -> list[Path]:
    return sorted(directory().glob("*.so*"))


@cache
def dynamic_section(path: Path) -> str:
    command = ["readelf", "--dynamic", "--wide", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def entries(path: Path, kind: str) -> list[str]:
    return re.findall(rf"\({kind}\).*\[(.*)\]", dynamic_section(path))


@linux_only
def test_one_file_per_library() -> None:
    names = {path.name for path in shared_objects()}
    expected = {f"lib{stem}.so" for stem in ("ggml-base", "ggml", "llama", "mtmd", "llama_py_chat")}
    assert expected <= names
    assert any(name.startswith("libggml-cpu") for name in names)
    assert all(re.fullmatch(r"lib[\w-]+\.so", name) for name in names), "a version in a file name"


@linux_only
def test_the_libraries_find_each_other_beside_themselves() -> None:
    names = {path.name for path in shared_objects()}
    for path in shared_objects():
        run_paths = entries(path, "RUNPATH") + entries(path, "RPATH")
        for run_path in run_paths:
            assert all(part.startswith("$ORIGIN") for part in run_path.split(":")), path
        ours = {n for n in entries(path, "NEEDED") if re.match(r"lib(ggml|llama|mtmd)", n)}
        assert ours <= names, path
        assert run_paths or not ours, path


@linux_only
def test_the_shim_exports_its_own_functions_only() -> None:
    shim = directory() / "libllama_py_chat.so"
    command = ["readelf", "--dyn-syms", "--wide", str(shim)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [row.split() for row in table.splitlines()]
    exported = [r[7] for r in rows if len(r) == 8 and r[4] in {"GLOBAL", "WEAK"} and r[6] != "UND"]
    assert len(exported) > 5
    assert all(name.startswith("llama_py_") for name in exported)


@linux_only
def test_no_path_of_the_building_machine_is_inside() -> None:
    script = [sys.executable, str(ROOT / "vendor" / "resolve.py")]
    source = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    for path in shared_objects():
        assert source.encode() not in path.read_bytes(), path


def test_the_build_says_what_it_is() -> None:
    info = json.loads((directory() / "build_info.json").read_text())
    pin = (ROOT / "vendor" / "llama.cpp.toml").read_text()
    assert f'commit = "{info["llama_cpp_commit"]}"' in pin
    assert info["llama_cpp_commit"].startswith(LLAMA_CPP_COMMIT)
    assert info["version"] == __version__
    assert info["backends"]
    assert info["compiler"]


def test_the_library_knows_its_commit() -> None:
    info = json.loads((directory() / "build_info.json").read_text())
    library = Path(loader.library("ggml-base")._name).read_bytes()
    assert info["llama_cpp_commit"][:9].encode() in library
    assert b"-dirty" not in library


def test_licences_are_beside_the_libraries() -> None:
    licences = {path.stem: path.read_text() for path in (directory() / "licenses").glob("*.txt")}
    assert "The ggml authors" in licences["llama.cpp"]
    assert {"nlohmann-json", "miniaudio", "stb_image", "xxhash", "llamafile"} <= set(licences)
    assert all(text.strip() for text in licences.values())
