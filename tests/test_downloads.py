"""What a hub sends is compared with the digest that it names before it is a model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_py.digests import check_digest
from llama_py.errors import DownloadError
from tests.hubs import Hub, hub

NAME = "x-Q8_0.gguf"
FETCH = """
import sys
from llama_py.errors import DownloadError
from llama_py.hub import download

try:
    name, folder = [*sys.argv[1:], None, None][:2]
    print("path", download("a/b", name, local_dir=folder))
except DownloadError as error:
    print("error", error)
"""


@pytest.fixture
def there() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with hub({NAME: b"GGUF" + os.urandom(100_000), "README.md": b"text"}) as server:
        yield server


def fetch(server: Hub, folder: Path, *arguments: str) -> tuple[str, str]:
    """What comes of a call in a process of its own, whose hub this is: a word, and the rest."""
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "HF_HOME": str(folder / "hf"),
        "HF_ENDPOINT": server.address,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "LLAMA_PY_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, "-c", FETCH, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    word, _, rest = done.stdout.strip().partition(" ")
    return word, rest


@pytest.mark.parametrize("etag", ["sha256", "git", "other"])
def test_a_right_file_is_a_model_and_is_fetched_once(there: Hub, tmp_path: Path, etag: str) -> None:
    there.etag = etag
    for _ in range(2):
        word, path = fetch(there, tmp_path)
        assert word == "path"
        assert Path(path).read_bytes() == there.files[NAME]
    assert there.bodies == 1


@pytest.mark.parametrize("fault", ["wrong", "short", "long", "empty", "html"])
@pytest.mark.parametrize("local", [False, True], ids=["cache", "local_dir"])
def test_another_body_is_never_a_model(there: Hub, tmp_path: Path, fault: str, local: bool) -> None:
    there.fault = fault
    more = [NAME, str(tmp_path / "local")] if local else []
    word, message = fetch(there, tmp_path, *more)
    assert (word, NAME in message) == ("error", True)
    if fault == "wrong":
        assert there.digest(NAME) in message
        assert "removed" in message
    assert not [path for path in tmp_path.rglob(NAME) if path.exists()]
    there.fault = ""
    word, path = fetch(there, tmp_path, *more)  # fetched anew
    assert word == "path", path
    assert Path(path).read_bytes() == there.files[NAME]


def test_a_file_that_was_damaged_in_the_cache_is_found_out(there: Hub, tmp_path: Path) -> None:
    _, path = fetch(there, tmp_path)
    blob = Path(path).resolve()
    blob.chmod(0o600)
    blob.write_bytes(bytes(len(there.files[NAME])))
    word, message = fetch(there, tmp_path)
    assert (word, "removed" in message) == ("error", True)
    assert fetch(there, tmp_path)[0] == "path"


def test_a_file_that_its_owner_has_changed_is_not_removed(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [NAME, str(tmp_path / "local")]
    path = Path(fetch(there, tmp_path, *more)[1])
    path.write_bytes(b"GGUF, made here")
    later = time.time() + 60
    os.utime(path, (later, later))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(there, tmp_path, *more)[0] == "path"
    assert path.read_bytes() == b"GGUF, made here"


def test_what_was_right_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(b"content")
    right = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    check_digest(path, right, "it")
    monkeypatch.setattr("llama_py.digests._digest", pytest.fail)
    check_digest(path, right, "it")
    monkeypatch.undo()
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(tmp_path / "cache"))
    path.write_bytes(b"changed")
    with pytest.raises(DownloadError, match=f"{right} was expected"):
        check_digest(path, right, "it")
    assert not path.exists()
