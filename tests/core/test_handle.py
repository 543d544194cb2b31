"""A handle frees its C object once, children before parents, whatever way it ends."""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import demo_model_path
from llama_py.core.handle import Handle
from llama_py.errors import ClosedError, LlamaError
from tests.models import tiny_model

ROOT = Path(__file__).resolve().parents[2]

Recorded = Handle[ctypes.c_void_p]


def make(freed: list[int], number: int, *parents: Recorded) -> Recorded:
    return Handle(
        ctypes.c_void_p(number), lambda pointer: freed.append(pointer.value or 0), *parents
    )


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_freed_once_however_often_it_is_closed() -> None:
    freed: list[int] = []
    handle = make(freed, 7)
    assert handle.pointer.value == 7
    assert not handle.closed
    handle.close()
    handle.close()
    del handle
    gc.collect()
    assert freed == [7]


def test_use_after_close_is_a_typed_error() -> None:
    handle = make([], 7)
    handle.close()
    assert handle.closed
    with pytest.raises(ClosedError, match="this Handle is closed") as caught:
        _ = handle.pointer
    assert isinstance(caught.value, (LlamaError, RuntimeError))


def test_a_context_manager_closes_also_after_an_error() -> None:
    freed: list[int] = []
    with pytest.raises(KeyError), make(freed, 7):
        raise KeyError
    assert freed == [7]


def test_garbage_collection_closes() -> None:
    freed: list[int] = []
    handle = make(freed, 7)
    handle.myself = handle  # type: ignore[attr-defined]  # a cycle
    del handle
    gc.collect()
    assert freed == [7]


def test_children_are_closed_before_their_parent_newest_first() -> None:
    freed: list[int] = []
    parent = make(freed, 1)
    child, second = make(freed, 2, parent), make(freed, 3, parent)
    grandchild = make(freed, 4, child)
    parent.close()
    assert freed == [3, 4, 2, 1]
    assert child.closed
    assert grandchild.closed
    second.close()
    with pytest.raises(ClosedError):
        _ = child.pointer
    assert freed == [3, 4, 2, 1]


@pytest.mark.usefixtures("no_collector")
def test_references_that_are_dropped_in_any_order() -> None:
    """A parent goes when its last child is gone, and at once."""
    parents = {1: (), 2: (1,), 3: (2,), 4: (1,), 5: (1, 2)}
    for order in itertools.permutations(parents):
        freed: list[int] = []
        handles: dict[int, Recorded] = {}
        for number, above in parents.items():
            handles[number] = make(freed, number, *(handles[each] for each in above))
        dropped: set[int] = set()
        for number in order:
            del handles[number]
            dropped.add(number)
            needed = {up for n in parents if n not in freed for up in parents[n]}
            assert set(freed) == dropped - needed, order
        for number, above in parents.items():
            assert all(freed.index(number) < freed.index(each) for each in above), order
        assert len(freed) == len(parents)


def test_the_collector_frees_children_before_their_parent() -> None:
    """It finalizes the objects of a cycle in an order of its own."""
    for order in itertools.permutations(range(3)):
        freed: list[int] = []
        parent = make(freed, 1)
        handles = [parent, make(freed, 2, parent), make(freed, 3, parent)]
        cycle: list[Any] = [handles[index] for index in order]
        for index, handle in enumerate(cycle):
            handle.next = cycle[(index + 1) % 3]
        del parent, handles, handle, cycle
        assert freed == []
        gc.collect()
        assert sorted(freed) == [1, 2, 3]
        assert freed[-1] == 1, order


@pytest.mark.usefixtures("no_collector")
def test_a_closed_child_does_not_stay_in_memory() -> None:
    freed: list[int] = []
    parent = make(freed, 1)
    child = make(freed, 2, parent)
    gone = weakref.ref(child)
    del child
    assert gone() is None
    assert freed == [2]
    parent.close()
    assert freed == [2, 1]


def test_what_is_in_use_is_freed_when_it_is_not_any_more() -> None:
    freed: list[int] = []
    parent = make(freed, 1)
    child = make(freed, 2, parent)
    with child.in_use() as pointer:
        assert pointer.value == 2
        closer = threading.Thread(target=parent.close)
        closer.start()
        closer.join()
        assert (parent.closed, child.closed, freed) == (True, True, [])
        with pytest.raises(ClosedError), child.in_use():
            pass
        assert freed == []
    assert freed == [2, 1]


