"""The loader says what it searched and what to do, and prepares llama.cpp exactly once."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py import version
from llama_py._native import abi, loader
from llama_py.errors import NativeLibraryError

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Build = Callable[[str, str], Path]

ABI = 'const char llama_py_abi[] = "DIGEST";'
OURS = ABI.replace("DIGEST", abi.DIGEST)
FAKE_GGML = """
#include <stddef.h>
#include <string.h>
char loaded_from[4096];
size_t ggml_backend_reg_count(void) { return REGISTERED; }
void ggml_backend_load_all_from_path(const char * path) { strcpy(loaded_from, path); }
"""
FAKE_BASE = (
    OURS
    + """
void ggml_log_get(void ** callback, void ** data) { *callback = *data = 0; }
void ggml_log_set(void * callback, void * data) {}
"""
)
FAKE_LLAMA = """
int starts;
void llama_backend_init(void) { starts++; }
"""


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.delenv(loader.VARIABLE, raising=False)


def test_a_missing_library_lists_what_was_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setattr(loader, "search_directories", lambda: places)
    with pytest.raises(loader.LibraryNotFoundError) as caught:
        loader.library("llama")
    message = str(caught.value)
    for place in places:
        assert str(place) in message
    assert "pip install" in message
    assert loader.VARIABLE in message
    assert isinstance(caught.value, NativeLibraryError)
    assert isinstance(caught.value, OSError)


def test_the_override_is_the_only_place_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(loader.VARIABLE, str(tmp_path))
    assert loader.search_directories() == [tmp_path]
    with pytest.raises(loader.LibraryNotFoundError, match=f"{loader.VARIABLE} is set"):
        loader.library("llama")


def test_the_override_may_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "libllama.so"
    file.touch()
    monkeypatch.setenv(loader.VARIABLE, str(file))
    assert loader.search_directories() == [tmp_path]


def test_without_an_override_the_package_is_searched() -> None:
    import llama_py

    assert Path(llama_py.__path__[0]) / "lib" in loader.search_directories()


@pytest.mark.parametrize(
    ("platform", "names"),
    [
        ("linux", ["libllama.so.0", "libllama.so.0.5", "libllama.so"]),
        ("darwin", ["libllama.0.dylib", "libllama.dylib"]),
        ("win32", ["llama.dll", "libllama.dll"]),
    ],
)
def test_file_names_of_each_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, names: list[str]
) -> None:
    for name in ("libllama.so.0.5", "libllama.so.0", "libllama.0.dylib", "libllama-common.so.0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "platform", platform)
    assert [path.name for path in loader.candidates("llama", tmp_path)] == names


LOAD = """
from llama_py._native import loader
from llama_py.errors import LlamaError
try:
    {call}
except LlamaError as error:
    print(type(error).__name__, [base.__name__ for base in type(error).__mro__])
    print(error)
