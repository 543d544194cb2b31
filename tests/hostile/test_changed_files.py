"""A model's file that is truncated or written to while it is mapped: an error, and no SIGBUS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llama_py import Llama
from llama_py.errors import ModelChangedError
from tests.models import tiny_model
from tests.two_models import survives

#: A server of a model whose file is truncated between two requests, and of another one.
_CHILD = """
import os, sys
from llama_py import demo_model_path
from tests.two_models import served

path = sys.argv[1]
ASKED = {
    "completions": {"prompt": "Hello", "max_tokens": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "embeddings": {"input": "Hello"},
}

async def main():
    async with served(("changed", path), ("other", demo_model_path())) as client:
        async def ask(model, route):
            reply = await client.post(route, json={"model": model, **ASKED[route]})
            print(reply.status_code, reply.text)
        for model in ("changed", "other"):
            await ask(model, "completions")
        os.truncate(path, 4096)
        for route in ASKED:
            await ask("changed", route)
        await ask("other", "completions")
        await client.post("http://127.0.0.1/models/unload", json={"model": "changed"})
        await ask("changed", "completions")
        await ask("other", "completions")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model's file of one's own."""
    copy = tmp_path / "secret-place" / "model.gguf"
    copy.parent.mkdir()
    shutil.copyfile(tiny_model("full"), copy)
    return copy


@pytest.fixture
def llm(path: Path) -> Iterator[Llama]:
    """It, loaded and used."""
    with Llama(str(path), n_ctx=512, n_threads=1) as loaded:
        loaded("Hello", max_tokens=2)
        yield loaded


def test_a_server_survives_it_and_other_models_answer(path: Path) -> None:
    lines = survives(_CHILD, str(path))
    assert [line[:3] for line in lines] == ["200"] * 2 + ["503"] * 3 + ["200", "503", "200"]
    for line in lines[2:5]:
        assert "truncated or written to after it was loaded" in line
        assert "secret-place" not in line


def _truncate(path: Path) -> None:
    os.truncate(path, 4096)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _rewrite(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))
    os.utime(path, ns=(1, 1))  # a clock that is coarse would hide it


@pytest.mark.parametrize("change", [_truncate, _grow, _rewrite])
def test_every_way_to_compute_is_refused(
    llm: Llama, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    with pytest.raises(ModelChangedError, match=r"model\.gguf was .*close .*load it again"):
        llm("Hello", max_tokens=2)
    with pytest.raises(ModelChangedError):
        llm.embed("Hello")
    with pytest.raises(ModelChangedError):
        llm.eval([1, 2])


def _touch(path: Path) -> None:
    os.utime(path)


def _delete(path: Path) -> None:
    path.unlink()


def _rename_over(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"something else")
    other.replace(path)


@pytest.mark.parametrize("change", [_touch, _delete, _rename_over])
def test_what_leaves_the_weights_alone_is_not(
    llm: Llama, path: Path, change: Callable[[Path], None]
) -> None:
    before = llm("Hello there", max_tokens=4, temperature=0.0)["choices"][0]["text"]
    change(path)
    assert llm("Hello there", max_tokens=4, temperature=0.0)["choices"][0]["text"] == before


def test_weights_that_were_copied_do_not_depend_on_the_file(path: Path) -> None:
    with Llama(str(path), n_ctx=512, n_threads=1, use_mmap=False) as loaded:
        _truncate(path)
        assert loaded("Hello", max_tokens=2)["choices"]
