"""``ModelPool``: which models are in memory, and that everybody gets the one that they ask for."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

import llama_py
from llama_py import Llama
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.host.machine import unwritten_bytes
from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import StateError
from llama_py.server.config.settings import ModelSettings, Settings
from llama_py.server.pool import loader, model_errors, places
from llama_py.server.pool.pool import ModelPool
from llama_py.server.pool.served_model import ModelStatus, ServedModel
from tests.counting import calls_of
from tests.models import tiny_model
from tests.patience import PATIENCE, in_the_end

T = TypeVar("T")

PROMPT = "The quick brown fox"
SMALL: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 8}
#: Seconds that nothing here takes, unless somebody waits for ever.
LONG = PATIENCE


def paths() -> dict[str, str]:
    """Three models that continue ``PROMPT`` in different ways."""
    return {
        "demo": llama_py.demo_model_path(),
        "full": str(tiny_model("full")),
        "iswa": str(tiny_model("iswa")),
    }


def continuation(model: ServedModel) -> str:
    reply = model.llama.create_completion(PROMPT, max_tokens=4, temperature=0.0)
    return reply["choices"][0]["text"]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """How each model goes on, in a process of its own so to speak."""
    texts = {}
    for name, path in paths().items():
        with llama_py.Llama(path, **SMALL) as llama:
            reply = llama.create_completion(PROMPT, max_tokens=4, temperature=0.0)
            texts[name] = reply["choices"][0]["text"]
    assert len({*texts.values()}) == len(texts)
    return texts


def offered(*names: str, **options: Any) -> tuple[ModelSettings, ...]:
    known = paths()
    return tuple(
        ModelSettings(id=name, path=known.get(name, name), options={**SMALL, **options})
        for name in names
    )


@asynccontextmanager
async def pool_of(*names: str, **settings: Any) -> AsyncIterator[ModelPool]:
    models = settings.pop("models", offered(*names))
    pool = ModelPool(Settings(models=models, **settings))
    try:
        yield pool
    finally:
        await asyncio.wait_for(pool.close(), LONG)


def run(test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(asyncio.wait_for(test(), LONG))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def refusal(doing: Awaitable[Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await doing
    return caught.value


def status(pool: ModelPool, name: str) -> ModelStatus:
    return pool.find(name).status


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "gpt-4o", "", None])
def test_one_model_has_every_name(name: str | None) -> None:
    async def test() -> None:
        async with pool_of("demo") as pool, pool.lease(name) as model:
            assert model.id == "demo"

    run(test)


def test_several_models_have_their_own_names() -> None:
    models = (
        ModelSettings(id="demo", path=paths()["demo"], aliases=("claude-*", "small")),
        ModelSettings(id="full", path=paths()["full"], aliases=("claude-opus", "claude-3-*")),
    )

    async def test() -> None:
        async with pool_of(models=models) as pool:
            for name in ("demo", "small", "claude-haiku-4", None, ""):
                assert pool.find(name).id == "demo"
            for name in ("full", "claude-opus", "claude-3-haiku"):
                assert pool.find(name).id == "full"
            error = await refusal(pool.load("gpt-4o"))
            assert error.failure.kind is Kind.MODEL_NOT_FOUND
            assert error.failure.message == (
                "the model 'gpt-4o' does not exist; this server has demo, full"
            )
            assert not pool.counters.loads

    run(test)


def test_without_settings_there_is_the_bundled_model() -> None:
    async def test() -> None:
        async with pool_of(models=()) as pool:
            assert [model.id for model in pool.models] == ["demo-chat-q8_0"]

    run(test)


# -- loading ---------------------------------------------------------------------------------------


def test_a_cold_model_is_loaded_once_for_all_who_ask(expected: dict[str, str]) -> None:
    async def ask(pool: ModelPool) -> str:
        async with pool.lease("full") as model:
            return await asyncio.to_thread(continuation, model)

    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            texts = await asyncio.gather(*(ask(pool) for _ in range(6)))
            assert {*texts} == {expected["full"]}
            assert pool.counters.loads == 1
            assert [model.status.value for model in pool.models] == ["unloaded", "loaded"]
            meta = pool.find("full").meta
            assert meta is not None
            assert meta["n_ctx"] == 512
            assert meta["n_ctx_train"] == 4096

    run(test)


def test_the_loop_goes_on_while_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is there when the loop has turned some more while it was being loaded."""
    begun, turned = threading.Event(), threading.Event()

    def load(*arguments: Any, **options: Any) -> Llama:
        begun.set()
        assert turned.wait(LONG)
        return Llama(*arguments, **options)

    monkeypatch.setattr(loader, "Llama", load)

    async def test() -> None:
        async with pool_of("demo") as pool:
            loaded = asyncio.ensure_future(pool.load("demo"))
            await until(begun.is_set)
            for _ in range(20):
                await asyncio.sleep(0)
            turned.set()
            await loaded

    run(test)


