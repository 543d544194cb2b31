"""Files that are copied while they are loaded do not stay in memory beside the copy."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_py.core.host import mapped_files
from llama_py.core.host.mapped_files import MappedFiles

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux tells it")

SIZE = 8 << 20


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_bytes().decode().split("\n"):
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "with a space, \x0b and \u2028.gguf"
    path.write_bytes(bytes(range(256)) * (SIZE >> 8))
    return path


@pytest.fixture
def mapped(file: Path) -> Iterator[mmap.mmap]:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert sum(view[::4096]) == 0
        assert resident(file) == SIZE
        yield view


@pytest.mark.parametrize("copied", [0.9, 0.1])
def test_what_was_copied_is_given_back(
    file: Path, mapped: mmap.mmap, copied: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is used where it is mapped stays. The bytes are there all the same."""
    own = [1 << 30]
    monkeypatch.setattr(mapped_files, "own_memory", lambda: (own[0], SIZE))
    files = MappedFiles([file])
    own[0] += SIZE  # a vocabulary, before the first tensor
    files.note(0.0)
    own[0] += int(copied * SIZE)
    files.note(0.05)
    assert resident(file) == SIZE, "too soon"
    files.note(1.0)
    assert resident(file) == (0 if copied > 0.25 else SIZE)
    assert mapped[SIZE - 256 :] == bytes(range(256))


def test_of_a_small_file_nothing_is_given_back_before_its_end(
    file: Path, mapped: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking takes the interpreter's lock, which another thread may be using."""
    asked: list[int] = []

    def own_memory() -> tuple[int, int]:
        asked.append(1)
        return 1 << 30, SIZE

    monkeypatch.setattr(mapped_files, "own_memory", own_memory)
    files = MappedFiles([file])
    for done in range(101):
        files.note(done / 100)
    assert files.step == 1.0
    assert len(asked) == 2


def test_other_files_stay(file: Path, mapped: mmap.mmap, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"x")
    MappedFiles([other])._give_back()
    assert resident(file) == SIZE
    assert len(mapped) == SIZE
