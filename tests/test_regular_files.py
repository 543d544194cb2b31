"""Files that others name are opened without waiting, whatever they are."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, Llama, demo_model_path
from llama_py.errors import LlamaError
from llama_py.gguf.reader import read_header
from llama_py.media.limits import MediaLimits
from llama_py.media.objects import read_own_file
from llama_py.media.sources import read_url
from llama_py.regular_files import open_regular

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="FIFOs"),
    pytest.mark.timeout(60),
]


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_url(str(path), "it", MediaLimits(paths=(path.parent,))),
        lambda path: read_url(f"file://{path}", "it", MediaLimits(paths=(path.parent,))),
        read_own_file,
        read_header,
        open_regular,
    ],
    ids=["media", "media by address", "a picture of the program's", "a header", "itself"],
)
def test_a_fifo_is_refused_at_once(read: Callable[[Path], Any], fifo: Path) -> None:
    with pytest.raises((LlamaError, OSError), match="not a regular file"):
        read(fifo)


def test_a_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(link)
    link.unlink()
    link.symlink_to(__file__)
    with open_regular(link) as file:
        assert file.readall() == Path(__file__).read_bytes()
    with pytest.raises(OSError, match=r"symbolic link|too many"):
        open_regular(link, follow=False)


def test_saved_conversations_in_the_place_of_which_a_fifo_is(tmp_path: Path) -> None:
    path = tmp_path / "chat"
    with Llama(demo_model_path(), n_ctx=256) as llm:
        session = ChatSession(llm)
        session.send("Hello!", max_tokens=2)
        session.save(path)
        for name in tmp_path.iterdir():
            kept = tmp_path.parent / "kept"
            shutil.move(name, kept)
            os.mkfifo(name)
            if name == path:
                with pytest.raises(LlamaError, match="not a regular file"):
                    ChatSession.load(llm, path)
            else:  # it is evaluated again
                assert ChatSession.load(llm, path).messages == session.messages
            name.unlink()
            shutil.move(kept, name)