def test_what_is_used_is_not_unloaded(expected: dict[str, str]) -> None:
    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            async with pool.lease("demo") as demo:
                other = asyncio.ensure_future(pool.load("full"))
                await asyncio.sleep(0.2)
                assert not other.done()
                assert await asyncio.to_thread(continuation, demo) == expected["demo"]
                assert pool.waiting == 1
            assert (await other).status is ModelStatus.LOADED
            assert status(pool, "demo") is ModelStatus.UNLOADED
            assert (pool.counters.loads, pool.counters.evictions) == (2, 1)

    run(test)


def test_the_one_that_was_used_longest_ago_makes_room() -> None:
    async def test() -> None:
        async with pool_of("demo", "full", "iswa", max_loaded=2) as pool:
            for name in ("demo", "full", "demo", "iswa"):
                await pool.load(name)
            assert [model.id for model in pool.loaded] == ["demo", "iswa"]

    run(test)


def test_memory_that_is_short_makes_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def lacks_memory(path: str, options: Any) -> bool:
        asked.append(path)
        return True

    monkeypatch.setattr(loader, "lacks_memory", lacks_memory)

    async def test() -> None:
        async with pool_of("demo", "full", max_loaded=2) as pool:
            async with pool.lease("demo"):
                assert not asked  # alone, it is tried in any case
                other = asyncio.ensure_future(pool.load("full"))
                await asyncio.sleep(0.2)
                assert not other.done()
            await other
            assert [model.id for model in pool.loaded] == ["full"]
            assert asked == [paths()["full"]]

    run(test)


def test_with_enough_memory_several_stay() -> None:
    async def test() -> None:
        async with pool_of("demo", "full", "iswa", max_loaded=3) as pool:
            for name in ("demo", "full", "iswa"):
                await pool.load(name)
            assert len(pool.loaded) == 3
            assert not pool.counters.evictions

    run(test)


# -- fairness --------------------------------------------------------------------------------------


