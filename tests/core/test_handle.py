"""A handle frees its C object once, children before parents, whatever way it ends."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from llama_py import demo_model_path
from llama_py.core.handle import Handle
from llama_py.errors import ClosedError, LlamaError
from tests.models import tiny_model

ROOT = Path(__file__).resolve().parents[2]

Recorded = Handle[ctypes.c_void_p]


def make(freed: list[int], number: int) -> Recorded:
    return Handle(ctypes.c_void_p(number), lambda pointer: freed.append(pointer.value or 0))


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


def test_children_are_closed_before_their_parent() -> None:
    freed: list[int] = []
    parent, child, grandchild = (make(freed, number) for number in (1, 2, 3))
    parent.adopt(child)
    child.adopt(grandchild)
    parent.close()
    assert freed == [3, 2, 1]
    assert child.closed
    child.close()
    assert freed == [3, 2, 1]


def test_a_closed_child_does_not_stay_in_memory() -> None:
    freed: list[int] = []
    parent, child = make(freed, 1), make(freed, 2)
    parent.adopt(child)
    gone = weakref.ref(child)
    del child
    gc.collect()
    assert gone() is None
    assert freed == [2]
    parent.close()
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
from llama_py.core.sampler import Sampler
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
