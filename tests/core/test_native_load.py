"""What becomes of a model whose file changes, and of a load that is interrupted."""

from __future__ import annotations

import ctypes
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, LlamaDiskCache
from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.model import Model
from llama_py.core.native_load import NativeLoad
from llama_py.errors import InvalidModelError
from llama_py.params import ModelParams
from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_seq_max": 2, "n_threads": 1, "n_threads_batch": 1}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_model("full"), tmp_path / "model.gguf"))


def replace(path: Path, *, seed: int) -> None:
    """Put other weights where a model lies, as a download does."""
    fresh = path.with_suffix(".part")
    shutil.copy(tiny_model("full", seed=seed), fresh)
    fresh.replace(path)


def say(llm: Llama, prompt: str = PROMPT) -> str:
    response: Any = llm.create_completion(prompt, temperature=0.0, max_tokens=4, ignore_eos=True)
    return str(response["choices"][0]["text"])


# -- files that change -----------------------------------------------------------------------------


def test_a_file_that_is_deleted_after_loading_is_not_missed(path: Path) -> None:
    with Llama(path, **OPTIONS) as llm:
        path.unlink()
        first = say(llm)
        assert say(llm) == first
        llm.load_state(llm.save_state())
        with Llama(tiny_model("full"), **OPTIONS) as same:
            assert same.runtime.loaded.fingerprint == llm.runtime.loaded.fingerprint


def test_states_belong_to_the_weights_that_made_them(path: Path, tmp_path: Path) -> None:
    """The file is replaced between loading and the first call, whose state goes to a store."""
    with LlamaDiskCache(str(tmp_path / "store")) as store:
        with Llama(path, **OPTIONS) as old:
            replace(path, seed=9)
            old.set_cache(store)
            first = say(old)
        with Llama(path, **OPTIONS) as new:
            new.set_cache(store)
            say(new)
            assert new.cache_info["reused"] == 0
        with Llama(tiny_model("full"), **OPTIONS) as again:
            again.set_cache(store)
            assert say(again) == first
            assert again.cache_info["reused"] > 0


def test_a_file_that_is_replaced_while_it_is_loaded_is_refused(path: Path) -> None:
    swapped: list[float] = []

    def swap(done: float) -> None:
        if not swapped:
            replace(path, seed=9)
        swapped.append(done)

    with pytest.raises(InvalidModelError, match="replaced or changed while it was being loaded"):
        Model(path, progress=swap)
    with Model(path) as model, Model(tiny_model("full", seed=9)) as other:
        assert model.fingerprint == other.fingerprint


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(path: Path) -> None:
    def flip(done: float) -> None:
        if done == 0.0:
            data = bytearray(path.read_bytes())
            data[-1000] ^= 1
            path.write_bytes(data)

    with pytest.raises(InvalidModelError, match="load it again"):
        Model(path, ModelParams(use_mmap=False), progress=flip)


def test_an_equal_copy_in_its_place_is_no_other_file(path: Path) -> None:
    """Some file systems number their files anew; the content decides."""

    def renew(done: float) -> None:
        fresh = path.with_suffix(".part")
        shutil.copy2(path, fresh)
        fresh.replace(path)

    with Model(path, progress=renew) as model, Model(tiny_model("full")) as same:
        assert model.fingerprint == same.fingerprint


def test_a_file_that_is_deleted_while_it_is_loaded_is_loaded(path: Path) -> None:
    with Model(path, progress=lambda done: path.unlink(missing_ok=True)) as model:
        assert model.n_params


# -- the log ---------------------------------------------------------------------------------------


def test_a_reason_is_told_to_the_thread_that_failed() -> None:
    """Two loads that fail at the same time do not get each other's reason."""
    seen: dict[str, str] = {}
    both = threading.Barrier(2)

    def fail(name: str) -> None:
        with logs.ErrorLines() as lines:
            both.wait()
            logs._receive(4, f"the reason of {name}\n".encode(), None)
            both.wait()
        seen[name] = str(lines)

    threads = [threading.Thread(target=fail, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"one": "the reason of one", "two": "the reason of two"}


# -- progress --------------------------------------------------------------------------------------


def test_what_progress_raises_stops_the_load_and_comes_out() -> None:
    seen: list[float] = []

    def fail(done: float) -> None:
        seen.append(done)
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError, match="in the middle"):
        Model(tiny_model("full"), progress=fail)
    assert len(seen) == 1


def test_a_load_that_progress_stops_says_so() -> None:
    with pytest.raises(InvalidModelError, match="stopped, because progress returned False"):
        Model(tiny_model("full"), progress=lambda done: done < 0.3)


