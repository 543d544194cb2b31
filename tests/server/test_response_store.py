"""Stored replies: how many, how long, and whose."""

from __future__ import annotations

import threading
from typing import Any

from llama_py.dialects.responses.items import InputHistory
from llama_py.server.kept.response_store import Responses, ResponseStore, size_of

NOTHING = InputHistory()


class Clock:
    """A time that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reply(name: str, text: str = "hi") -> dict[str, Any]:
    return {"id": f"resp_{name}", "output": [{"id": f"msg_{name}", "type": "message", "t": text}]}


def keep(responses: Responses, *names: str, text: str = "hi") -> None:
    for name in names:
        responses.keep(NOTHING, [{"role": "user", "content": text}], reply(name, text))


def there(responses: Responses, *names: str) -> list[str]:
    return [name for name in names if responses.response(f"resp_{name}") is not None]


def test_a_conversation_grows_with_each_reply() -> None:
    mine = ResponseStore().of("me")
    first: list[dict[str, Any]] = [{"role": "user", "content": "one"}]
    mine.keep(NOTHING, first, reply("a"))
    earlier = mine.conversation("resp_a")
    assert earlier is not None
    mine.keep(earlier, [{"role": "user", "content": "two"}], reply("b"))
    later = mine.conversation("resp_b")
    assert later is not None
    assert [item.get("content", item.get("id")) for item in later.items] == [
        "one", "msg_a", "two", "msg_b",
    ]  # fmt: skip
    assert mine.item("msg_a") == reply("a")["output"][0]
    assert earlier.items == (*first, *reply("a")["output"])


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(most=3)
    mine = store.of("me")
    keep(mine, "a", "b", "c")
    assert there(mine, "a") == ["a"]  # it is used
    keep(mine, "d")
    assert there(mine, "a", "b", "c", "d") == ["a", "c", "d"]
    assert mine.item("msg_b") is None
    assert mine.conversation("resp_b") is None
    assert len(store) == 3


def test_there_is_a_limit_of_bytes() -> None:
    store = ResponseStore(most_bytes=100_000)
    mine = store.of("me")
    keep(mine, *"abcdefgh", text="x" * 10_000)
    assert 50_000 < store.size <= 100_000
    assert there(mine, *"abcdefgh") == [*"efgh"]
    keep(mine, "huge", text="x" * 100_000)
    assert there(mine, "huge", *"efgh") == [*"efgh"], "it is not stored, and nothing goes for it"
    for name in "efgh":
        assert mine.delete(f"resp_{name}")
    assert (store.size, len(store)) == (0, 0)


def test_a_day_later_it_is_gone() -> None:
    clock = Clock()
    store = ResponseStore(seconds=60, clock=clock)
    mine = store.of("me")
    keep(mine, "a")
    clock.now = 59
    keep(mine, "b")
    assert there(mine, "a", "b") == ["a", "b"]
    clock.now = 60
    assert there(mine, "a", "b") == ["b"]
    assert mine.item("msg_a") is None
    clock.now = 1000
    assert there(mine, "b") == []
    assert (store.size, len(store)) == (0, 0)


def test_what_is_deleted_early_does_not_keep_others() -> None:
    clock = Clock()
    store = ResponseStore(seconds=60, clock=clock)
    mine = store.of("me")
    for clock.now, name in enumerate("abc"):
        keep(mine, name)
    assert mine.delete("resp_a")
    for clock.now, left in ((60, "bc"), (61, "c"), (62, "")):
        assert there(mine, *"abc") == [*left]


def test_values_of_any_depth_have_a_size() -> None:
    value: Any = "x"
    for _ in range(5000):
        value = [value]
    assert size_of(value) > 5000
    assert size_of({"é" * 10: ["y" * 100, 1, None]}) > size_of({"e" * 10: ["y" * 100, 1]}) > 100


def test_everybody_finds_only_their_own() -> None:
    store = ResponseStore()
    mine, theirs = store.of("me"), store.of("them")
    keep(mine, "a")
    assert theirs.response("resp_a") is None
    assert theirs.conversation("resp_a") is None
    assert theirs.item("msg_a") is None
    assert not theirs.delete("resp_a")
    assert there(store.of("me"), "a") == ["a"]
    assert mine.delete("resp_a")
    assert not mine.delete("resp_a")
    assert mine.response("resp_a") is None


def test_who_stores_much_pushes_out_only_their_own() -> None:
    store = ResponseStore(most=6)
    quiet, loud = store.of("quiet"), store.of("loud")
    keep(quiet, "a", "b")
    keep(loud, *(str(number) for number in range(50)))
    assert there(quiet, "a", "b") == ["a", "b"]
    assert there(loud, "48", "49") == ["48", "49"]
    assert len(store) == 6


def test_several_threads_may_use_it() -> None:
    store = ResponseStore(most=50, most_bytes=50_000)

    def work(owner: str) -> None:
        mine = store.of(owner)
        for number in range(200):
            keep(mine, f"{owner}{number}")
            mine.response(f"resp_{owner}{number // 2}")
            mine.delete(f"resp_{owner}{number - 3}")

    threads = [threading.Thread(target=work, args=(owner,)) for owner in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) <= 50
    assert 0 < store.size <= 50_000