def test_sixteen_clients_that_alternate_all_get_their_replies(expected: dict[str, str]) -> None:
    clock = itertools.count()
    #: (model, when it was asked for, when it was there)
    waits: list[tuple[str, int, int]] = []

    async def client(pool: ModelPool, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(5):
            name = chance.choice(["demo", "full"])
            asked = next(clock)
            async with pool.lease(name) as model:
                waits.append((name, asked, next(clock)))
                assert model.id == name
                assert await asyncio.to_thread(continuation, model) == expected[name]

    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            await asyncio.gather(*(client(pool, seed) for seed in range(16)))
            counters = pool.counters
            assert 2 <= counters.loads <= len(waits)
            assert counters.unloads == counters.evictions == counters.loads - 1
            assert not pool.waiting

    run(test)
    assert len(waits) == 80
    for name, asked, given in waits:
        overtaken = [
            other
            for other, later, sooner in waits
            if other != name and asked < later and sooner < given
        ]
        assert len(overtaken) <= 16


def test_a_busy_model_does_not_starve_another() -> None:
    async def client(pool: ModelPool, stop: asyncio.Event, taken: list[bool]) -> None:
        while not stop.is_set():
            async with pool.lease("demo"):
                taken.append(bool(pool.waiting))
                await asyncio.sleep(0.001)

    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            stop, taken = asyncio.Event(), list[bool]()
            clients = [asyncio.ensure_future(client(pool, stop, taken)) for _ in range(8)]
            await until(lambda: len(taken) > 100)
            taken.clear()
            await pool.load("full")
            stop.set()
            await asyncio.gather(*clients)
            assert sum(taken) <= 16  # while somebody waited, or behind that one

    run(test)


def test_after_its_time_a_model_takes_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_TURN_SECONDS", 0.0)

    async def test() -> None:
        async with pool_of("demo", "full") as pool, pool.lease("demo"):
            other = asyncio.ensure_future(pool.load("full"))
            behind = asyncio.ensure_future(pool.load("demo"))
            await asyncio.sleep(0.1)
            assert not behind.done()
            other.cancel()  # nobody is ahead any more
            assert (await behind).id == "demo"

    run(test)


# -- giving up -------------------------------------------------------------------------------------


def test_waiting_has_a_limit() -> None:
    async def test() -> None:
        async with pool_of("demo", "full", queue_timeout=0.1) as pool:
            async with pool.lease("demo"):
                error = await refusal(pool.load("full"))
                assert error.failure.kind is Kind.UNAVAILABLE
                assert error.failure.retry_after
                assert "full did not become available within 0.1 seconds" in str(error)
                assert not pool.waiting
                assert pool.counters.timeouts == 1
                await pool.load("demo")  # and nothing else was disturbed
            assert (await pool.load("full")).id == "full"

    run(test)


@pytest.fixture
def slow_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that take a while to load, as large ones do."""

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return llama_py.Llama(*arguments, **options)

    monkeypatch.setattr(loader, "Llama", slowly)


@pytest.mark.usefixtures("slow_loads")
def test_loading_takes_as_long_as_it_takes() -> None:
    """Whoever asks for a model that nobody else keeps out of memory gets it."""

    async def test() -> None:
        async with pool_of("demo", queue_timeout=0.05) as pool:
            both = await asyncio.gather(pool.load("demo"), pool.load("demo"))
            assert [model.id for model in both] == ["demo", "demo"]
            assert pool.counters.timeouts == 0

    run(test)


@pytest.mark.usefixtures("slow_loads")
def test_the_loading_of_others_is_no_waiting_either() -> None:
    """Who comes while another model is loaded, and used for a moment, gets its model then."""

    async def test() -> None:
        async with pool_of("demo", "full", queue_timeout=0.25) as pool:

            async def use() -> None:
                async with pool.lease("demo"):
                    await asyncio.sleep(0.1)

            first = asyncio.ensure_future(use())
            await until(lambda: pool.loading)
            try:
                assert (await pool.load("full")).id == "full"
            finally:
                await first
            assert pool.counters.timeouts == 0

    in_the_end(lambda: run(test), RequestError, tries=5)


def test_the_queue_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_py.server.pool.pool._MOST_WAITING", 3)

    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            async with pool.lease("demo"):
                others = [asyncio.ensure_future(pool.load("full")) for _ in range(3)]
                await until(lambda: pool.waiting == 3)
                error = await refusal(pool.load("full"))
                assert error.failure.kind is Kind.QUEUE_FULL
                assert error.failure.retry_after
            await asyncio.gather(*others)

    run(test)


@pytest.mark.parametrize("seed", range(3))
def test_those_who_give_up_leave_nothing_behind(seed: int) -> None:
    chance = random.Random(seed)

    async def client(pool: ModelPool) -> None:
        async with pool.lease(chance.choice(["demo", "full"])):
            await asyncio.sleep(chance.random() * 0.01)

    async def test() -> None:
        async with pool_of("demo", "full", "iswa") as pool:
            for _ in range(40):
                clients = [asyncio.ensure_future(client(pool)) for _ in range(4)]
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(chance.choice([0, 0, 0.01]))
                for each in chance.sample(clients, 3):
                    each.cancel()
                await asyncio.wait(clients)
            await pool.load("iswa")  # so the others are not in use
            assert not pool.waiting
            assert [model.id for model in pool.loaded] == ["iswa"]

    run(test)


# -- failures --------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(places, "time", clock)
    return clock


def test_a_model_that_cannot_be_loaded(
    tmp_path: Path, expected: dict[str, str], caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    path = tmp_path / "later.gguf"
    models = (*offered("demo"), ModelSettings(id="later", path=str(path), options=SMALL))

    async def test() -> None:
        async with pool_of(models=models) as pool:
            errors = await asyncio.gather(*(refusal(pool.load("later")) for _ in range(3)))
            errors.append(await refusal(pool.load("later")))  # at once
            for error in errors:
                assert error.failure.kind is Kind.UNAVAILABLE
                assert error.failure.retry_after == 1.0
                assert str(error) == "the model later cannot be loaded: its file is missing"
            assert (pool.counters.failures, pool.counters.loads) == (1, 0)
            assert pool.find("later").problem == "its file is missing"
            assert (await pool.load("demo")).id == "demo"
            path.write_bytes(b"<html>")
            clock.now += 1.0
            assert "web page" in str(await refusal(pool.load("later")))
            assert (await refusal(pool.load("later"))).failure.retry_after == 2.0
            path.write_bytes(Path(paths()["full"]).read_bytes())
            clock.now += 2.0
            async with pool.lease("later") as model:
                assert await asyncio.to_thread(continuation, model) == expected["full"]
            assert pool.find("later").problem is None
            assert str(path) in caplog.text
            assert pool.counters.failures == 2

    run(test)


def test_nobody_is_told_where_the_files_are(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    (demo,) = offered("demo", lora_path=str(path))
    models = (demo, ModelSettings(id="broken", path=str(path)))

    async def test() -> None:
        async with pool_of(models=models) as pool:
            for name in ("broken", "demo"):
                error = await refusal(pool.load(name))
                assert f"{name} cannot be loaded: " in str(error)
                assert str(tmp_path) not in str(error)

    run(test)


def test_not_even_by_an_error_with_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    model = ServedModel(ModelSettings(id="mine", path="models/m.gguf"), Settings())
    folder = tmp_path / "models"
    error = StateError(f"{folder / 'm.gguf'}: its part {folder / 'm2.gguf'}, models/m3.gguf")
    assert model_errors.reason_of(error, model) == "mine: its part m2.gguf, m3.gguf"


def test_a_failure_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(loader, "Llama", broken)

    async def test() -> None:
        async with pool_of("demo") as pool:
            error = await refusal(pool.load("demo"))
            assert str(error) == "the model demo cannot be loaded: the server's log says why"
            with pytest.raises(ZeroDivisionError):
                await pool.start()

    run(test)
    assert "a secret" in caplog.text


def test_a_server_with_one_model_starts_with_it(tmp_path: Path) -> None:
    async def test(*names: str) -> ModelPool:
        async with pool_of(*names) as pool:
            await pool.start()
            return pool

    assert asyncio.run(test("demo")).counters.loads == 1
    assert asyncio.run(test("demo", "full")).counters.loads == 0
    with pytest.raises(llama_py.ModelNotFoundError):
        asyncio.run(test(str(tmp_path / "no.gguf")))


def test_a_server_has_as_much_time_to_start_as_it_takes() -> None:
    async def test() -> None:
        async with pool_of("demo", queue_timeout=0.001) as pool:
            await pool.start()
            assert status(pool, "demo") is ModelStatus.LOADED

    run(test)


def test_the_first_request_costs_what_the_second_one_does() -> None:
    """What is made once, such as the compiled template, is made as soon as it is loaded."""

    async def test() -> None:
        async with pool_of("demo") as pool:
            await pool.start()
            await until(lambda: not pool._loader.preparing)
            async with pool.lease("demo") as model:
                calls, messages = (
                    model.llama.runtime.calls,
                    [{"role": "user", "content": "Good day"}],
                )
                first, second = (
                    calls_of(lambda: calls.count(calls.prompt_of(messages, {}))) for _ in range(2)
                )
                assert first < 1.5 * second

    run(test)


def test_a_model_is_warm_when_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request has to wait until weights and buffers are mapped, and none sees what did it."""
    decoded: list[int] = []
    decode = Context.decode

    def noted(self: Context, batch: Batch) -> int:
        decoded.append(len(batch))
        return decode(self, batch)

    monkeypatch.setattr(Context, "decode", noted)

    async def test() -> None:
        async with pool_of("demo") as pool:
            await pool.start()
            assert decoded == [2]
            async with pool.lease("demo") as model:
                report = model.llama.cache.report()
                assert (report["cells_used"], report["sequences"]) == (0, [])
                assert model.llama.runtime.loaded.engine.metrics.evaluated == 0

    run(test)


def test_a_model_that_fails_when_it_is_warmed_up_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Llama] = []
    close = Llama.close

    def failing(self: Context) -> None:
        raise StateError("no")

    def noted(self: Llama) -> None:
        close(self)
        closed.append(self)

    monkeypatch.setattr(Context, "warm_up", failing)
    monkeypatch.setattr(Llama, "close", noted)

    async def test() -> None:
        async with pool_of("demo") as pool:
            with pytest.raises(StateError):
                await pool.start()
            assert len(closed) == 1
            assert status(pool, "demo") is ModelStatus.UNLOADED

    run(test)


