"""A forked child never hangs, never harms its parent, and is told what to do instead.

Each test runs in a process of its own. A child begins with one thread and whatever the others left,
and one that hangs is killed by an alarm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

BEGIN = """
import faulthandler, multiprocessing, os, signal, sys, threading, time, warnings
from llama_py import AsyncLlama, ChatSession, Llama, LlamaDiskCache, LlamaRAMCache
from llama_py.errors import ForkedProcessError

warnings.simplefilter("ignore", DeprecationWarning)  # of fork, with threads
PATH, FOLDER = sys.argv[1:]
OPTIONS = dict(n_ctx=1024, n_seq_max=3, n_threads=1, n_threads_batch=1, flash_attn=False)
HELLO = [{"role": "user", "content": "Hello!"}]
LONG = [{"role": "user", "content": "Count to 5. " * 9}]

def load():
    return Llama(PATH, **OPTIONS)

def say(llm, messages=HELLO, n=12, **options):
    reply = llm.create_chat_completion(
        messages, temperature=0.0, max_tokens=n, logit_bias=BIAS, **options)
    return reply["choices"][0]["message"]["content"]

BIAS = {}  # replies are as long as they may be
def without_end(llm):
    BIAS.update({llm.token_eos(): -100.0})

def fork(body):
    \"\"\"Runs body() in a child; it is killed when it hangs.\"\"\"
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(120)
        faulthandler.dump_traceback_later(100)
        body()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stderr.flush()
    os._exit(code)

