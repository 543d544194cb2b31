"""``AsyncLlama``: calls in flight together, cancelling, slow readers, closing; uvloop as well."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import pickle
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from llama_py import Llama
from llama_py.api.aio import AsyncLlama
from llama_py.engine import async_events
from llama_py.engine.loop import MOST_EVENTS
from llama_py.errors import (
    ClosedError,
    ContextOverflowError,
    GenerationTimeout,
    LlamaError,
    ParameterError,
    UnknownParameterError,
)
from tests.engine.rig import EXACT
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.rest import in_flight

T = TypeVar("T")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
LONG: dict[str, Any] = {**GREEDY, "max_tokens": 1500}
Run = Callable[[Awaitable[T]], T]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Run a coroutine, with every kind of event loop that is installed."""
    if request.param == "asyncio":
        return asyncio.run
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    import uvloop

    return uvloop.run


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **EXACT) as loaded:
        yield loaded


@pytest.fixture
def model(llm: Llama) -> Iterator[AsyncLlama]:
    llm.reset()
    threads = {*threading.enumerate()}
    wrapped = AsyncLlama(llama=llm)
    yield wrapped
    wrapped.close()
    assert {*threading.enumerate()} <= threads


def text_of(response: Any) -> str:
    return str(response["choices"][0]["text"])


async def at_rest(model: AsyncLlama) -> None:
    """Wait until nothing is in flight."""
    end = time.monotonic() + PATIENCE
    while in_flight(model.llama):
        assert time.monotonic() < end, "something is still in flight"
        await asyncio.sleep(0.01)


def test_calls_in_flight_together_equal_calls_alone(
    run: Any, model: AsyncLlama, llm: Llama
) -> None:
    async def main() -> list[Any]:
        calls = [model.create_completion(f"number {n}", **GREEDY) for n in range(20)]
        return await asyncio.gather(*calls)

    together = run(main())
    assert llm.metrics["batch_streams"]["max"] > 1
    llm.reset()
    for number, response in enumerate(together):
        alone = llm.create_completion(f"number {number}", **GREEDY)
        assert text_of(response) == text_of(alone)
        assert response["usage"]["completion_tokens"] == 12