def test_a_model_may_go_before_it_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, ended = threading.Event(), []

    def slowly(self: loader.ModelLoader, llama: Any) -> None:
        ready.wait(PATIENCE)
        llama.runtime.calls.prompt_of(
            [{"role": "user", "content": "Hello"}], {}
        )  # it is still there
        ended.append(llama)

    monkeypatch.setattr(loader.ModelLoader, "_use_once", slowly)

    async def test() -> None:
        async with pool_of("demo") as pool:
            await pool.start()
            asyncio.get_running_loop().call_later(0.1, ready.set)

    run(test)
    assert ended


# -- leaving ---------------------------------------------------------------------------------------


def test_an_idle_model_is_unloaded_though_it_is_looked_at() -> None:
    async def test() -> None:
        async with pool_of("demo", model_idle_seconds=0.3) as pool:
            async with pool.lease("demo"):
                await asyncio.sleep(0.4)
                assert pool.loaded
            assert pool.loaded
            seen = 0
            while pool.loaded:
                async with pool.probe("demo") as model:
                    seen += model is not None
                await asyncio.sleep(0.01)
            assert seen
            await until(lambda: status(pool, "demo") is ModelStatus.UNLOADED)
            async with pool.probe("demo") as model:
                assert model is None
            assert (pool.counters.unloads, pool.counters.evictions) == (1, 0)
            await pool.load("demo")  # and comes back

    run(test)


