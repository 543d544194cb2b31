"""Plug-in wheels: found when they are installed, loaded if they fit, and else a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py._native import loader
from llama_py._native.backends import PACKAGES
from llama_py.version import LLAMA_CPP_COMMIT, __version__

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="builds libraries with cc")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

#: A backend without devices, as one of a GPU is on a machine without its driver.
BACKEND = """
#include "ggml-backend-impl.h"
static const char * name(ggml_backend_reg_t reg) { return "Vulkan"; }
static size_t count(ggml_backend_reg_t reg) { return 0; }
static struct ggml_backend_reg reg = {
    VERSION, {name, count, NULL, NULL}, NULL
};
ggml_backend_reg_t ggml_backend_init(void) { return ggml_version()[0] ? &reg : NULL; }
"""
ASK = """
import json
from llama_py.core.device_report import device_report
from llama_py._native.backends import plugins
report = device_report(["ggml-cpu"])
print(json.dumps([len(plugins()), report.backends, report.hints]))
"""


class Site:
    """A folder of packages with the plug-in of a backend."""

    def __init__(self, folder: Path, cc: str, llama_cpp: Path) -> None:
        self.folder, self.cc = folder, cc
        ggml = llama_cpp / "ggml"
        self.includes = [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}"]
        self.lib = folder / "llama_py_vulkan" / "lib"
        self.lib.mkdir(parents=True)
        (self.lib.parent / "__init__.py").touch()
        self.says(__version__, LLAMA_CPP_COMMIT)

    def says(self, version: str, commit: str) -> None:
        """For which release the plug-in says that it was built."""
        info = {"version": version, "llama_cpp_commit": commit}
        (self.lib / "build_info.json").write_text(json.dumps(info), encoding="utf-8")

    def compile(self, version: str = "GGML_BACKEND_API_VERSION", *more: str) -> None:
        """Build the library, which asks the linker for ggml-base as a real one does."""
        source = self.folder / "backend.c"
        source.write_text(BACKEND.replace("VERSION", version, 1), encoding="utf-8")
        base = Path(loader.library("ggml-base")._name)
        command = [self.cc, "-w", "-shared", "-fPIC", *self.includes, str(source), str(base)]
        command += [*more, "-o", str(self.lib / "libggml-vulkan.so")]
        subprocess.run(command, check=True)


@pytest.fixture
def site(tmp_path: Path, cc: str, llama_cpp: Path) -> Site:
    return Site(tmp_path, cc, llama_cpp)


def ask(run_python: Run, site: Site, **variables: str) -> tuple[int, list[str], list[str]]:
    done = run_python(ASK, PYTHONPATH=str(site.folder), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    count, backends, hints = json.loads(done.stdout)
    return count, backends, hints


def test_one_that_fits_is_loaded_and_its_lack_of_devices_explained(
    site: Site, run_python: Run
) -> None:
    site.compile()
    count, backends, hints = ask(run_python, site)
    assert (count, backends) == (1, ["Vulkan"])
    assert any("sees no GPU: install the driver" in hint for hint in hints)


def test_nothing_is_printed_of_what_is_loaded(site: Site, run_python: Run) -> None:
    """Also where the C functions are used by themselves, and nobody has set a log."""
    site.compile()
    code = """
import ctypes
from llama_py._native import ggml_h, loader
from llama_py._native.backends import plugins
loader.library("llama")
assert not plugins()[0].refusal
said = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def say(level, text, data): said.append(text)
base, callback = loader.library("ggml-base"), kind(say)
base["ggml_log_set"](callback, None)
loader._loaded.pop("ggml")
loader.library("ggml")  # again: what a program has set is left to it
print(b"libggml-vulkan.so" in b"".join(said))
"""
    done = run_python(code, PYTHONPATH=str(site.folder))
    assert (done.stderr, done.stdout.strip()) == ("", "True")


def test_where_libraries_are_named_nothing_else_is_loaded(site: Site, run_python: Run) -> None:
    site.compile()
    here = str(Path(loader.library("llama")._name).parent)
    assert ask(run_python, site, **{loader.VARIABLE: here})[:2] == (0, [])


def test_one_of_another_release_is_not_opened(site: Site, run_python: Run) -> None:
    (site.lib / "libggml-vulkan.so").write_bytes(b"")
    site.says("0.0.9", "b1")
    count, backends, hints = ask(run_python, site)
    assert (count, backends) == (1, [])
    (hint,) = [hint for hint in hints if "llama-py-vulkan" in hint]
    assert "llama-py 0.0.9 with llama.cpp b1" in hint
    assert f"this is llama-py {__version__} with llama.cpp {LLAMA_CPP_COMMIT}" in hint
    assert "of the same release" in hint


def test_one_for_another_ggml_is_refused(site: Site, run_python: Run) -> None:
    site.compile("GGML_BACKEND_API_VERSION + 1")
    _, backends, hints = ask(run_python, site)
    assert backends == []
    assert any("another version of ggml" in hint for hint in hints)


def test_a_driver_that_is_missing_is_named(site: Site, run_python: Run) -> None:
    missing = site.folder / "libvulkan.so.1"
    command = [site.cc, "-shared", "-o", str(missing), "-Wl,-soname,libvulkan.so.999"]
    subprocess.run([*command, "-x", "c", "/dev/null"], check=True)
    site.compile("GGML_BACKEND_API_VERSION", "-Wl,--no-as-needed", str(missing))
    _, backends, hints = ask(run_python, site)
    assert backends == []
    (hint,) = [hint for hint in hints if "llama-py-vulkan" in hint]
    assert "libvulkan.so.999: cannot open shared object file" in hint
    assert "install Vulkan's loader" in hint


def test_a_missing_file_is_named(site: Site, run_python: Run) -> None:
    _, backends, hints = ask(run_python, site)
    assert backends == []
    assert any("libggml-vulkan.so" in hint for hint in hints)


def test_recipes_and_packages_are_the_same() -> None:
    from tools.plugin_wheel import backends

    found = {f"llama_py_{name}": recipe["library"] for name, recipe in backends().items()}
    assert found == PACKAGES


@pytest.mark.parametrize("name", [package.removeprefix("llama_py_") for package in PACKAGES])
def test_the_project_of_a_wheel_is_whole(name: str, tmp_path: Path) -> None:
    from tools import plugin_wheel

    project = plugin_wheel.write_project(name, tmp_path / "project")
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    found = plugin_wheel.read_toml(text)
    assert found["project"]["name"] == f"llama-py-{name}"
    assert f"llama-py=={__version__}" in found["project"]["dependencies"]
    args = found["tool"]["scikit-build"]["cmake"]["args"]
    assert f"-DLLAMA_PY_PLUGIN={PACKAGES[f'llama_py_{name}']}" in args
    compile((project / f"llama_py_{name}" / "__init__.py").read_text(), name, "exec")
