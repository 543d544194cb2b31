"""Devices behind an RPC server, which is well, or frozen, or gone, or none.

Each server is ``llama-py rpc-server`` on this machine. What fails must be an error of ours, in a
process that goes on: llama.cpp's own way is to end it.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, demo_model_path, rpc
from llama_py.core import backend
from llama_py.core.device_memory import free_by_device, memory_by_device
from llama_py.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    NotEnoughMemoryError,
    ParameterError,
)
from llama_py.params import ModelParams
from tests.models import tiny_model
from tests.rpc.proxies import through
from tests.rpc.servers import Server, answering, hello, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION: list[Any] = [{"role": "user", "content": "Count to 9."}]
#: Seconds of silence after which a server is lost, in these tests.
PATIENCE = 1.5


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    rpc.set_patience(PATIENCE)
    yield
    rpc.set_patience(30.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--memory", "1GiB") as started:
        yield started


def load(*servers: str, **options: Any) -> Llama:
    given = {"n_ctx": 1024, "n_seq_max": 2, "n_threads": 1, **options}
    return Llama(demo_model_path(), rpc_servers=servers or None, **given)


def on_cpu() -> Llama:
    return load(devices=[])


def reply(llm: Llama) -> tuple[str, Any]:
    """Greedy, with the logits at its end."""
    given = llm.create_chat_completion(QUESTION, max_tokens=30, temperature=0.0)
    return str(given["choices"][0]["message"]["content"]), llm.last_logits.copy()


def long_stream(llm: Llama) -> Any:
    """A reply that has begun, and has far to go."""
    stream = llm.create_completion("Once upon", max_tokens=900, ignore_eos=True, stream=True)
    next(stream)
    return stream


# -- it works --------------------------------------------------------------------------------------


def test_the_reply_is_that_of_this_machine(server: Server) -> None:
    with load(server.endpoint) as llm, on_cpu() as here:
        (device, *_) = memory_by_device(llm.runtime.loaded.context)
        assert device.device.startswith("RPC")
        assert device.weights > 0.8 * llm.runtime.loaded.model.size_bytes
        (text, row), (expected, other) = reply(llm), reply(here)
    assert text == expected
    assert "9" in text
    assert (row == other).all()


def test_a_server_for_all_models(server: Server) -> None:
    """Added once, it is there for models that say nothing; in a process of its own."""
    script = (
        "import sys, llama_py\n"
        "from llama_py import Llama, demo_model_path\n"
        "print(llama_py.rpc.add_server(sys.argv[1]).devices)\n"
        "with Llama(demo_model_path(), n_ctx=256) as llm: print(llm.runtime.loaded.model.devices)\n"
        "with Llama(demo_model_path(), n_ctx=256, n_gpu_layers=0) as llm:\n"
        "    print(llm.runtime.loaded.model.watch)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.endpoint], capture_output=True, text=True, check=True
    )
    added, used, none = done.stdout.split("\n")[:3]
    assert added == "('RPC0',)"
    assert "RPC0" in used
    assert none == "None"


def test_two_clients_at_once_and_two_servers_for_one_model(server: Server) -> None:
    with running() as second, on_cpu() as here:
        expected = reply(here)[0]
        with load(server.endpoint) as one, load(server.endpoint, second.endpoint) as both:
            devices = [each.device for each in memory_by_device(both.runtime.loaded.context)]
            assert sum(name.startswith("RPC") for name in devices) == 2
            streams = [long_stream(one), long_stream(both)]
            for stream in streams:
                stream.close()
            assert reply(one)[0] == reply(both)[0] == expected


def test_conversations_leave_the_device_and_come_back(server: Server) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 6
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}
    with load(server.endpoint, n_seq_max=1) as llm:
        text = llm.create_completion(prompt, **options)["choices"][0]["text"]
        llm.create_completion("Something else altogether. " * 8, max_tokens=1)
        assert llm.create_completion(prompt, **options)["choices"][0]["text"] == text
        assert llm.runtime.last.record.cache["action"] in ("load", "restore")


def test_what_is_dear_to_fetch_is_evaluated(server: Server) -> None:
    """Costs are learned from what is done; and what they decide changes no reply."""
    prompt = "The quick brown fox jumps over the lazy dog. " * 6
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
    with load(server.endpoint, n_seq_max=1) as llm:
        for _ in range(2):
            llm.create_completion(prompt, **options)
            row = llm.last_logits.copy()
            llm.create_completion("Something else altogether. " * 8, **options)
        costs = llm.runtime.loaded.cache.costs
        assert costs is not None
        known = costs.margin(1000)
        for _ in range(50):
            costs.fetched(100, 1000.0)  # a network that is very slow
        assert costs.margin(1000) > known
        llm.create_completion(prompt, **options)
        cache = llm.runtime.last.record.cache
        assert cache["action"] == "evaluate"
        assert "less time" in cache["reason"]
        assert abs(llm.last_logits - row).max() < 1e-3


# -- memory ----------------------------------------------------------------------------------------


def test_a_second_model_sees_what_the_first_one_holds(server: Server) -> None:
    """In this process, and in another one."""
    params = ModelParams(rpc_servers=(server.endpoint,))
    (name,) = (each for each in free_by_device(params) if each.startswith("RPC"))
    before = free_by_device(params)[name]
    assert before == 1 << 30
    with load(server.endpoint, n_ctx=8192) as llm:
        held = memory_by_device(llm.runtime.loaded.context)[0].total
        assert before - free_by_device(params)[name] == pytest.approx(held, rel=0.05)
        script = (
            "import sys; from llama_py import rpc; from llama_py.core import backend\n"
            "rpc.add_server(sys.argv[1]); print(backend.devices()[0]['free_bytes'])"
        )
        command = [sys.executable, "-c", script, server.endpoint]
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        assert before - int(other.stdout) == pytest.approx(held, rel=0.05)
    deadline = time.monotonic() + 30
    while free_by_device(params)[name] != before and time.monotonic() < deadline:
        time.sleep(0.05)  # the server frees what the client had when that has gone
    assert free_by_device(params)[name] == before


def test_a_client_that_is_killed_leaves_nothing_behind() -> None:
    script = (
        "import sys; from llama_py import Llama, demo_model_path\n"
        "with Llama(demo_model_path(), n_ctx=1024, rpc_servers=[sys.argv[1]]) as llm:\n"
        "    for _ in llm.create_completion('a', max_tokens=900, ignore_eos=True, stream=True):\n"
        "        print('token', flush=True)\n"
    )
    with running("--memory", "1GiB") as server, on_cpu() as here:
        command = [sys.executable, "-c", script, server.endpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline()
            client.kill()
        params = ModelParams(rpc_servers=(server.endpoint,))
        deadline = time.monotonic() + 60
        while max(free_by_device(params).values()) != 1 << 30 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert max(free_by_device(params).values()) == 1 << 30
        with load(server.endpoint) as llm:
            assert reply(llm)[0] == reply(here)[0]


def test_what_does_not_fit_is_refused_or_stays_here() -> None:
    with running("--memory", "8MiB") as small:
        with pytest.raises(NotEnoughMemoryError, match=r"RPC\d+.*n_ctx"):
            load(small.endpoint, n_ctx=65536, n_gpu_layers=99)
        with load(small.endpoint, n_ctx=65536) as llm, on_cpu() as here:
            assert reply(llm)[0] == reply(here)[0]


# -- other things than servers ---------------------------------------------------------------------


def closes(connection: socket.socket) -> None:
    connection.recv(64)


def chatters(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 4096)


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(64):
        pass


def is_of_another_version(connection: socket.socket) -> None:
    hello(connection, (7, 0, 0))


def has_no_devices(connection: socket.socket) -> None:
    hello(connection)
    connection.recv(64)
    connection.sendall(bytes([4, *[0] * 7]) + b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        (closes, "closed the connection"),
        (chatters, "no RPC server"),
        (says_nothing, "does not answer"),
        (is_of_another_version, r"speaks version 7\.0\.0 .* installation 8\.\d"),
        (has_no_devices, "4294967295 devices"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_is_asked_before_anything_is_sent(
    handle: Callable[[socket.socket], None], words: str
) -> None:
    with answering(handle) as endpoint:
        begun = time.thread_time(), time.monotonic()
        with pytest.raises(DeviceUnavailableError, match=words):
            rpc.add_server(endpoint, timeout=0.5)
        with pytest.raises(DeviceUnavailableError, match=words):
            load(endpoint)
        assert time.thread_time() - begun[0] < 2


def test_nobody_is_there() -> None:
    with pytest.raises(DeviceUnavailableError, match="there is no RPC server at 127"):
        rpc.add_server("127.0.0.1:1")
    with pytest.raises(DeviceUnavailableError, match="no IPv4 address"):
        rpc.add_server("nobody.invalid:50052")


@pytest.mark.parametrize("endpoint", ["", ":50052", "host:", "host:0", "host:70000", "http://a:1"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ParameterError, match="expected host:port"):
        rpc.add_server(endpoint)


def test_only_those_who_are_allowed_are_served() -> None:
    with running("--allow", "192.0.2.0/24") as closed, running("--allow", "127.0.0.0/8") as opened:
        with pytest.raises(DeviceUnavailableError, match=r"closed the connection|reset"):
            rpc.add_server(closed.endpoint, share=False)
        assert rpc.add_server(opened.endpoint, share=False).answers_others


# -- what becomes of a model -----------------------------------------------------------------------


def lost(llm: Llama, stream: Any) -> None:
    """The reply ends with an error, the next one begins with it, and nothing hangs."""
    begun = time.monotonic()
    with pytest.raises(DeviceLostError, match=r"127\.0\.0\.1:\d+ is lost"):
        for _ in stream:
            pass
    print(f"\nlost after {time.monotonic() - begun:.1f} s")
    with pytest.raises(DeviceLostError):
        llm.create_completion("Again", max_tokens=1)
    llm.close()
    with on_cpu() as here:
        assert "9" in reply(here)[0]


def test_killed_while_it_computes() -> None:
    with running() as doomed:
        llm = load(doomed.endpoint)
        stream = long_stream(llm)
        doomed.process.kill()
        lost(llm, stream)
        endpoint = doomed.endpoint
    again = Server(port=int(endpoint.partition(":")[2]))
    try:  # one that is started again at the same place serves the next model
        with load(endpoint) as llm, on_cpu() as here:
            assert reply(llm)[0] == reply(here)[0]
    finally:
        again.close()


def test_frozen_while_it_computes() -> None:
    with running() as frozen:
        llm = load(frozen.endpoint)
        stream = long_stream(llm)
        frozen.process.send_signal(signal.SIGSTOP)
        lost(llm, stream)


def test_killed_while_a_conversation_leaves() -> None:
    """Nothing of what came then is kept: it is zeros."""
    with running() as doomed, load(doomed.endpoint) as llm:
        reply(llm)
        doomed.process.kill()
        doomed.process.wait()
        with pytest.raises(DeviceLostError):
            llm.save_state()
        with pytest.raises(DeviceLostError):
            llm.runtime.loaded.context.state_get(0)


def test_gone_before_it_is_loaded() -> None:
    with running() as doomed:
        rpc.add_server(doomed.endpoint, share=False)
    with pytest.raises(DeviceUnavailableError, match="there is no RPC server"):
        load(doomed.endpoint)


def test_gone_between_the_check_and_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C meets then: nobody at all, at a place where it has never been."""
    with running() as doomed:
        found = rpc.add_server(doomed.endpoint, share=False)
    monkeypatch.setattr("llama_py.core.rpc.add_server", lambda *_, **__: found)
    with pytest.raises((DeviceUnavailableError, NotEnoughMemoryError)):
        load(doomed.endpoint, n_gpu_layers=99)