"""


def test_a_damaged_library_says_why(run_python: Run, tmp_path: Path) -> None:
    path = loader.candidates("ggml-base", tmp_path)[-1]
    path.write_bytes(b"not a library")
    code = LOAD.format(call='loader.library("ggml-base")')
    kind, _, message = run_python(code, LLAMA_PY_LIB=str(tmp_path)).stdout.partition("\n")
    assert kind.startswith("LibraryLoadError")
    assert "OSError" in kind
    assert f"{path} does not load: " in message
    assert "Remedy: " in message


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("libcudart.so.12: cannot open shared object file", "NVIDIA driver"),
        ("wrong ELF class: ELFCLASS32", "another processor architecture"),
        ("version `GLIBC_2.38' not found", "newer system"),
        ("libgomp.so.1: cannot open shared object file", "install what it misses"),
    ],
)
def test_remedies(reason: str, remedy: str) -> None:
    message = loader._why_refused(Path("libllama.so"), reason)
    assert reason in message
    assert remedy in message


def test_a_missing_function_names_the_library(build_library: Build, run_python: Run) -> None:
    path = build_library("ggml-base", OURS)
    code = LOAD.format(call='loader.symbol("ggml_version", ("ggml-base",))')
    kind, _, message = run_python(code, LLAMA_PY_LIB=str(path.parent)).stdout.partition("\n")
    assert kind.startswith("SymbolNotFoundError")
    assert "AttributeError" in kind
    assert f"{path} has no function ggml_version" in message
    assert "unset LLAMA_PY_LIB" in message


@pytest.mark.parametrize("digest", ["0123456789abcdef", None], ids=["another", "none"])
@pytest.mark.parametrize(
    "call", ["library('ggml-base')", "library('llama')", "symbol('f', ('ggml',))"]
)
def test_a_library_for_other_declarations_is_refused(
    build_library: Build, run_python: Run, digest: str | None, call: str
) -> None:
    """That of another llama.cpp: a sentence, before anything is called."""
    dies = "(void) { abort(); }"
    build_library("llama", f"#include <stdlib.h>\nvoid llama_backend_init{dies}")
    build_library("ggml", f"#include <stdlib.h>\nvoid ggml_backend_reg_count{dies}\nvoid f{dies}")
    text = ABI.replace("DIGEST", digest) if digest else "int something;"
    folder = build_library("ggml-base", text).parent
    (folder / "build_info.json").write_text('{"llama_cpp_commit": "b4711"}', encoding="utf-8")
    code = LOAD.format(call=f"loader.{call}")
    kind, _, message = run_python(code, **{loader.VARIABLE: str(folder)}).stdout.partition("\n")
    assert kind.startswith("LibraryLoadError")
    assert f"{folder} has libraries of llama.cpp b4711" in message
    assert f"digest {digest or 'none'} there, {abi.DIGEST} here" in message
    assert version.LLAMA_CPP_COMMIT in message
    assert "Remedy: build them again" in message
    assert "or unset LLAMA_PY_LIB" in message


def test_the_libraries_in_use_are_for_these_declarations() -> None:
    found = (ctypes.c_char * 17).in_dll(loader.library("ggml-base"), "llama_py_abi")
    assert found.value.decode() == abi.DIGEST


PREPARE = """
import ctypes, threading
from llama_py._native import loader
gate = threading.Barrier(8)
def load():
    gate.wait()
    loader.library("llama")
threads = [threading.Thread(target=load) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(ctypes.c_int.in_dll(loader.library("llama"), "starts").value)
print((ctypes.c_char * 4096).in_dll(loader.library("ggml"), "loaded_from").value.decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="builds a library with cc")
@pytest.mark.parametrize("registered", [0, 1])
def test_llama_cpp_is_prepared_once(build_library: Build, run_python: Run, registered: int) -> None:
    build_library("ggml-base", FAKE_BASE)
    build_library("llama", FAKE_LLAMA)
    folder = build_library("ggml", FAKE_GGML.replace("REGISTERED", str(registered))).parent
    done = run_python(PREPARE, **{loader.VARIABLE: str(folder)})
    assert done.stderr == ""
    starts, _, loaded_from = done.stdout.partition("\n")
    assert starts == "1"
    assert loaded_from.strip() == ("" if registered else str(folder))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_second_copy_in_one_process_is_refused(
    monkeypatch: pytest.MonkeyPatch, build_library: Build, run_python: Run, tmp_path: Path
) -> None:
    ours = build_library("ggml-base", OURS)
    other = tmp_path / "other" / ours.name
    other.parent.mkdir()
    other.write_bytes(ours.read_bytes())
    code = f"""
import ctypes
ctypes.CDLL({str(other)!r})
from llama_py._native import loader
loader.library("ggml-base")
"""
    done = run_python(code, **{loader.VARIABLE: str(ours.parent)})
    assert "LibraryLoadError" in done.stderr
    assert str(other) in done.stderr
    assert "separate processes" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_links_to_one_copy_are_one_copy(
    build_library: Build, run_python: Run, tmp_path: Path
) -> None:
    real = build_library("ggml-base", OURS)
    links = tmp_path / "links"
    links.mkdir()
    (links / real.name).symlink_to(real)
    code = f"""
import ctypes
ctypes.CDLL({str(real)!r})
from llama_py._native import loader
loader.library("ggml-base")
"""
    assert run_python(code, **{loader.VARIABLE: str(links)}).stderr == ""
