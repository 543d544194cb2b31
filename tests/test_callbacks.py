"""Functions of the caller's that run inside a step: what they may not do, and what they return."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncLlama, Llama
from llama_py.dialects.openai.encode import CompletionEncoder
from llama_py.errors import LlamaError, ParameterError, ParameterTypeError, RequestCancelled
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.slowness import slow_steps

OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "flash_attn": False}
CHAT = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    shared.reset()
    return shared


FORBIDDEN: dict[str, Callable[[Llama], Any]] = {
    "reset": lambda llm: llm.reset(),
    "close": lambda llm: llm.close(),
    "exit": lambda llm: llm.__exit__(None, None, None),
    "eval": lambda llm: llm.eval([5]),
    "completion": lambda llm: llm.create_completion("the"),
    "load_state": lambda llm: llm.load_state(None),  # type: ignore[arg-type]
    "snapshot": lambda llm: llm.snapshot("a", length=1),
    "prewarm": lambda llm: llm.prewarm(CHAT),
}


@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria", "on_progress"])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_callback_may_not_call(llm: Llama, place: str, name: str) -> None:
    """Its own request fails; the neighbour in the same batch, and the next call, do not notice."""
    answers = llm.create_completion([9, 8, 7], max_tokens=12, temperature=0, ignore_eos=True)

    def call(*_: Any) -> Any:
        return FORBIDDEN[name](llm)

    with llm.create_completion(
        [9, 8, 7], max_tokens=12, temperature=0, ignore_eos=True, stream=True
    ) as neighbour:
        text = next(neighbour)["choices"][0]["text"]
        options: dict[str, Any] = {place: call, "max_tokens": 4, "ignore_eos": True}
        with pytest.raises(LlamaError, match=r"a callback of a request .* cannot call, reset"):
            llm.create_completion([5, 6, 7], **options)
        text += "".join(chunk["choices"][0]["text"] for chunk in neighbour)
    assert text == answers["choices"][0]["text"]
    again = llm.create_completion([9, 8, 7], max_tokens=12, temperature=0, ignore_eos=True)
    assert again["choices"][0]["text"] == text


def test_a_reset_while_samplers_of_others_are_at_work() -> None:
    """Slow samplers choose in threads of their own; freeing them there would end the process."""
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        llm.runtime.loaded.engine._sampling._side_by_side = (
            True  # as for a vocabulary of 16,384 and more
        )
        errors: list[BaseException] = []

        def stop(_tokens: Any, _logits: Any) -> bool:
            try:
                llm.reset()
            except LlamaError as error:
                errors.append(error)
            return False

        slow: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, "ignore_eos": True}
        streams = [
            llm.create_completion([5, 6, number], max_tokens=20, stream=True, **slow)
            for number in range(10, 14)
        ]
        judged = llm.create_completion([5, 6, 7], max_tokens=20, stopping_criteria=stop, **slow)
        assert judged["usage"] is not None
        assert judged["usage"]["completion_tokens"] == 20
        assert len(errors) == 20
        for stream in streams:
            chunks = [*stream]
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_close_in_a_callback_of_an_async_model() -> None:
    async def main() -> None:
        model = AsyncLlama(str(tiny_model("full")), **OPTIONS)

        def stop(*_: Any) -> bool:
            model.close()
            return False

        async with model:
            with pytest.raises(LlamaError, match="reset or close"):
                await model.create_completion([5, 6, 7], max_tokens=3, stopping_criteria=stop)
            reply = await model.create_completion([5, 6, 7], max_tokens=3, ignore_eos=True)
            assert reply["usage"]["completion_tokens"] == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("returned", "kind", "words"),
    [
        ("hello", ParameterTypeError, r"returned str \('hello'\); it must return the logits"),
        (None, ParameterTypeError, "returned None"),
        (object(), ParameterTypeError, "returned object"),
        ([[1.0, 2.0], [3.0]], ParameterTypeError, "returned list"),
        (np.zeros(3, np.float32), ParameterError, r"shape \(3,\) instead of \(519,\)"),
    ],
    ids=["text", "None", "object", "ragged", "short"],
)
def test_what_a_logits_processor_may_return(
    llm: Llama, returned: Any, kind: type[LlamaError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        llm.create_completion([5, 6], logits_processor=lambda *_: returned, max_tokens=2)
    response = llm.create_completion(
        [5, 6], logits_processor=lambda _, row: row.tolist(), max_tokens=2, ignore_eos=True
    )
    assert response["usage"] is not None
    assert response["usage"]["completion_tokens"] == 2


# -- requests that somebody else ends --------------------------------------------------------------


def running(llm: Llama, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """A call that generates in a thread of its own, and what it will have returned or raised."""
    result: list[Any] = []
    started = threading.Event()

    def criterion(*_: Any) -> bool:
        started.set()
        return False

    def call() -> None:
        try:
            reply = llm.create_completion(
                [5, 6, 7], max_tokens=400, ignore_eos=True, stopping_criteria=criterion, **options
            )
            result.append([*reply] if options.get("stream") else reply)
        except LlamaError as error:
            result.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert started.wait(PATIENCE)
    return thread, result


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_reply_that_a_reset_ended_is_no_reply(llm: Llama, stream: bool) -> None:
    thread, result = running(llm, stream=stream)
    llm.reset(cancel=True)
    thread.join(PATIENCE)
    (error,) = result
    assert isinstance(error, RequestCancelled)
    assert isinstance(error, RuntimeError)
    assert 0 < error.partial["usage"]["completion_tokens"] < 400
    assert error.partial["choices"][0]["finish_reason"] == "cancelled"


def test_generate_says_that_it_was_cancelled(llm: Llama) -> None:
    tokens = llm.generate([5, 6, 7])
    next(tokens)
    llm.reset()
    with pytest.raises(RequestCancelled):
        for _ in tokens:
            pass


def test_a_session_says_that_its_reply_was_cancelled(llm: Llama) -> None:
    chat = llm.chat_session(ignore_eos=True)
    reply = chat.send("the", stream=True)
    llm.reset()
    with pytest.raises(RequestCancelled):
        reply.read()
    assert chat.messages == []


def test_another_thread_may_close_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop button: the reader's loop ends, and nobody gets an error."""
    finish = CompletionEncoder.close

    def take_time(encoder: CompletionEncoder) -> list[Any]:
        time.sleep(0.2)  # the reader is still busy with its last chunk when close() is
        return finish(encoder)

    monkeypatch.setattr(CompletionEncoder, "close", take_time)
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        for _ in range(2):
            begun = threading.Event()
            ended: list[Any] = []

            def slowly(*_: Any, begun: threading.Event = begun) -> bool:
                begun.set()
                return False

            stream = llm.create_completion(
                [5, 6, 7], max_tokens=400, ignore_eos=True, stream=True, stopping_criteria=slowly
            )

            def read(stream: Any = stream, ended: list[Any] = ended) -> None:
                try:
                    ended.append(len([*stream]))
                except BaseException as error:
                    ended.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            assert begun.wait(PATIENCE)
            stream.close()
            reader.join(PATIENCE)
            assert isinstance(ended[0], int), ended
            assert ended[0] < 400
            assert next(stream, None) is None