def test_slow_is_not_lost(server: Server) -> None:
    """A server that answers others may compute for as long as it takes."""
    with through(server.endpoint) as proxy, on_cpu() as here, load(proxy.endpoint) as llm:
        proxy.pause = 4 * PATIENCE
        assert reply(llm)[0] == reply(here)[0]
        assert proxy.pause == 0


def test_one_that_cannot_be_asked_gets_ten_times_as_long(server: Server) -> None:
    rpc.set_patience(0.3)
    with through(server.endpoint) as proxy:
        proxy.alone = True
        llm = load(proxy.endpoint, n_gpu_layers=99)
        assert not rpc.servers() or proxy.endpoint not in {each.endpoint for each in rpc.servers()}
        proxy.pause = 1.0
        reply(llm)
        assert proxy.pause == 0
        stream = long_stream(llm)
        proxy.pause = 1000.0
        lost(llm, stream)


def test_garbage_in_the_middle(server: Server) -> None:
    with through(server.endpoint) as proxy:
        llm = load(proxy.endpoint)
        stream = long_stream(llm)
        proxy.garbage = True
        lost(llm, stream)


def test_a_model_of_this_machine_does_not_notice() -> None:
    """Neither that another one is lost, nor that a server is added which is lost."""
    with running() as doomed, on_cpu() as here:
        llm = load(doomed.endpoint)
        stream = long_stream(llm)
        expected = reply(here)[0]
        doomed.process.kill()
        lost(llm, stream)
        assert reply(here)[0] == expected