@pytest.mark.parametrize("main", [True, False], ids=["main-thread", "other-thread"])
def test_progress_is_called_by_the_thread_that_loads(main: bool) -> None:
    seen: set[int] = set()

    def load() -> None:
        Model(tiny_model("full"), progress=lambda done: seen.add(threading.get_ident())).close()
        seen.add(threading.get_ident())

    if main:
        load()
    else:
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert len(seen) == 1


# -- meanwhile -------------------------------------------------------------------------------------


def test_the_main_thread_works_while_another_one_loads() -> None:
    seen: list[tuple[str, int]] = []

    def meanwhile() -> None:
        seen.append(("meanwhile", threading.get_ident()))

    def progress(_done: float) -> None:
        seen.append(("progress", threading.get_ident()))

    Model(tiny_model("full"), progress=progress, meanwhile=[meanwhile]).close()
    assert [what for what, _ in seen][:2] == ["meanwhile", "progress"]
    assert {where for _, where in seen} == {threading.get_ident()}


class SlowLoad:
    """Weights that are loaded as a test says, with the progress that C tells of."""

    def __init__(self, progress: Callable[[float], None] | None = None) -> None:
        self.worked = 0
        self._native = NativeLoad(progress, self._endless())
        self._state = self._native.attach(C.llama_model_params())

    def _endless(self) -> Iterator[Callable[[], None]]:
        while True:
            yield self._work

    def _work(self) -> None:
        self.worked += 1
        time.sleep(0.001)

    def tell(self, done: float) -> None:
        chat_h.llama_py_loading_progress(done, ctypes.addressof(self._state))

    def run(self, load: Callable[[], None]) -> None:
        self._native.run(load)


def test_what_can_wait_is_done_while_much_is_left_to_be_read() -> None:
    load = SlowLoad()
    seen: list[int] = []

    def read() -> None:
        time.sleep(0.2)  # as long as a disk may need before it gives anything
        seen.append(load.worked)
        load.tell(0.1)
        time.sleep(0.2)
        seen.append(load.worked)
        load.tell(0.99)
        time.sleep(0.05)
        seen.append(load.worked)
        time.sleep(0.2)
        seen.append(load.worked)

    load.run(read)
    assert 1 < seen[0] < seen[1]
    assert seen[2] == seen[3] == load.worked


def test_one_thing_is_done_whatever_is_left() -> None:
    load = SlowLoad()
    load.run(lambda: load.tell(1.0))
    assert load.worked == 1


def test_who_asks_for_the_progress_is_told_between_two_pieces_of_work() -> None:
    seen: list[tuple[float, int]] = []
    load = SlowLoad(lambda done: seen.append((done, load.worked)))

    def read() -> None:
        for done in (0.0625, 0.125, 1.0):
            time.sleep(0.1)
            load.tell(done)

    load.run(read)
    assert [done for done, _ in seen] == [0.0625, 0.125, 1.0]
    assert 0 < seen[0][1] < seen[1][1]


def test_a_thread_that_loads_itself_does_nothing_meanwhile() -> None:
    seen: list[str] = []

    def load() -> None:
        Model(tiny_model("full"), meanwhile=[lambda: seen.append("meanwhile")]).close()
        seen.append("loaded")

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert seen == ["loaded"]


def test_what_fails_meanwhile_stops_the_load_and_comes_out() -> None:
    def fail() -> None:
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError, match="in the middle"):
        Model(tiny_model("full"), meanwhile=[fail])


FIRST_LOAD = """
import _thread, sys
from llama_py import Llama

class Strike:
    def find_spec(self, name, path, target=None):
        if name == "llama_py.engine.engine":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

early = {"jinja2", "llama_py.engine", "llama_py.chat"} & {*sys.modules}
if len(sys.argv) > 2:
    sys.meta_path.insert(0, Strike())
    try:
        Llama(sys.argv[1], n_ctx=256, n_threads=1)
    except KeyboardInterrupt:
        print("interrupted")
with Llama(sys.argv[1], n_ctx=256, n_threads=1) as llm:
    reply = llm.create_completion("Hello", max_tokens=3, ignore_eos=True)
print(early or "nothing early", reply["usage"]["completion_tokens"])
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_calls_need_is_imported_while_the_weights_are_read(interrupted: bool) -> None:
    """Not with the class. And a Ctrl-C in the middle of it leaves nothing half imported."""
    command = [sys.executable, "-c", FIRST_LOAD, str(tiny_model("full"))]
    command += ["interrupted"] if interrupted else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    said = "interrupted\n" if interrupted else ""
    assert (done.stdout, done.stderr) == (said + "nothing early 3\n", "")


# -- Ctrl-C ----------------------------------------------------------------------------------------

INTERRUPTED = """
import gc, json, os, random, resource, signal, sys, threading, time
from llama_py import Llama
from llama_py.core.model import Model

path, tries, options = sys.argv[1], int(sys.argv[2]), {"n_ctx": 256, "n_threads": 1}