def ended(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"

def refused(call):
    start = time.process_time()
    try:
        call()
    except ForkedProcessError as error:
        assert "load the model in this process" in str(error) and "spawn" in str(error), error
        assert time.process_time() - start < 1.0
        return
    raise AssertionError("nothing was raised")

class held:
    \"\"\"Another thread holds a lock at the beginning of this.\"\"\"

    def __init__(self, lock, during=()):
        self.lock, self.during, self.taken = lock, during, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.taken.wait()

    def run(self):
        with self.lock:
            if isinstance(self.during, list):
                self.during.append(1)
            self.taken.set()
            time.sleep(0.5)
            if isinstance(self.during, list):
                self.during.clear()

    def __exit__(self, *_):
        self.thread.join()

class Talker(threading.Thread):
    \"\"\"Generates all the time; every reply has to be the same.\"\"\"

    def __init__(self, llm):
        super().__init__(daemon=True)
        self.llm, self.replies, self.stop = llm, [], False

    def run(self):
        while not self.stop:
            text = ""
            for chunk in self.llm.create_chat_completion(
                    LONG, temperature=0.0, max_tokens=200, stream=True, logit_bias=BIAS):
                text += chunk["choices"][0]["delta"].get("content") or ""
            self.replies.append(text)

    def finish(self, least=1):
        while len(self.replies) < least and self.is_alive():
            time.sleep(0.01)
        self.stop = True
        self.join()
        assert len(self.replies) >= least and len({*self.replies}) == 1, self.replies
"""


def run(body: str, path: Path, folder: Path) -> None:
    """Run a program with these beginnings; it must end well, and say nothing."""
    code = BEGIN + textwrap.dedent(body)
    command = [sys.executable, "-X", "faulthandler", "-c", code, str(path), str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-4000:]


@pytest.fixture
def model() -> Path:
    return tiny_model("full")


def test_everything_is_refused_while_another_thread_generates(model: Path, tmp_path: Path) -> None:
    body = """
    llm = load()
    without_end(llm)
    alone = say(llm, LONG, 200)
    session, state = ChatSession(llm, max_tokens=4), llm.save_state()
    stream = llm.create_chat_completion(HELLO, max_tokens=100, stream=True, logit_bias=BIAS)
    next(stream)
    talker = Talker(llm)
    talker.start()

    def child():
        for call in (
            lambda: say(llm),
            lambda: say(llm, timeout=2),
            lambda: llm("Hello", max_tokens=3),
            lambda: llm.create_completion([1, 2, 3], max_tokens=3),
            lambda: llm.eval([1, 2, 3]),
            lambda: llm.tokenize(b"Hello"),
            lambda: llm.detokenize([5, 6]),
            lambda: next(llm.generate([1, 2, 3])),
            lambda: llm.sample(),
            lambda: llm.reset(),
            lambda: llm.prewarm(HELLO),
            lambda: llm.save_state(),
            lambda: llm.load_state(state),
            lambda: llm.snapshot("a"),
            lambda: llm.set_cache(None),
            lambda: llm.memory_report(),
            lambda: session.send("Hello"),
            lambda: next(stream),
            lambda: llm.n_ctx(),
            lambda: llm.chat_template.source,
        ):
            refused(call)
        assert "of another process" in repr(llm)
        stream.close()
        session.close()
        llm.close()
        llm.close()
        refused(lambda: say(llm))

    children = []
    for _ in range(25):
        children.append(fork(child))
        time.sleep(0.004)
    for each in children:
        ended(each)
    talker.finish(2)
    assert talker.replies[0] == alone
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in stream)
    assert say(llm)
    """
    run(body, model, tmp_path)


def test_a_new_model_in_the_child_works(model: Path, tmp_path: Path) -> None:
    body = """
    import copy, pickle
    llm = load()
    expected = say(llm)
    talker = Talker(llm)
    talker.start()

    def child():
        with load() as mine:
            assert say(mine) == expected
        with pickle.loads(pickle.dumps(llm)) as mine:  # as it was made
            assert say(mine) == expected

    for _ in range(6):
        ended(fork(child))
    talker.finish()
    """
    run(body, model, tmp_path)


def test_a_fork_while_another_thread_is_in_the_critical_section_of_ggml(
    model: Path, tmp_path: Path
) -> None:
    body = """
    from llama_py._native import loader
    with load() as first:
        expected = say(first)
    base = loader.library("ggml-base")

    class Section:
        def __enter__(self):
            base.ggml_critical_section_start()
        def __exit__(self, *_):
            base.ggml_critical_section_end()

    def child():
        with load() as mine:
            assert say(mine) == expected

    with held(Section()):
        ended(fork(child))
    with load() as again:
        assert say(again) == expected
    """
    run(body, model, tmp_path)


def test_children_end_by_themselves(model: Path, tmp_path: Path) -> None:
    """By collecting, by leaving the interpreter, with an open stream, and with a stream in use."""
    body = """
    import atexit, gc
    llm = load()
    without_end(llm)
    stream = llm.create_chat_completion(HELLO, max_tokens=500, stream=True, logit_bias=BIAS)
    next(stream)
    talker = Talker(llm)
    talker.start()
    children = []
    for number in range(12):
        child = os.fork()
        if not child:
            signal.alarm(120)
            if number % 3 == 0:
                del llm, stream, talker
                gc.collect()
            elif number % 3 == 1:
                llm.close()
            sys.exit(0)
        children.append(child)
    for each in children:
        ended(each)
    talker.finish()
    stream.close()
    llm.close()
    """
    run(body, model, tmp_path)


def test_a_pool_of_processes(model: Path, tmp_path: Path) -> None:
    body = """
    def load_own(_):
        with load() as mine:
            return say(mine)

    def work(_):
        try:
            say(llm)
        except ForkedProcessError as error:
            return str(error)

    llm = load()
    expected = say(llm)
    talker = Talker(llm)
    talker.start()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        texts = pool.map_async(work, range(4)).get(30)
        assert all('get_context("spawn")' in text for text in texts), texts
        assert pool.map_async(load_own, range(2)).get(30) == [expected] * 2
    talker.finish()
    """
    run(body, model, tmp_path)


@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_a_store_goes_over_whole_and_the_parent_keeps_its_own(
    model: Path, tmp_path: Path, kind: str
) -> None:
    body = f"""
    store = LlamaDiskCache(FOLDER) if {kind == "disk"} else LlamaRAMCache()
    llm = load()
    llm.set_cache(store)
    without_end(llm)
    expected = say(llm, LONG)
    assert llm.cache.flush()  # a child does not write what the parent was about to
    talker = Talker(llm)
    talker.start()

    def child():
        assert len(store)
        with load() as mine:
            mine.set_cache(store)
            assert say(mine, LONG) == expected
            assert mine.cache_info["reused"] > 0, mine.cache_info
        store.close()

    for number in range(8):
        ended(fork(child))
        with load() as other:  # what the parent has is whole, and its own
            other.set_cache(store)
            assert say(other, LONG) == expected
            assert other.cache_info["reused"] > 0
    talker.finish()
    if {kind == "disk"}:
        store.close()
        with LlamaDiskCache(FOLDER) as again, load() as other:
            other.set_cache(again)
            assert say(other, LONG) == expected
            assert other.cache_info["reused"] > 0
    """
    run(body, model, tmp_path)


@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_a_fork_waits_until_no_thread_is_inside_of_a_store(
    model: Path, tmp_path: Path, kind: str
) -> None:
    body = f"""
    store = LlamaDiskCache(FOLDER) if {kind == "disk"} else LlamaRAMCache()
    changing = []

    def child():
        assert not changing
        assert len(store) == 0

    with held(store._lock, changing):
        ended(fork(child))
    assert len(store) == 0
    """
    run(body, model, tmp_path)


def test_what_the_parent_prepared_for_its_store_is_not_taken_away(
    model: Path, tmp_path: Path
) -> None:
    body = """
    store, llm = LlamaDiskCache(FOLDER), load()
    say(llm)
    pending = store.prepare(llm.save_state().stored)
    ended(fork(store.close))
    pending.confirm()
    assert len(store) == 1
    with load() as other:
        other.set_cache(store)
        say(other)
        assert other.cache_info["reused"] > 0
    """
    run(body, model, tmp_path)


def test_asyncio_in_the_parent(model: Path, tmp_path: Path) -> None:
    body = """
    import asyncio
    model = AsyncLlama(PATH, **OPTIONS)
    without_end(model.llama)

    async def use():
        return await model.create_chat_completion(HELLO, max_tokens=4)

    def child():
        refused(lambda: asyncio.run(use()))
        model.close()
        with load() as mine:
            assert say(mine)

    async def main():
        stream = await model.create_chat_completion(
            LONG, max_tokens=400, stream=True, temperature=0.0, logit_bias=BIAS)
        children, texts = [], []
        async for chunk in stream:
            texts.append(chunk["choices"][0]["delta"].get("content") or "")
            if len(texts) % 50 == 10:
                children.append(fork(child))
        for each in children:
            ended(each)
        again = await model.create_chat_completion(
            LONG, max_tokens=400, temperature=0.0, logit_bias=BIAS)
        assert again["choices"][0]["message"]["content"] == "".join(texts)
        assert len(children) > 5

    asyncio.run(main())
    model.close()
    """
    run(body, model, tmp_path)


def test_schemas_in_the_child(model: Path, tmp_path: Path) -> None:
    """The guides of vocabularies, and the threads that compute masks, are made anew."""
    pytest.importorskip("llguidance")
    body = """
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}},
              "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    from llama_py.chat.grammars import guidance
    llm = load()
    expected = say(llm, n=40, response_format=form)
    guidance._workers().submit(len, "").result()

    def child():
        with load() as mine:
            assert say(mine, n=40, response_format=form) == expected
        assert guidance._workers().submit(len, "abc").result() == 3

    with held(guidance._GUIDES_LOCK):
        ended(fork(child))
    assert guidance._workers().submit(len, "ab").result() == 2
    """
    run(body, model, tmp_path)