# -- where the parts go ----------------------------------------------------------------------------


def test_devices_are_chosen_by_name(server: Server) -> None:
    (name,) = rpc.add_server(server.endpoint, share=False).devices
    with load(devices=[name]) as llm:
        assert llm.runtime.loaded.model.devices == (name,)
    with pytest.raises(ParameterError, match=r"there is no device 'GPU7'; available: .*CPU"):
        load(devices=["GPU7"])
    with load(devices=[]) as llm:
        assert llm.runtime.loaded.model.devices == ()


def test_tensors_go_where_they_are_sent(server: Server) -> None:
    (name,) = rpc.add_server(server.endpoint, share=False).devices
    options: dict[str, Any] = {"devices": [name], "n_ctx": 512}
    whole, part = (
        Llama(str(tiny_model("full")), override_tensors=overrides, **options)
        for overrides in (None, {r"ffn_.*": "CPU"})
    )
    with whole, part:
        weights = [
            memory_by_device(each.runtime.loaded.context)[0].weights for each in (whole, part)
        ]
        assert 0 < weights[1] < weights[0]
        rows = []
        for llm in (whole, part):
            llm.create_completion("The quick brown fox", max_tokens=1)
            rows.append(llm.last_logits.copy())
        assert abs(rows[0] - rows[1]).max() < 1e-4
    with pytest.raises(ParameterError, match=r"override_tensors: 'GPU7'.*CPU"):
        Llama(str(tiny_model("full")), override_tensors={"ffn": "GPU7"}, **options)
    with pytest.raises(ParameterError, match="not a regular expression"):
        Llama(str(tiny_model("full")), override_tensors={"ffn(": "CPU"}, **options)