def test_closing_ones_own_stream_raises_nothing(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch, 0.01)
    stream = llm.create_completion([5, 6, 7], max_tokens=100, ignore_eos=True, stream=True)
    next(stream)
    stream.close()
    assert next(stream, None) is None
    assert llm.metrics["cancelled"] == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_async_reply_that_a_reset_ended(llm: Llama, stream: bool) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def criterion(*_: Any) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return False

        async def read(model: AsyncLlama) -> Any:
            reply: Any = await model.create_completion(
                [5, 6, 7],
                max_tokens=400,
                ignore_eos=True,
                stream=stream,
                stopping_criteria=criterion,
            )
            return [chunk async for chunk in reply] if stream else reply

        async with AsyncLlama(llama=llm) as model:
            reading = asyncio.create_task(read(model))
            await begun.wait()
            await model.run(llm.reset, cancel=True)
            with pytest.raises(RequestCancelled) as caught:
                await reading
            assert caught.value.partial["usage"]["completion_tokens"] > 0

    asyncio.run(main())


def test_another_task_may_close_a_stream(llm: Llama) -> None:
    async def main() -> None:
        async with AsyncLlama(llama=llm) as model:
            stream = await model.create_completion(
                [5, 6, 7], max_tokens=400, ignore_eos=True, stream=True
            )
            seen = asyncio.Event()

            async def read() -> int:
                count = 0
                async for _ in stream:
                    seen.set()
                    count += 1
                return count

            reading = asyncio.create_task(read())
            await seen.wait()
            await stream.aclose()
            assert 0 < await asyncio.wait_for(reading, PATIENCE) < 400

    asyncio.run(main())


@pytest.mark.parametrize("broken", [0, 3, -1], ids=["first", "later", "last"])
def test_an_event_that_cannot_be_encoded_ends_an_async_reply(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Whichever event it was: closing the reply does not wait for one that was read already."""
    feed = CompletionEncoder.feed
    count = 0

    def fail(encoder: CompletionEncoder, choice: int, event: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 == broken or (broken < 0 and hasattr(event, "reason")):
            raise ParameterError("cannot be encoded")
        return feed(encoder, choice, event)

    monkeypatch.setattr(CompletionEncoder, "feed", fail)

    async def main() -> None:
        async with AsyncLlama(llama=llm) as model:
            with pytest.raises(ParameterError, match="cannot be encoded"):
                await asyncio.wait_for(
                    model.create_completion([5, 6, 7], max_tokens=8, ignore_eos=True), PATIENCE
                )

    asyncio.run(main())