def test_what_another_object_refers_to_outlives_it() -> None:
    """An adapter that is closed, or dropped, while a context applies it."""
    freed: list[int] = []
    user, one, two = (make(freed, number) for number in (1, 2, 3))
    user._keep([one])
    one.close()
    assert (one.closed, freed) == (True, [])
    user._keep([two])
    assert freed == [2]
    del two
    assert freed == [2]
    user.close()
    assert freed == [2, 1, 3]


def test_a_child_of_a_parent_that_was_closed_meanwhile_is_freed() -> None:
    freed: list[int] = []
    parent = make(freed, 1)
    with parent.in_use():
        parent.close()  # as another thread would, while C makes the child
        with pytest.raises(ClosedError):
            make(freed, 2, parent)
    assert freed == [2, 1]


def test_an_object_whose_making_failed_can_be_collected() -> None:
    class Half(Handle[ctypes.c_void_p]):
        def __init__(self) -> None:
            raise ValueError("no pointer yet")

    with pytest.raises(ValueError, match="no pointer"):
        Half()
    gc.collect()


def test_two_threads_that_close_free_once() -> None:
    for _ in range(50):
        freed: list[int] = []
        handle = make(freed, 7)
        threads = [threading.Thread(target=handle.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert freed == [7]


def test_threads_that_drop_children_and_their_parent_free_each_once_in_order() -> None:
    for _ in range(50):
        freed: list[int] = []
        parent = make(freed, 0)
        children = [make(freed, number, parent) for number in range(1, 9)]
        drops = [children[index : index + 2] for index in range(0, 8, 2)]
        children.clear()
        drops.append([parent])
        del parent
        start = threading.Barrier(len(drops))

        def drop(own: list[Recorded], start: threading.Barrier = start) -> None:
            start.wait()
            own.clear()

        threads = [threading.Thread(target=drop, args=(own,)) for own in drops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(freed) == list(range(9))
        assert freed[-1] == 0


# -- the end of the interpreter --------------------------------------------------------------------

LIVE = {
    "a model": "kept = Llama({tiny!r}, n_ctx=256, n_threads=1)",
    "a stream": """
llm = Llama({demo!r}, n_ctx=256, n_threads=1)
stream = llm.create_chat_completion([{{"role": "user", "content": "Count to ten."}}], stream=True)
for _ in range(3):
    next(stream)
""",
    "core objects in a cycle": """
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.params import ContextParams, GrammarSpec, SamplingParams
model = Model({tiny!r})
context = Context(model, ContextParams(n_ctx=256, n_threads=1))
grammar = GrammarSpec('root ::= "a"')
sampler = Sampler(model.vocab, SamplingParams(grammar=grammar))
model.cycle = [context, sampler, model]
""",
    "a stream in another thread": """
import threading
llm = Llama({demo!r}, n_ctx=256, n_threads=1)
def read():
    for _ in llm("Once", max_tokens=200, stream=True, ignore_eos=True):
        started.set()
started = threading.Event()
threading.Thread(target=read, daemon=True).start()
started.wait(60)
""",
    "a model that is freed late": """
from llama_py.core import handle, logs
from llama_py import forks
llm = Llama({demo!r}, n_ctx=256, n_threads=2)
llm("Once", max_tokens=2)
""",
    "a model that is closed at exit": """
import atexit
llm = Llama({demo!r}, n_ctx=256, n_threads=2)
atexit.register(llm.close)
""",
    "an error": "llm = Llama({tiny!r}, n_ctx=256, n_threads=1)\nsys.exit('the end')",
}


@pytest.mark.parametrize("what", LIVE)
def test_the_interpreter_ends_with_live_objects(what: str) -> None:
    body = LIVE[what].format(tiny=str(tiny_model("full")), demo=demo_model_path())
    code = f"import sys\nfrom llama_py import Llama\n{body}\nprint('done')"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    expected = (1, "", "the end") if what == "an error" else (0, "done", "")
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == expected
