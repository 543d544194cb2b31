"""``del`` frees everything at once, in the right order, without the garbage collector.

The order is that of the calls that free, as they reach the real library.
"""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from llama_py import Llama, LlamaGrammar, demo_model_path
from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.api import weights as weights
from llama_py.core import threads
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.lora import LoraAdapter
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.errors import (
    ClosedError,
    ContextCreationError,
    InvalidModelError,
    ModelNotFoundError,
    ParameterError,
)
from llama_py.params import ContextParams, GrammarSpec, SamplingParams
from tests.adapters import tiny_adapter
from tests.allocated import needs_allocated_bytes
from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1}
SMALL = ContextParams(n_ctx=256, n_threads=1)
HELLO = [{"role": "user", "content": "hello"}]

FREES = [
    (C, "llama_model_free", "model"),
    (C, "llama_free", "context"),
    (C, "llama_adapter_lora_free", "adapter"),
    (C, "llama_sampler_free", "sampler"),
    (chat_h, "llama_py_abort_free", "abort"),
    (chat_h, "llama_py_chat_templates_free", "template"),
]


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The C objects that were freed, by name and in order, with the collector off."""
    names: list[str] = []

    def spied(function: Callable[[Any], None], name: str, pointer: Any) -> None:
        names.append(name)
        function(pointer)

    for module, function, name in FREES:
        monkeypatch.setattr(module, function, partial(spied, getattr(module, function), name))
    find = threads._function

    def found(backend: Any, name: bytes, *rest: Any) -> Any:
        function = find(backend, name, *rest)
        return partial(spied, function, "threads") if name.endswith(b"free") else function

    monkeypatch.setattr(threads, "_function", found)
    gc.collect()
    gc.disable()
    yield names
    gc.enable()


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    return str(tiny_adapter(demo_model_path(), tmp_path / "adapter.gguf"))


def load(**options: Any) -> Llama:
    return Llama(demo_model_path(), **{**OPTIONS, **options})


def order(freed: list[str]) -> list[str]:
    """Without what belongs to single replies."""
    return [name for name in freed if name not in ("sampler", "template")]


PLAIN = ["context", "threads", "abort", "model"]
WITH_ADAPTER = ["context", "threads", "adapter", "abort", "model"]


# -- every way of using a model -----------------------------------------------------------------


def streamed(llm: Llama) -> None:
    stream = llm.create_chat_completion(HELLO, max_tokens=8, stream=True)
    next(stream)
    next(stream)


def in_threads(llm: Llama) -> None:
    readers = [threading.Thread(target=partial(llm, "Once", max_tokens=3)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def low_level(llm: Llama) -> None:
    llm.eval(llm.tokenize(b"Once upon a time"))
    llm.sample()
    next(iter(llm.generate(llm.tokenize(b"Once"))))
    llm.load_state(llm.save_state())


def refused(llm: Llama) -> None:
    with pytest.raises(ValueError, match="n_ctx"):
        llm("Once " * 1000)


USES: dict[str, Callable[[Llama], Any]] = {
    "nothing": lambda llm: None,
    "a reply": lambda llm: llm("Once", max_tokens=3),
    "a chat": lambda llm: llm.create_chat_completion(HELLO, max_tokens=3),
    "samplers": lambda llm: llm("Once", max_tokens=3, top_k=0, top_p=0.9, n=2, dry_multiplier=1.0),
    "a grammar": lambda llm: llm(
        "Once", max_tokens=3, grammar=LlamaGrammar.from_string('root ::= "a"+')
    ),
    "JSON": lambda llm: llm.create_chat_completion(
        HELLO, max_tokens=3, response_format={"type": "json_object"}
    ),
    "a stream that is given up": streamed,
    "a session": lambda llm: llm.chat_session("Be kind.").send("hello", max_tokens=3),
    "threads": in_threads,
    "low level": low_level,
    "an error": refused,
}


@pytest.mark.parametrize("use", USES)
def test_del_frees_at_once_and_in_order(use: str, freed: list[str]) -> None:
    llm = load()
    USES[use](llm)
    del llm
    assert order(freed) == PLAIN


def test_del_frees_templates_and_samplers(freed: list[str]) -> None:
    llm = load()
    llm.create_chat_completion(HELLO, max_tokens=3, temperature=0.7)
    template = weakref.ref(llm.chat_template)
    before = freed.count("template")
    del llm
    assert freed.count("template") == before + 1
    assert "sampler" in freed
    assert template() is None


def test_a_session_that_is_dropped_after_its_model(freed: list[str]) -> None:
    llm = load()
    session = llm.chat_session()
    session.send("hello", max_tokens=3)
    del llm
    assert "model" not in freed
    session.send("and?", max_tokens=3)
    del session
    assert order(freed) == PLAIN


def test_a_variable_that_gets_another_model_frees_the_one_before(freed: list[str]) -> None:
    llm = load()
    llm("Once", max_tokens=2)
    llm = load()
    assert order(freed) == PLAIN
    assert llm("Once", max_tokens=2)["choices"][0]["text"]


def test_an_adapter_changes_replies_and_is_freed_once_before_its_model(
    adapter: str, freed: list[str]
) -> None:
    def reply(llm: Llama) -> str:
        return str(llm("Once", max_tokens=8, temperature=0)["choices"][0]["text"])

    plain, changed = load(), load(lora_path=adapter)
    assert reply(plain) != reply(changed)
    del plain
    assert order(freed) == PLAIN
    freed.clear()
    del changed
    assert order(freed) == WITH_ADAPTER


def test_close_frees_at_once_and_in_order(adapter: str, freed: list[str]) -> None:
    llm = load(lora_path=adapter)
    llm("Once", max_tokens=2)
    llm.close()
    assert order(freed) == WITH_ADAPTER
    llm.close()
    del llm
    assert order(freed) == WITH_ADAPTER


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_collected_model_frees_its_context_first(
    with_adapter: bool, adapter: str, freed: list[str]
) -> None:
    """The collector finalizes a cycle in an order of its own."""
    llm = load(lora_path=adapter if with_adapter else None)
    llm("the", max_tokens=1)
    llm.__dict__["cycle"] = [llm.runtime.loaded.model, llm.runtime.loaded.context, llm]
    del llm
    assert "model" not in freed
    gc.collect()
    assert sorted(order(freed)) == sorted(WITH_ADAPTER if with_adapter else PLAIN)
    assert freed.index("context") < freed.index("model")
    assert freed.index("context") < freed.index("abort")
    if with_adapter:
        assert freed.index("context") < freed.index("adapter") < freed.index("model")


# -- core objects ---------------------------------------------------------------------------------


def test_references_that_are_dropped_in_every_order(tmp_path: Path, freed: list[str]) -> None:
    """What is left works; the model goes last, with the last of what needs it."""
    file = tiny_model("full")
    path = tiny_adapter(file, tmp_path / "adapter.gguf")
    grammar = SamplingParams(grammar=GrammarSpec("root ::= [a-z]+"))
    for sequence in itertools.permutations(["model", "vocab", "context", "adapter", "sampler"]):
        model = Model(file)
        things: dict[str, Any] = {
            "n_vocab": model.vocab.n_tokens,
            "model": model,
            "vocab": model.vocab,
            "context": Context(model, SMALL),
            "adapter": LoraAdapter(model, path),
            "sampler": Sampler(model.vocab, grammar),
        }
        things["context"].set_adapters([(things["adapter"], 1.0)])
        del model
        for name in sequence:
            assert "model" not in freed, sequence
            del things[name]
            work(things)
        assert sorted(freed) == sorted([*WITH_ADAPTER, "sampler", "sampler"]), sequence
        assert freed[-1] == "model"
        assert freed.index("context") < freed.index("adapter")
        freed.clear()


def work(things: dict[str, Any]) -> None:
    if "vocab" in things:
        assert things["vocab"].detokenize(things["vocab"].tokenize("hello")).endswith(b"hello")
    if "context" in things:
        batch = Batch(2)
        batch.set([1, 2], 0, 0, True)
        assert things["context"].decode(batch) == 0
        things["context"].clear()
    if "sampler" in things:
        assert things["sampler"].sample(np.zeros(things["n_vocab"], np.float32)) >= 0


def test_closing_a_model_closes_what_was_made_from_it(tmp_path: Path, freed: list[str]) -> None:
    file = tiny_model("full")
    model = Model(file)
    context = Context(model, SMALL)
    adapter = LoraAdapter(model, tiny_adapter(file, tmp_path / "adapter.gguf"))
    context.set_adapters([(adapter, 1.0)])
    sampler = Sampler(model.vocab, SamplingParams(grammar=GrammarSpec('root ::= "a"')))
    model.close()
    assert [name for name in freed if name != "sampler"] == WITH_ADAPTER
    with pytest.raises(ClosedError, match="Context is closed"):
        context.pos_max(0)
    with pytest.raises(ClosedError, match="LoraAdapter is closed"):
        _ = adapter.pointer
    with pytest.raises(ClosedError, match="Vocab is closed"):
        model.vocab.tokenize("a")
    sampler.close()
    before = list(freed)
    del model, context, adapter, sampler
    assert freed == before


def test_an_adapter_that_is_closed_while_it_is_applied(tmp_path: Path, freed: list[str]) -> None:
    file = tiny_model("full")
    model = Model(file)
    context = Context(model, SMALL)
    adapter = LoraAdapter(model, tiny_adapter(file, tmp_path / "adapter.gguf"))
    context.set_adapters([(adapter, 1.0)])
    adapter.close()
    assert freed == []
    work({"context": context})
    with pytest.raises(ClosedError):
        context.set_adapters([(adapter, 0.5)])
    context.set_adapters([])
    assert freed == ["adapter"]
    model.close()


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tiny_model("full")
    with Model(file) as one, Model(file) as two:
        adapter = LoraAdapter(one, tiny_adapter(file, tmp_path / "adapter.gguf"))
        with pytest.raises(ParameterError, match="another model"):
            Context(two, SMALL).set_adapters([(adapter, 1.0)])


# -- constructors that fail -----------------------------------------------------------------------


def stop(done: float) -> bool:
    raise KeyError(done)


def fail(where: str, folder: Path) -> Exception:
    """The exception of a constructor, whose traceback still sees the half-made model."""
    wrong = folder / "wrong.gguf"
    wrong.write_bytes(Path(demo_model_path()).read_bytes())
    options: dict[str, dict[str, Any]] = {
        "progress": {"progress": stop},
        "context": {"n_ctx": 2**31 - 1},
        "context in C": {"type_v": 8, "flash_attn": False},
        "adapter": {"lora_path": str(wrong)},
        "no adapter": {"lora_path": str(folder / "nothing.gguf")},
    }
    with (
        # What does not fit is refused before anything is loaded, where that is known.
        patch.object(weights, "check_memory"),
        pytest.raises(
            (KeyError, ContextCreationError, InvalidModelError, ModelNotFoundError)
        ) as caught,
    ):
        load(**options[where])
    return caught.value


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("progress", []),
        ("context", ["model"]),
        ("context in C", ["abort", "model"]),
        ("adapter", PLAIN),
        ("no adapter", []),  # which is known before anything is loaded
    ],
)
def test_a_constructor_that_fails_leaves_nothing(
    where: str, expected: list[str], tmp_path: Path, freed: list[str]
) -> None:
    running = threading.active_count()
    error = fail(where, tmp_path)
    assert order(freed) == expected
    assert error.__traceback__ is not None  # held, with all frames of the constructor
    assert threading.active_count() == running
    del error
    gc.collect()
    assert order(freed) == expected


def test_retrying_with_a_smaller_context_does_not_load_a_second_model(
    tmp_path: Path, freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the message advises, in the ``except`` block in which the exception is held."""
    loaded: list[int] = []
    load_file = C.llama_model_load_from_file

    def spied(*arguments: Any) -> Any:
        loaded.append(len(loaded) - freed.count("model") + 1)
        return load_file(*arguments)

    monkeypatch.setattr(C, "llama_model_load_from_file", spied)
    monkeypatch.setattr(weights, "check_memory", lambda *_: None)
    try:
        llm = load(n_ctx=2**31 - 1)
    except ContextCreationError:
        llm = load()
    assert llm("Once", max_tokens=2)["choices"]
    assert loaded == [1, 1]  # models in memory with each load
    del llm
    assert freed.count("model") == 2