def test_one_that_is_looked_at_is_not_unloaded(expected: dict[str, str]) -> None:
    async def test() -> None:
        async with pool_of("demo", model_idle_seconds=0.05) as pool:
            await pool.load("demo")
            async with pool.probe("demo") as model:
                assert model is not None
                await asyncio.sleep(0.2)
                assert await asyncio.to_thread(continuation, model) == expected["demo"]
            await until(lambda: not pool.loaded)

    run(test)


def test_unloading_by_hand_waits_for_those_who_use_it(expected: dict[str, str]) -> None:
    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            async with pool.lease("demo") as model:
                gone = asyncio.ensure_future(pool.unload("demo"))
                await asyncio.sleep(0.1)
                assert await asyncio.to_thread(continuation, model) == expected["demo"]
            assert (await gone).status is ModelStatus.UNLOADED
            await pool.unload("demo")  # that is not an error
            await pool.unload("full")
            assert (pool.counters.loads, pool.counters.unloads) == (1, 1)

    run(test)


def test_a_model_outside_of_a_lease_is_not_there() -> None:
    async def test() -> None:
        async with pool_of("demo") as pool:
            with pytest.raises(llama_py.ClosedError, match="demo is not loaded"):
                pool.find("demo").llama.n_ctx()

    run(test)


@pytest.mark.usefixtures("slow_loads")
def test_closing_ends_the_waiting_and_the_loading(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with pool_of("demo", "full") as pool:
            llama = (await pool.load("demo")).llama
            async with pool.lease("demo"):
                waiting = asyncio.ensure_future(pool.load("full"))
                await until(lambda: pool.waiting == 1)
                await pool.close()
                assert "being stopped" in str(await refusal(waiting))
            with pytest.raises(llama_py.ClosedError):
                llama.tokenize(b"Hello")
            assert "being stopped" in str(await refusal(pool.load("demo")))
        async with pool_of("demo") as pool:
            loading = asyncio.ensure_future(pool.load("demo"))
            await until(lambda: status(pool, "demo") is ModelStatus.LOADING)
            await pool.close()
            assert isinstance(await refusal(loading), RequestError)
            assert status(pool, "demo") is ModelStatus.UNLOADED

    run(test)
    assert "ERROR" not in {record.levelname for record in caplog.records}


def test_who_waits_is_told_that_the_server_stops() -> None:
    """And who has a model goes on."""

    async def test() -> None:
        async with pool_of("demo", "full") as pool, pool.lease("demo") as model:
            waiting = asyncio.ensure_future(pool.load("full"))
            await until(lambda: pool.waiting == 1)
            pool.refuse_waiting()
            assert "being stopped" in str(await refusal(waiting))
            assert model.llama.tokenize(b"Hello")

    run(test)


def test_the_memory_is_given_back() -> None:
    process = psutil.Process()
    models = offered("full", "iswa", n_ctx=98304)  # 96 MiB of cells and more

    def taken() -> int:
        gc.collect()
        return int(process.memory_info().rss) + unwritten_bytes()

    async def use(pool: ModelPool, name: str) -> int:
        async with pool.lease(name) as model:
            await asyncio.to_thread(continuation, model)
            return taken()

    async def test() -> None:
        async with pool_of(models=models) as pool:
            for name in ("iswa", "full"):
                await use(pool, name)
            await pool.unload("full")
            before = taken()
            used = [await use(pool, name) for name in ("full", "iswa") * 2]
            assert min(used[::2]) > before + (64 << 20)
            await pool.unload("iswa")
            assert taken() < before + (48 << 20)

    run(test)
