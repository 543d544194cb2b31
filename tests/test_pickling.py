"""What can be sent to another process, and what arrives there."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from llama_py import AsyncLlama, Llama, LlamaDiskCache, LlamaRAMCache
from llama_py import errors as error_module
from llama_py.errors import ClosedError, LlamaError, RequestCancelled, StorageError
from tests.models import tiny_model
from tests.rules import holds_for_all

OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "flash_attn": False}
ASK: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPT = "the quick brown fox " * 20


def use(model: AsyncLlama, disk: LlamaDiskCache, ram: LlamaRAMCache) -> dict[str, Any]:
    """Run in the other process: use everything that arrived."""
    found: dict[str, Any] = {"entries": (len(disk), len(ram)), "capacity": ram.capacity_bytes}

    async def ask() -> str:
        async with model:
            reply = await model.create_completion(PROMPT, **ASK)
            return str(reply["choices"][0]["text"])

    model.llama.set_cache(disk)
    found["text"] = asyncio.run(ask())
    with disk, ram:
        found["after"] = len(disk)
    return found


def test_a_model_and_its_caches_arrive_in_another_process(tmp_path: Path) -> None:
    with (
        Llama(str(tiny_model("full")), **OPTIONS) as llm,
        LlamaDiskCache(str(tmp_path / "cache"), 1 << 24) as disk,
        LlamaRAMCache(1 << 20) as ram,
    ):
        for cache in (disk, ram):
            llm.set_cache(cache)
            expected = llm.create_completion(PROMPT, **ASK)["choices"][0]["text"]
        assert (len(disk), len(ram)) == (1, 1)
        spawn = multiprocessing.get_context("spawn")
        model = AsyncLlama(str(tiny_model("full")), **OPTIONS)
        with spawn.Pool(1) as pool:
            found = pool.apply(use, (model, disk, ram))
        model.close()
    assert found["text"] == expected
    assert found["entries"] == (1, 0)  # the directory is the same one, and memory is not
    assert found["capacity"] == 1 << 20
    assert found["after"] == 1


def test_a_copy_of_an_async_model_answers() -> None:
    async def ask(model: AsyncLlama) -> Any:
        return (await model.create_completion([5, 6, 7], **ASK))["choices"][0]["text"]

    async def both() -> None:
        async with AsyncLlama(str(tiny_model("full")), **OPTIONS) as model:
            expected = await ask(model)
            async with pickle.loads(pickle.dumps(model)) as copy:
                assert copy.llama is not model.llama
                assert await ask(copy) == expected
            with pytest.raises(ClosedError):
                copy.llama.create_completion([5])
            assert await ask(model) == expected
        with pytest.raises(ClosedError):
            pickle.dumps(model)

    asyncio.run(both())


def test_a_copy_keeps_the_capacity(tmp_path: Path) -> None:
    with LlamaRAMCache(12345) as ram, LlamaDiskCache(tmp_path / "c", 54321) as disk:
        with pickle.loads(pickle.dumps(ram)) as copy:
            assert (copy.capacity_bytes, len(copy)) == (12345, 0)
        with pickle.loads(pickle.dumps(disk)) as copy:
            assert (copy.capacity_bytes, copy.cache_dir) == (54321, tmp_path / "c")
    for cache in (ram, disk):
        with pytest.raises(ClosedError):
            pickle.dumps(cache)


def test_a_changed_chat_format_is_kept() -> None:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        llm.chat_format = "vicuna"
        with pickle.loads(pickle.dumps(llm)) as copy:
            assert copy.chat_format == "vicuna"
            messages = [{"role": "user", "content": "x"}]
            assert copy.render_chat(messages).prompt == llm.render_chat(messages).prompt


def test_every_error_arrives_whole() -> None:
    holds_for_all(arrives_whole, error_module.__all__)


def arrives_whole(name: str) -> None:
    kind: type[LlamaError] = getattr(error_module, name)
    given = {"ContextOverflowError": (7, 9), "InputTooLongError": (3, 9, 7)}
    error = kind(*given.get(name, ("what is wrong",)))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_what_errors_carry_arrives() -> None:
    error = pickle.loads(pickle.dumps(StorageError("x cannot be written", 28, "x")))
    assert (str(error), error.errno, error.filename) == ("x cannot be written", 28, "x")
    assert pickle.loads(pickle.dumps(RequestCancelled("gone", {"a": 1}))).partial == {"a": 1}