def rss():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

def load():
    Llama(path, use_mmap=False, **options).close()

load()
start, spent = time.perf_counter(), time.process_time()
load()
usual, cost = time.perf_counter() - start, time.process_time() - spent
before, random_ = rss(), random.Random(5)
results, late = {"interrupted": 0, "lost": 0}, []

class Sender(threading.Thread):
    def run(self):
        time.sleep(random_.uniform(0.02, 0.75) * usual)
        self.sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)

for _ in range(tries):
    sender = Sender()
    sender.start()
    try:
        load()
        sender.join()
        time.sleep(1)
        results["lost"] += 1
    except KeyboardInterrupt:
        results["interrupted"] += 1
        late.append(time.process_time() - sender.sent)
    sender.join()
load()
late.sort()
print(json.dumps({**results, "usual": cost, "median": late[len(late) // 2], "worst": late[-1],
                  "grown": rss() - before, "threads": threading.active_count()}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of about 150 MB, which takes a while to load."""
    sizes = {"n_embd": 1024, "n_ff": 2048, "n_head": 8, "n_layer": 4}
    return tiny_model("full", cache_dir=tmp_path_factory.mktemp("large"), **sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="sends signals, and reads /proc")
def test_every_ctrl_c_stops_a_load(large: Path) -> None:
    """At any moment of it; nothing is printed, nothing stays behind, and the next one works."""
    assert large.stat().st_size > 100e6
    code = [sys.executable, "-c", INTERRUPTED, str(large), "12"]
    done = subprocess.run(
        code, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["interrupted"], found["lost"]) == (12, 0), found
    # Of the processor's time, which other programs do not take.
    assert found["median"] < 0.5 * found["usual"] + 0.05, found
    assert found["grown"] < 60, found  # a load that was not freed is 100 MB and more
    assert found["threads"] == 1


SLOW = """
import gc, logging, os, signal, sys, threading, time
from llama_py import Llama

path, then = sys.argv[1:]
waits, disk_is_there = threading.Event(), threading.Event()

def disk(record):
    \"\"\"Makes the load wait before its first tensor, as a cold file does.\"\"\"
    if "load_tensors" in record.getMessage():
        logger.removeFilter(disk)
        waits.set()
        disk_is_there.wait()
    return True

def interrupt():
    waits.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

logger = logging.getLogger("llama_py")
logger.setLevel("DEBUG")
logger.addFilter(disk)
interrupting = threading.Thread(target=interrupt)
interrupting.start()
try:
    Llama(path, n_ctx=256, n_threads=1)
    sys.exit("no interrupt")
except KeyboardInterrupt:  # it was not waited for, as it still waits
    interrupting.join()
    if then == "leave":
        sys.exit()
assert threading.active_count() == 2
disk_is_there.set()
while threading.active_count() > 1:
    time.sleep(0.01)
gc.collect()
assert path not in open("/proc/self/maps").read(), "the weights are still there"
Llama(path, n_ctx=256, n_threads=1).close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sends signals, and reads /proc")
@pytest.mark.parametrize("then", ["stay", "leave"])
def test_a_load_that_cannot_be_stopped_is_not_waited_for(then: str) -> None:
    """It ends by itself and frees what it has, and does not keep the process alive."""
    command = [sys.executable, "-c", SLOW, str(tiny_model("full")), then]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


AT_THE_ENTRY = """
import sys, threading
from llama_py._native import ggml_h
from llama_py.core import logs

logs.install()

def strike(frame, event, arg):
    if frame.f_code is logs._receive.__code__:
        sys.settrace(None)
        raise KeyboardInterrupt

callback = ggml_h.ggml_log_callback(logs._receive)
sys.settrace(strike)
try:
    callback(2, b"a line\\n", None)
    for _ in range(10000):
        threading.Event().wait(0.01)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_at_the_entry_of_the_log_is_raised_afterwards() -> None:
    """A signal's handler may run before the first line of a callback, where nothing is caught."""
    command = [sys.executable, "-c", AT_THE_ENTRY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_an_interrupt_in_the_log_is_raised_afterwards() -> None:
    """A signal's handler may run inside a callback of C, out of which no exception gets."""

    class Interrupting(logging.Handler):
        def emit(self, record: Any) -> None:
            raise KeyboardInterrupt

    handler, level = Interrupting(), logs.LOGGER.level
    logs.LOGGER.addHandler(handler)
    logs.LOGGER.setLevel("DEBUG")
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes at any of these lines
            logs._receive(2, b"a line\n", None)
            logs.LOGGER.removeHandler(handler)
            for _ in range(200):
                threading.Event().wait(0.01)
    finally:
        logs.LOGGER.removeHandler(handler)
        logs.LOGGER.setLevel(level)
