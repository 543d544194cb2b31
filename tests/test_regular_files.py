"""Files that others name are opened without waiting, whatever they are."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, Llama, LlamaGrammar, demo_model_path
from llama_py.cli.asking import prompt_of
from llama_py.cli.options import read_argument
from llama_py.compat.llama_cpp.llama_grammar import LlamaGrammar as TheirGrammar
from llama_py.errors import LlamaError
from llama_py.gguf.reader import read_header
from llama_py.media.limits import MediaLimits
from llama_py.media.objects import read_own_file
from llama_py.media.sources import read_url
from llama_py.regular_files import open_regular
from llama_py.server.access.keys import read_key_file
from llama_py.server.config.configuration import Given, read_configuration

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


@pytest.mark.parametrize(("name", "noun"), [("mmproj", "projector"), ("lora_path", "LoRA adapter")])
def test_what_is_given_for_a_file_beside_the_model_is_named(
    name: str, noun: str, fifo: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    for path, said in (
        (fifo, f"is a pipe, not a {noun}"),
        ("/dev/zero", f"is a device, not a {noun}"),
        (tmp_path, f"is a folder, not a {noun}"),
        (tmp_path / "none", f"there is no {noun} at"),
        (tmp_path / "empty", f"the {noun} .* cannot be used: the file is empty"),
    ):
        with pytest.raises(LlamaError, match=said):
            Llama(demo_model_path(), **{name: path})  # type: ignore[arg-type]


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


SHORT: dict[str, Callable[[Path], Any]] = {
    "keys": read_key_file,
    "settings": lambda path: read_configuration(Given(config=path), {}, demo_model_path),
    "an option's file": lambda path: read_argument(str(path), "--grammar"),
    "a grammar": LlamaGrammar.from_file,
    "a grammar of the drop-in": TheirGrammar.from_file,
}


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device without an end")
@pytest.mark.parametrize("read", SHORT.values(), ids=[*SHORT])
def test_a_text_without_an_end_is_refused(read: Callable[[Path], Any]) -> None:
    with pytest.raises(Exception, match="more than 16777216 characters"):
        read(Path("/dev/zero"))


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes by their numbers")
def test_pipes_of_a_shell_are_read() -> None:
    out, into = os.pipe()
    with os.fdopen(into, "wb") as file:
        file.write('root ::= "é"\r\n'.encode())
    try:
        assert read_argument(f"/dev/fd/{out}", "--grammar") == 'root ::= "é"\n'
    finally:
        os.close(out)


def test_a_word_that_is_the_name_of_a_fifo_is_a_prompt(fifo: Path) -> None:
    given = argparse.Namespace(words=[str(fifo)], model=None, hf=None)
    assert prompt_of(given, "the prompt") == str(fifo)


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