def test_chats_stream(run: Any, model: AsyncLlama, llm: Llama) -> None:
    messages = [{"role": "user", "content": "hello"}]

    async def main() -> list[Any]:
        stream = await model.create_chat_completion(messages, stream=True, **GREEDY)
        return [chunk async for chunk in stream]

    chunks = run(main())
    whole: Any = llm.create_chat_completion(messages, **GREEDY)
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_loop_is_called_once_for_all_streams(
    run: Any, model: AsyncLlama, llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them get a token from a step."""
    calls = 0
    look = async_events._Bell._look

    def counting(bell: async_events._Bell) -> None:
        nonlocal calls
        calls += 1
        look(bell)

    monkeypatch.setattr(async_events._Bell, "_look", counting)

    async def read(number: int) -> None:
        stream = await model.create_completion([5, 6, number], stream=True, **GREEDY)
        assert len([chunk async for chunk in stream]) > 1

    async def main() -> None:
        await asyncio.gather(*map(read, range(6)))

    steps = llm.runtime.loaded.engine.metrics.steps
    run(main())
    assert 1 < calls <= llm.runtime.loaded.engine.metrics.steps - steps


def test_several_choices(run: Any, model: AsyncLlama) -> None:
    response = run(model.create_completion("x", n=3, max_tokens=4, temperature=1.0, seed=3))
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2]


def test_a_cancelled_task_cancels_its_request(run: Any, model: AsyncLlama, llm: Llama) -> None:
    async def main() -> None:
        for wait in (0.0, 0.005, 0.05):
            task = asyncio.create_task(model.create_completion("a b c", **LONG))
            await asyncio.sleep(wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await at_rest(model)
        response = await model.create_completion("a b c", **GREEDY)
        alone = await model.run(llm.create_completion, "a b c", **GREEDY)
        assert text_of(response) == text_of(alone)

    run(main())
    assert llm.metrics["failed"] == 0


def test_a_cancelled_reader_of_a_stream(run: Any, model: AsyncLlama) -> None:
    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    async def main() -> None:
        stream = await model.create_completion("x", stream=True, **LONG)
        task = asyncio.create_task(read(stream))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await at_rest(model)

    run(main())


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("close", [False, True])
def test_an_abandoned_stream(run: Any, model: AsyncLlama, started: bool, close: bool) -> None:
    async def main() -> None:
        stream = await model.create_completion("x y", stream=True, **LONG)
        if started:
            await stream.__anext__()
        if close:
            await stream.aclose()
            assert in_flight(model.llama) == 0
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()
        del stream
        gc.collect()
        await at_rest(model)

    run(main())
    assert model.llama.metrics["cancelled"] == 1


def test_a_slow_reader_holds_only_itself_up(run: Any, model: AsyncLlama, llm: Llama) -> None:
    async def main() -> list[Any]:
        options = {**GREEDY, "max_tokens": MOST_EVENTS + 200}
        stream = await model.create_completion("slow", stream=True, **options)
        await stream.__anext__()
        (running,) = llm.runtime.loaded.engine.requests
        while not running.paused:
            await asyncio.sleep(0.005)
        generated = len(running.record.generated)
        quick = await model.create_completion("quick", **GREEDY)
        assert quick["usage"]["completion_tokens"] == 12
        assert (
            len(running.record.generated) == generated <= MOST_EVENTS + 64
        )  # those of a last call
        return [chunk async for chunk in stream]

    rest = run(main())
    assert rest[-1]["choices"][0]["finish_reason"] == "length"
    assert llm.metrics["token_seconds"]["count"] >= MOST_EVENTS + 199


def test_errors_are_those_of_the_sync_facade(run: Any, model: AsyncLlama) -> None:
    async def main() -> None:
        for stream in (False, True):
            with pytest.raises(ContextOverflowError):
                await model.create_completion("x " * 5000, stream=stream)
            with pytest.raises(UnknownParameterError):
                await model.create_completion("x", stream=stream, temprature=1)  # type: ignore[call-overload]
            with pytest.raises(ParameterError):
                await model.create_chat_completion([], stream=stream)
        with pytest.raises(GenerationTimeout) as caught:
            await model.create_completion("x", timeout=0.02, **LONG)
        assert caught.value.partial["choices"][0]["finish_reason"] == "error"
        chunks = await model.create_completion("x", timeout=0.02, stream=True, **LONG)
        with pytest.raises(GenerationTimeout):
            async for _ in chunks:
                pass
        with pytest.raises(StopAsyncIteration):
            await chunks.__anext__()

    run(main())
    assert in_flight(model.llama) == 0


def test_a_failing_step_is_reported_and_the_thread_lives_on(
    run: Any, model: AsyncLlama, llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError("broken")

    async def main() -> None:
        await model.create_completion("x", **GREEDY)
        with monkeypatch.context() as patch:
            patch.setattr(llm.runtime.loaded.engine.runner, "run", broken)
            with pytest.raises(OSError, match="broken"):
                await model.create_completion("y", **GREEDY)
        response = await model.create_completion("y", **GREEDY)
        assert response["usage"]["completion_tokens"] == 12

    run(main())


def test_threads_may_call_the_same_model_meanwhile(run: Any, model: AsyncLlama, llm: Llama) -> None:
    found: list[Any] = []

    def call(number: int) -> None:
        found.append((number, text_of(llm.create_completion(f"t {number}", **GREEDY))))

    async def main() -> None:
        threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*[model.create_completion(f"a {n}", **GREEDY) for n in range(8)])
        await asyncio.gather(*[asyncio.to_thread(thread.join) for thread in threads])

    run(main())
    llm.reset()
    assert len(found) == 4
    for number, text in found:
        assert text == text_of(llm.create_completion(f"t {number}", **GREEDY))


def test_a_chat_handler_runs_in_a_thread(run: Any, model: AsyncLlama, llm: Llama) -> None:
    def handler(*, llama: Llama, messages: Any, stream: bool, **_: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        reply = llama.create_completion(messages[0]["content"], stream=stream, **GREEDY)
        return iter(reply) if stream else reply

    async def main() -> None:
        messages = [{"role": "user", "content": "x"}]
        whole = await model.create_chat_completion(messages)
        chunks = await model.create_chat_completion(messages, stream=True)
        texts = [text_of(chunk) async for chunk in chunks]
        assert "".join(texts) == text_of(whole)

    llm.chat_handler = handler  # type: ignore[assignment]
    try:
        run(main())
    finally:
        llm.chat_handler = None


def test_a_load_that_is_cancelled_stops(run: Run[Any]) -> None:
    """And a copy of one that was loaded is made as it was."""
    seen: list[float] = []
    begun, left = threading.Event(), threading.Event()

    def progress(done: float) -> None:
        seen.append(done)
        begun.set()
        left.wait(PATIENCE)

    async def load() -> None:
        threads = {*threading.enumerate()}
        task = asyncio.ensure_future(
            AsyncLlama.load(str(tiny_model("full")), progress=progress, **EXACT)
        )
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)  # it learns of that
        left.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        end = time.monotonic() + PATIENCE
        while any(each.name.startswith("llama_py") for each in {*threading.enumerate()} - threads):
            assert time.monotonic() < end, "it still loads"
            await asyncio.sleep(0.01)
        assert len(seen) <= 2
        assert seen[-1] < 1.0
        with pytest.raises(ParameterError, match="progress must be a function"):
            await AsyncLlama.load(str(tiny_model("full")), progress=5)  # type: ignore[arg-type]
        async with await AsyncLlama.load(str(tiny_model("full")), **EXACT) as model:
            assert pickle.dumps(model.llama)

    run(load())


def test_it_closes_what_it_loaded(run: Any) -> None:
    before = {*threading.enumerate()}

    async def main() -> AsyncLlama:
        async with await AsyncLlama.load(str(tiny_model("full")), **EXACT) as model:
            await model.create_completion("x", **GREEDY)
            task = asyncio.create_task(model.create_completion("x", **LONG))
            await asyncio.sleep(0.02)
        with pytest.raises(LlamaError):
            await task
        with pytest.raises(ClosedError):
            await model.create_completion("x")
        return model

    model = run(main())
    model.close()
    with pytest.raises(LlamaError):
        model.llama.create_completion("x")
    assert {*threading.enumerate()} <= before


def test_what_it_takes() -> None:
    with pytest.raises(ParameterError):
        AsyncLlama()
    with pytest.raises(UnknownParameterError):
        AsyncLlama(str(tiny_model("full")), n_ctxx=3)  # type: ignore[call-arg]


def test_a_dropped_model_leaves_no_thread() -> None:
    before = {*threading.enumerate()}

    async def main() -> None:
        model = AsyncLlama(str(tiny_model("full")), **EXACT)
        await model.create_completion("x", **GREEDY)
        model._workers.shutdown()

    asyncio.run(main())
    gc.collect()
    assert {*threading.enumerate()} <= before
