"""What a wheel and a source distribution of this very source contain.

The wheel is made in the build directory that the editable installation has left, so that nothing
is compiled again; without one, llama.cpp is compiled, which takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "editable"

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("git") is None, reason="copies the tracked files with git"),
]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Runs a command; its output is in the failure."""
    environment = {**os.environ, **variables}
    # The installation in use must not be what is tested.
    environment.pop("LLAMA_PY_LIB", None)
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout


def pip_wheel(source: Path, target: Path, *options: str, **variables: str) -> Path:
    """Builds a wheel without a network."""
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(target), *options]
    run(*command, cwd=target, **variables)
    (wheel,) = target.glob("*.whl")
    return wheel


def from_wheel(wheel: zipfile.ZipFile, directory: Path, program: str) -> list[str]:
    """Runs a program in an empty directory with the package from the wheel; returns its lines."""
    wheel.extractall(directory / "site")
    (directory / "empty").mkdir()
    # Without the site module no .pth file is read, so an editable installation stays out of it.
    paths = [str(directory / "site"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    search = os.pathsep.join(dict.fromkeys(paths))
    command = (sys.executable, "-S", "-c", program)
    return run(*command, cwd=directory / "empty", PYTHONPATH=search).splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    options = (
        [f"--config-settings=build-dir={BUILD}"] if (BUILD / "CMakeCache.txt").exists() else []
    )
    target = tmp_path_factory.mktemp("wheel")
    return zipfile.ZipFile(pip_wheel(ROOT, target, *options))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a copy of the tracked files: packing puts llama.cpp into vendor/."""
    copy = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    target = tmp_path_factory.mktemp("sdist")
    hook = f"import scikit_build_core.build as b; b.build_sdist({str(target)!r})"
    run(sys.executable, "-c", hook, cwd=copy)
    (archive,) = target.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def sdist_names(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as tar:
        return {member.name.split("/", 1)[1] for member in tar if member.isfile()}


def test_the_wheel_is_for_every_python(wheel: zipfile.ZipFile) -> None:
    assert re.fullmatch(r"llama_py-[\d.]+-py3-none-(?!any)\w+\.whl", Path(str(wheel.filename)).name)


def test_the_wheel_has_each_library_once(wheel: zipfile.ZipFile) -> None:
    suffixes = (".so", ".dylib", ".dll")
    libraries = [n for n in wheel.namelist() if n.endswith(suffixes) or ".so." in n]
    assert all(name.startswith("llama_py/lib/") for name in libraries)
    stems = [re.sub(r"^lib|\..*$", "", Path(name).name) for name in libraries]
    assert len(stems) == len(set(stems)), libraries
    assert {"llama", "ggml", "ggml-base", "ggml-cpu", "mtmd", "llama_py_chat"} <= set(stems)


def test_the_wheel_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"llama_py/__init__.py", "llama_py/py.typed", "llama_py/lib/build_info.json"} <= names
    assert {"llama_py/_native/llama_h.py", "llama_py/_native/llama_h.pyi"} <= names
    assert any(re.fullmatch(r"llama_py/.*\.gguf", name) for name in names), "the bundled model"
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"llama_py"}
    sources = (".c", ".cpp", ".h", ".hpp", ".cmake", ".pyc", ".a")
    assert [name for name in names if name.endswith(sources)] == []
    assert not [name for name in names if "/tests/" in name or "__pycache__" in name]


def test_every_python_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    tracked = run("git", "ls-files", "llama_py/*.py", "llama_py/*.pyi", cwd=ROOT).split()
    assert [name for name in tracked if (ROOT / name).exists() and name not in names] == []


def test_the_wheel_carries_the_licences(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(re.search(r"\.dist-info/licenses/LICENSE$", name) for name in names)
    text = wheel.read("llama_py/lib/licenses/llama.cpp.txt").decode()
    assert "The ggml authors" in text


def test_the_wheel_s_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = message_from_bytes(wheel.read(name))
    assert metadata["Name"] == "llama-py"
    assert metadata["Requires-Python"] == ">=3.10"
    needed = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert {re.split(r"[<>=]", r)[0] for r in needed} == {
        "numpy",
        "typing-extensions",
        "diskcache",
        "jinja2",
        "msgpack",
    }
    entry_points = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "llama-py = llama_py.cli:main" in entry_points.replace("=", " = ").replace("  ", " ")


def test_the_wheel_s_libraries_are_of_this_source(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    info = json.loads(wheel.read("llama_py/lib/build_info.json"))
    assert info["llama_cpp_commit"] in (ROOT / "vendor" / "llama.cpp.toml").read_text()
    path, reply = from_wheel(
        wheel,
        tmp_path,
        "import llama_py._native.loader as loader, llama_py._native.llama_h as h\n"
        "print(loader.library('llama')._name)\n"
        "print(h.llama_max_devices())\n",
    )
    assert path.startswith(str(tmp_path))
    assert int(reply) > 0


def test_the_wheel_answers_in_an_empty_directory(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    path, whole, streamed = from_wheel(
        wheel,
        tmp_path,
        "import llama_py\n"
        "llm = llama_py.Llama(llama_py.demo_model_path(), n_ctx=256, verbose=False)\n"
        "ask = dict(messages=[{'role': 'user', 'content': 'What is 2 + 3?'}], temperature=0)\n"
        "print(llama_py.__file__)\n"
        "print(llm.create_chat_completion(**ask)['choices'][0]['message']['content'])\n"
        "chunks = llm.create_chat_completion(**ask, stream=True)\n"
        "deltas = [chunk['choices'][0]['delta'] for chunk in chunks]\n"
        "print(''.join(d.get('content') or '' for d in deltas))\n",
    )
    assert path.startswith(str(tmp_path))
    assert "5" in whole
    assert streamed == whole


def test_the_source_distribution_builds_without_a_download(sdist_names: set[str]) -> None:
    assert {
        "pyproject.toml",
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "native/cmake/ChatShim.cmake",
        "vendor/resolve.py",
        "vendor/llama.cpp.toml",
        "native/abi_check.c",
        "native/kernels/gelu/gelu.h",
        "native/shim/llama_py_chat.cpp",
        "benchmarks/__main__.py",
        "benchmarks/tools/CMakeLists.txt",
    } <= sdist_names
    assert {
        "vendor/llama.cpp/.llama_py_pin.json",
        "vendor/llama.cpp/LICENSE",
        "vendor/llama.cpp/include/llama.h",
        "vendor/llama.cpp/src/llama.cpp",
        "vendor/llama.cpp/common/chat.cpp",
        "vendor/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu",
        "vendor/llama.cpp/tools/mtmd/mtmd.h",
    } <= sdist_names


def test_the_source_distribution_has_nothing_built(sdist_names: set[str]) -> None:
    unwanted = (".so", ".o", ".pyc", ".whl", ".gguf.out")
    assert not [name for name in sdist_names if name.endswith(unwanted)]
    assert not [
        name for name in sdist_names if name.startswith(("build/", "llama_py/lib/", ".git/"))
    ]
    assert not [name for name in sdist_names if name.startswith("vendor/llama.cpp/models/")]


def test_the_source_distribution_has_llama_cpp_as_it_is(sdist: Path) -> None:
    script = [sys.executable, str(ROOT / "vendor" / "resolve.py")]
    source = Path(subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip())
    with tarfile.open(sdist) as tar:
        for member in tar:
            name = member.name.partition("/vendor/llama.cpp/")[2]
            content = tar.extractfile(member) if member.isfile() and name else None
            if content is not None and not name.startswith("."):
                assert content.read() == (source / name).read_bytes(), name


@pytest.mark.long
def test_a_wheel_from_the_source_distribution_alone(sdist: Path, tmp_path: Path) -> None:
    wheel = pip_wheel(
        sdist,
        tmp_path,
        LLAMA_PY_CACHE_DIR=str(tmp_path / "cache"),
        LLAMA_PY_LLAMA_CPP_DIR="",
        PIP_NO_INDEX="1",
    )
    assert any(name.endswith("libllama.so") for name in zipfile.ZipFile(wheel).namelist())
    assert not (tmp_path / "cache").exists()
