"""llama-cpp-python's own tests, unmodified, with llama_py in the place of ``llama_cpp``.

They come from its source distribution, which is fetched by name and never kept, and load models
from a hub: files of this machine stand in for those (``their_models``). It takes minutes:
``pytest -m long -rP tests/compat/test_their_tests.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.chat.families import template_folder
from tools.real_models import path_of

ROOT = Path(__file__).parents[2]
PACKAGE = "llama-cpp-python==0.3.36"

#: What llama-cpp-python itself fails with these models: its expectation is of Qwen3.5's tokens.
OF_ANOTHER_MODEL = {"test_real_model"}

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(3600)]


def fetch(folder: Path) -> Path:
    """Their tests, in a folder beside the vocabularies that they read."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*command, "-d", str(folder), PACKAGE], capture_output=True, text=True, check=False
    )
    archives = [*folder.glob("*.tar.gz")]
    if not archives:
        pytest.skip(f"{PACKAGE} cannot be fetched: {done.stderr[-300:]}")
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            inside = Path(*Path(member.name).parts[1:])
            if inside.parts[:1] == ("tests",) and inside.suffix == ".py":
                data = archive.extractfile(member)
                assert data is not None
                (folder / inside).parent.mkdir(exist_ok=True)
                (folder / inside).write_bytes(data.read())
    archives[0].unlink()
    models = folder / "vendor" / "llama.cpp"
    models.mkdir(parents=True)
    (models / "models").symlink_to(template_folder().parent)
    return folder


def test_what_passes_there_passes_here(tmp_path: Path) -> None:
    for name in ("smollm2", "qwen05"):
        if not path_of(name).exists():
            pytest.skip(f"`python -m tools.real_models {name}` fetches the model")
    folder = fetch(tmp_path)
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-n0", "-W", "ignore", "-rA"]
    done = subprocess.run(
        [*command, "-p", "tests.compat.their_models", "-p", "no:cacheprovider", "--tb=line"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    print(done.stdout[-4000:])
    passed = re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE)
    failed = dict(re.findall(r"^FAILED \S+::(\w+)\S* - (.*)", done.stdout, re.MULTILINE))
    assert not {*failed} - OF_ANOTHER_MODEL, failed
    assert len(passed) >= 25