def test_an_adapter_that_changes_while_it_is_loaded_is_freed(
    tmp_path: Path, freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tiny_model("full")
    path = tiny_adapter(file, tmp_path / "adapter.gguf")
    init = C.llama_adapter_lora_init

    def replaced(*arguments: Any) -> Any:
        made = init(*arguments)
        tiny_adapter(file, path, rank=3)
        return made

    monkeypatch.setattr(C, "llama_adapter_lora_init", replaced)
    model = Model(file)
    with pytest.raises(InvalidModelError, match="replaced or changed") as caught:
        LoraAdapter(model, path)
    assert freed == ["adapter"]
    del caught
    model.close()
    assert freed == ["adapter", "model"]


def test_a_grammar_that_does_not_begin_with_its_prefill_is_freed(freed: list[str]) -> None:
    model = Model(tiny_model("full"))
    with pytest.raises(ValueError, match="prefill") as caught:
        Sampler(model.vocab, SamplingParams(grammar=GrammarSpec('root ::= "a"', prefill="b")))
    assert freed == ["sampler"]
    del caught


# -- again and again ------------------------------------------------------------------------------

LOOP = """
import gc, json, os, sys, time
gc.disable()
from llama_py import Llama
from llama_py.errors import ContextCreationError
from tests.allocated import allocated_bytes
model, adapter = sys.argv[1:]

def once(n):
    options = {"lora_path": adapter} if n % 2 else {}
    llm = Llama(model, n_ctx=512, n_threads=2, **options)
    llm.create_chat_completion([{"role": "user", "content": "hello"}], max_tokens=8)
    del llm
    try:
        Llama(model, n_ctx=512, n_threads=2, type_v=8, flash_attn=False)
    except ContextCreationError:
        pass

def measured():
    time.sleep(0.1)  # a thread that was joined is there for a moment longer
    mapped = open("/proc/self/maps").read().count(model)
    threads = len(os.listdir("/proc/self/task"))
    return allocated_bytes(), mapped, threads, len(gc.get_objects())

for n in range(4):  # what is loaded once: libraries, backends, buffers of Python
    once(n)
before = measured()
for n in range(10):
    once(n)
print(json.dumps([before, measured()]))
"""


@needs_allocated_bytes
def test_loading_again_and_again_takes_no_more_memory_and_no_more_threads(adapter: str) -> None:
    command = [sys.executable, "-c", LOOP, demo_model_path(), adapter]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (heap, _, running, objects), (heap_after, mapped_after, running_after, objects_after) = (
        json.loads(done.stdout)
    )
    assert heap_after - heap < 100_000, "bytes, over ten models of three megabytes"
    assert mapped_after == 0
    assert running_after == running
    # Nothing is left to the collector, but for a few types of ctypes.
    assert objects_after - objects < 100


CLOSED_MEANWHILE = """
import threading
from llama_py import Llama
from llama_py.errors import ClosedError

TEXT = "the quick brown fox " * 2000
CHAT = [{{"role": "user", "content": TEXT}}]

def use(call):
    begun.wait()
    try:
        while True:
            call()
    except ClosedError:
        pass

for turn in range(12):
    llm = Llama({path!r}, n_ctx=64, n_threads=1)
    begun = threading.Event()
    calls = [lambda: llm.tokenize(TEXT.encode()), lambda: llm.render_chat(CHAT)] * 2
    users = [threading.Thread(target=use, args=(call,)) for call in calls]
    for user in users:
        user.start()
    begun.set()
    threading.Event().wait(0.003 * turn)
    llm.close()
    for user in users:
        user.join()
"""


def test_a_model_that_is_closed_while_threads_tokenize_and_render() -> None:
    script = CLOSED_MEANWHILE.format(path=str(tiny_model("full")))
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("options", [{}, {"chat_format": "chatml-function-calling"}])
def test_a_template_that_is_made_while_the_model_is_closed(
    freed: list[str], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    make = chat_h.llama_py_chat_templates_init

    def closed_meanwhile(*arguments: Any) -> Any:
        if arguments[0]:  # a model, which it reads
            llm.close()
            assert "model" not in freed
        return make(*arguments)

    llm = load(**options)
    monkeypatch.setattr(chat_h, "llama_py_chat_templates_init", closed_meanwhile)
    with suppress(ClosedError):
        llm.render_chat(HELLO)
    assert "model" in freed
    for _ in range(2):
        with pytest.raises(ClosedError):
            llm.render_chat(HELLO)
