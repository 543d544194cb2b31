"""``llama_py.compat.install``, and ``python -m llama_py.compat``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import llama_py.compat

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    llama_py.compat.install()
    yield
    llama_py.compat.uninstall()


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def test_modules_are_the_same_under_both_names() -> None:
    import llama_cpp
    import llama_cpp.llama_types as types

    import llama_py.compat.llama_cpp as own

    assert llama_cpp is own
    assert types is importlib.import_module("llama_py.compat.llama_cpp.llama_types")
    assert llama_cpp.Llama is importlib.import_module("llama_cpp.llama").Llama
    assert importlib.reload(llama_cpp) is own
    assert importlib.util.find_spec("llama_cpp") is not None
    assert importlib.util.find_spec("llama_cpp.llama_grammar") is not None
    assert importlib.util.find_spec("llama_cpp.nothing") is None
    assert Path(llama_cpp.__file__ or "").is_file()


def test_the_version_is_that_of_the_surface() -> None:
    import llama_cpp

    assert llama_cpp.__version__ == llama_py.compat.VERSION
    for name in ("llama-cpp-python", "llama_cpp_python"):
        assert importlib.metadata.version(name) == llama_py.compat.VERSION


def test_uninstall_leaves_nothing() -> None:
    importlib.import_module("llama_cpp.llama_types")
    llama_py.compat.uninstall()
    assert not [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]
    assert not llama_py.compat.installed()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("llama-cpp-python")


def test_the_real_package_is_not_replaced_once_it_was_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llama_py.compat.uninstall()
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    with pytest.raises(RuntimeError, match=r"call llama_py\.compat\.install\(\) before"):
        llama_py.compat.install()


def test_unknown_defaults_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 'llama_cpp' or 'llama_py'"):
        llama_py.compat.install(defaults="other")  # type: ignore[arg-type]


def test_classes_are_pickled_by_a_name_that_needs_no_install() -> None:
    from llama_cpp import LlamaGrammar

    data = pickle.dumps(LlamaGrammar.from_string('root ::= "a"'))
    llama_py.compat.uninstall()
    assert pickle.loads(data).grammar == 'root ::= "a"'


def test_importing_loads_no_library_and_no_model_code() -> None:
    program = (
        "import sys, llama_py.compat; llama_py.compat.install(); import llama_cpp; "
        "print(sorted(n for n in sys.modules if n.startswith(('llama_py.', 'numpy', 'ctypes'))))"
    )
    done = run("-c", program)
    assert done.stdout.strip() == (
        "['llama_py.compat', 'llama_py.compat.finder', 'llama_py.compat.llama_cpp', "
        "'llama_py.version']"
    ), done.stderr


@pytest.mark.parametrize("way", ["script", "module", "code"])
def test_programs_run_unchanged(tmp_path: Path, way: str) -> None:
    program = "import sys, llama_cpp\nprint(__name__, llama_cpp.__version__, *sys.argv[1:])\n"
    (tmp_path / "app.py").write_text(program)
    what = {"script": ["app.py"], "module": ["-m", "app"], "code": ["-c", program]}[way]
    done = run("-m", "llama_py.compat", *what, "--flag", "-m", "x", cwd=tmp_path)
    assert done.stdout.split() == ["__main__", llama_py.compat.VERSION, "--flag", "-m", "x"], (
        done.stderr
    )


def test_the_runner_says_what_it_needs() -> None:
    done = run("-m", "llama_py.compat")
    assert done.returncode == 2
    assert "a script, -m MODULE or -c CODE is needed" in done.stderr


def test_a_failing_program_fails(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit(3)")
    assert run("-m", "llama_py.compat", str(tmp_path / "app.py")).returncode == 3
