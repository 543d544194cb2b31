"""The portable wheel: what is in it, which CPUs it answers on, and a machine without a compiler.

It is the newest one in ``dist/`` (``make release RELEASE_ARGS=--draft``), or the one that
``LLAMA_PY_WHEEL`` names: to compile it takes most of an hour. Its recorded results are in
``docs/platforms.md``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "LLAMA_PY_WHEEL"
#: A limit of its own: no package index takes more than 100 MB, and nobody waits for 25 MB.
LARGEST = 25_000_000
#: Variables that would show a new environment what is installed here.
OURS = ("PYTHONPATH", "LLAMA_PY_LIB", "VIRTUAL_ENV")

ASK = r"""
import json, sys, time
import llama_py
from llama_py.core import rules
start = time.monotonic()
llm = llama_py.Llama(llama_py.demo_model_path(), n_ctx=256, n_threads=1, verbose=False)
first, text = None, ""
question = [{"role": "user", "content": "What is 2 + 3?"}]
for chunk in llm.create_chat_completion(question, temperature=0, stream=True):
    piece = chunk["choices"][0]["delta"].get("content") or ""
    if piece and first is None:
        first = time.time()
    text += piece
print(json.dumps({
    "file": llama_py.__file__, "python": sys.version.split()[0], "variant": rules.cpu_variant(),
    "rules": rules.rule_states(), "answer": text, "first": first,
}))
"""

pytestmark = [pytest.mark.packaging, pytest.mark.long, pytest.mark.timeout(3600)]


def portable_wheels() -> list[Path]:
    named = os.environ.get(VARIABLE)
    found = [Path(named)] if named else (ROOT / "dist").glob("llama_py-*-py3-none-*.whl")
    return sorted(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = portable_wheels()
    if not found:
        pytest.skip(f"no wheel: make release RELEASE_ARGS=--draft, or set {VARIABLE}")
    return found[-1]


@pytest.fixture(scope="module")
def info(wheel: Path) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = json.loads(
        zipfile.ZipFile(wheel).read("llama_py/lib/build_info.json")
    )
    return found


def run(*command: str | Path, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    done = subprocess.run(
        [str(part) for part in command],
        env={**environment, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


# -- contents --------------------------------------------------------------------------------------


def test_it_is_small_and_for_every_python(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST
    assert "-py3-none-" in wheel.name
    if sys.platform == "linux":
        assert re.search(r"-(many|musl)linux_\d+_\d+_", wheel.name), "auditwheel gave it no tag"


@pytest.mark.skipif(shutil.which("nm") is None, reason="reads symbols with nm")
def test_every_variant_has_the_kernels_that_it_says(
    wheel: Path, info: dict[str, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    """In the machine code: the flag of a rule is compiled with the code that sets it."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    flagged = {
        name: set(re.findall(r" llama_py_reached_(\w+)", run("nm", "-D", "--defined-only", path)))
        for path in (tmp_path / "llama_py" / "lib").glob("libggml-cpu-*.so")
        for name in [path.stem.removeprefix("libggml-cpu-")]
    }
    assert set(flagged) == set(info["variants"])
    everywhere = set.union(*flagged.values())
    assert {"gelu", "q8_products", "half_products", "weight_panels", "attention_heads"} <= (
        everywhere
    )
    for variant, found in flagged.items():
        without = {rule.removeprefix("LLAMA_PY_").lower() for rule in info["variants"][variant]}
        assert found == everywhere - without, variant


# -- CPUs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    return python


@pytest.mark.parametrize(
    ("cpu", "variant", "panels"),
    [
        # qemu's, without its own warnings about what it does not have
        ("Nehalem", "sse42", "without effect"),  # x86-64-v2
        ("SandyBridge", "sandybridge", "without effect"),
        ("Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm", "haswell", "applied"),
        ("", "", "applied"),  # the real one
    ],
)
def test_the_best_variant_is_loaded_and_right(
    installed: Path, cpu: str, variant: str, panels: str
) -> None:
    qemu = shutil.which("qemu-x86_64")
    if cpu and qemu is None:
        pytest.skip("needs qemu-x86_64 (package qemu-user)")
    emulated = [qemu, "-cpu", cpu] if cpu and qemu else []
    found = json.loads(run(*emulated, installed, "-c", ASK))
    print(cpu or "this CPU", {k: found[k] for k in ("python", "variant", "answer")})
    assert found["file"].startswith(str(installed.parents[1]))
    assert found["answer"] == "2 + 3 = 5."
    assert found["rules"]["LLAMA_PY_WEIGHT_PANELS"] == panels
    assert "not reached" not in found["rules"].values()
    if variant:
        assert found["variant"] == variant
    elif "avx512_vnni" in Path("/proc/cpuinfo").read_text():  # x86-64-v4 and more
        assert found["variant"] in (
            "cascadelake",
            "cooperlake",
            "icelake",
            "zen4",
            "sapphirerapids",
        )


# -- a machine -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_without_a_compiler_the_first_token_comes_within_a_minute(
    wheel: Path, tmp_path: Path, suite: str
) -> None:
    """Debian 12 and 13, each as debootstrap makes it, with Python and nothing else."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("needs debootstrap, and to be root")
    root = tmp_path / suite
    packages = "ca-certificates,python3,python3-venv"
    run("debootstrap", "--variant=minbase", f"--include={packages}", suite, root)
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(Path("/", name), root / name)
    for compiler in ("cc", "gcc", "g++", "clang", "cmake", "make"):
        assert not (root / "usr" / "bin" / compiler).exists()
    run("chroot", root, "python3", "-m", "venv", "/environment")
    shutil.copyfile(wheel, root / wheel.name)
    began = time.time()
    pip = ("/environment/bin/python", "-m", "pip", "install", "-q", f"/{wheel.name}")
    run("chroot", root, *pip, PIP_FIND_LINKS="")
    found = json.loads(run("chroot", root, "/environment/bin/python", "-c", ASK))
    seconds = found["first"] - began
    print(suite, found["python"], found["variant"], f"{seconds:.1f} s", found["answer"])
    assert found["answer"] == "2 + 3 = 5."
    assert seconds < 60