def test_experts_stay_here(server: Server) -> None:
    """Of all layers, or of the first ones; the rest of the model goes to the device."""
    path, weights = str(tiny_model("moe")), {}
    rows = []
    for cpu_moe in (None, 2, True):
        options: dict[str, Any] = {"rpc_servers": [server.endpoint], "cpu_moe": cpu_moe}
        with Llama(path, n_ctx=512, n_threads=1, **options) as llm:
            found = {each.device: each for each in memory_by_device(llm.runtime.loaded.context)}
            llm.create_completion("The quick brown fox", max_tokens=1)
            rows.append(llm.last_logits.copy())
        (name,) = (each for each in found if each != "CPU")
        weights[cpu_moe] = found[name].weights
    assert weights[None] > weights[2] > weights[True] > 0
    assert weights[None] - weights[2] == pytest.approx(weights[2] - weights[True], rel=0.01)
    assert max(abs(row - rows[0]).max() for row in rows) < 1e-3
    with pytest.raises(ParameterError, match="cpu_moe is another name of n_cpu_moe"):
        Llama(path, n_ctx=512, cpu_moe=True, n_cpu_moe=1)


def test_layers_are_shared_as_tensor_split_says(server: Server) -> None:
    with running() as second:
        servers = [server.endpoint, second.endpoint]
        path = str(tiny_model("full", n_layer=8))
        with Llama(path, n_ctx=512, rpc_servers=servers, tensor_split=[3, 1]) as llm:
            one, other, *_ = memory_by_device(llm.runtime.loaded.context)
        # Of nine, the output matrix being the last one: 6.75 layers and 2.25.
        assert one.cells == 7 * other.cells


def test_the_command_line_says_the_same(server: Server) -> None:
    command = [sys.executable, "-m", "llama_py", "inspect", str(tiny_model("moe")), "--fit", "-c"]
    options = ["512", "--rpc", server.endpoint, "--override-tensor", "ffn_.*_exps=CPU"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    assert "RPC0" in rows
    assert "it fits" in done.stdout


def test_large_tensors_are_sent_once(tmp_path: Path) -> None:
    """The server keeps them, and is asked for them by their digests the next time."""
    path = str(tiny_model("full", n_embd=512, n_ff=6144, n_layer=1))  # three matrices of 12 MiB
    folder = tmp_path / "new" / "tensors"
    rows = []
    for _ in range(2):
        with (
            running("--cache", str(folder)) as server,
            Llama(path, n_ctx=256, rpc_servers=[server.endpoint]) as llm,
        ):
            llm.create_completion("The quick brown fox", max_tokens=1)
            rows.append(llm.last_logits.copy())
        kept = {each.name: each.stat().st_mtime_ns for each in folder.iterdir()}
        assert len(kept) == 3
        rows.append(kept)
    assert (rows[0] == rows[2]).all()
    assert rows[1] == rows[3], "nothing was written again"


def test_devices_lists_them(server: Server) -> None:
    command = [sys.executable, "-m", "llama_py", "devices", "--rpc"]
    done = subprocess.run(
        [*command, f"{server.endpoint},127.0.0.1:1"], capture_output=True, text=True, check=True
    )
    assert "RPC0" in done.stdout
    assert "there is no RPC server at 127.0.0.1:1" in done.stdout
    assert backend.devices()[-1]["kind"] == "cpu"
