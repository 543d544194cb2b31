"""``llama-py serve`` as a process: how it starts, listens and stops."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from llama_py.cli import main
from llama_py.server.config.settings import Settings
from llama_py.server.pool.pool import ModelPool
from llama_py.server.serve import serve
from llama_py.server.transport.sockets import listen
from tests.embeddings.models import encoder
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("LLAMA_PY_")},
    "PYTHONPATH": str(ROOT),
    "OMP_THREAD_LIMIT": "1",
    "GGML_NO_BACKTRACE": "1",
}
SLOWLY = "tests.server.slowly"
CHATS = "/v1/chat/completions"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and Unix sockets")


class Process:
    """A server in a process of its own.

    Args:
        program: the module that is run; one of the tests' own takes longer for each step.
    """

    def __init__(self, *arguments: str, program: str = "llama_py", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**ENVIRONMENT, **environment},
        )
        self.address = ""

    def until_ready(self) -> None:
        """Wait until it says where it is."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"^llama-py serves \S+ at (\S.*)$", line)
        assert found, line + self.process.communicate()[1]
        self.address = found[1]

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, standard output and error."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def stop(self) -> None:
        """Tell it to stop."""
        self.process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def running(*arguments: str, program: str = "llama_py", **environment: str) -> Iterator[Process]:
    """A server that is ready; it is gone after the block."""
    server = Process(*arguments, program=program, **environment)
    try:
        server.until_ready()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def body(**options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Count."}]
    return {"messages": messages, "temperature": 0, "ignore_eos": True, **options}


class Stream:
    """A stream that a thread reads to its end."""

    def __init__(self, address: str, **options: Any) -> None:
        self.events: list[str] = []
        self.begun = threading.Event()
        self.broken = False
        self._address = address
        self._body = body(stream=True, stream_options={"include_usage": True}, **options)

    def read(self) -> None:
        try:
            with httpx.stream(
                "POST", self._address + CHATS, json=self._body, timeout=PATIENCE
            ) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                    if len(self.events) > 2:  # a token
                        self.begun.set()
        except httpx.TransportError:
            self.broken = True

    @property
    def finish(self) -> str | None:
        """The reason in the chunk that has one."""
        choices = [json.loads(each).get("choices") for each in self.events if each[0] == "{"]
        return next((each[0]["finish_reason"] for each in choices[::-1] if each), None)

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended it."""
        found: dict[str, Any] = next(
            json.loads(each)["error"] for each in self.events if each.startswith('{"error"')
        )
        return found


def stream_while(streams: list[Stream], act: Callable[[], None]) -> None:
    """Read the streams, and do something as soon as all of them have begun."""
    with ThreadPoolExecutor(len(streams)) as pool:
        reads = [pool.submit(stream.read) for stream in streams]
        for stream in streams:
            assert stream.begun.wait(PATIENCE)
        act()
        for read in reads:
            read.result()


# ---- stopping ----------------------------------------------------------------------------------


def test_sigterm_lets_live_streams_end_and_nobody_in() -> None:
    with running(program=SLOWLY) as server:
        streams = [Stream(server.address, max_tokens=300, seed=n) for n in range(8)]

        def act() -> None:
            server.stop()
            with httpx.Client(base_url=server.address) as http:
                end = time.monotonic() + PATIENCE
                while http.get("/readyz").status_code != 503 and time.monotonic() < end:
                    pass
                refused = http.post(CHATS, json=body(max_tokens=1))
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "5"
                assert refused.json()["error"]["type"] == "unavailable_error"
                other = http.post("/v1/messages", json=body(max_tokens=1))
                assert (other.status_code, other.json()["error"]["type"]) == (
                    529,
                    "overloaded_error",
                )
                assert http.get("/health").status_code == 200

        stream_while(streams, act)
        for stream in streams:
            assert stream.finish == "length"
            assert json.loads(stream.events[-2])["usage"]["completion_tokens"] == 300
            assert stream.events[-1] == "[DONE]"
        code, _, err = server.end()
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert any(line["message"].startswith("stopping: 8 requests") for line in lines)
    assert [line["status"] for line in lines if line.get("route") == CHATS].count(200) == 8


def test_streams_that_take_too_long_are_told_so() -> None:
    with running("--drain-seconds", "0.1", "-c", "16384", program=SLOWLY) as server:
        streams = [Stream(server.address, max_tokens=8000) for _ in range(2)]
        stream_while(streams, server.stop)
        for stream in streams:
            assert stream.finish == "error"
            assert stream.error["code"] == "unavailable"
            assert stream.error["message"] == "the server stopped before this reply was complete"
            assert stream.events[-1] == "[DONE]"
        assert server.end()[0] == 0


LONG = "the old king runs to the river " * 60


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/embeddings", {"input": [LONG] * 2000}),
        ("/embeddings", {"content": [LONG] * 2000}),
        ("/v1/rerank", {"query": "a cat", "documents": [LONG] * 2000}),
    ],
)
def test_embeddings_that_take_too_long_are_told_so(path: str, asked: dict[str, Any]) -> None:
    model = encoder(architecture="bert", head=1, n_positions=512)
    with running(str(model), "--drain-seconds", "0.1") as server, ThreadPoolExecutor() as threads:
        call = threads.submit(httpx.post, server.address + path, json=asked, timeout=PATIENCE)
        with httpx.Client(base_url=server.address, timeout=PATIENCE) as http:
            while "llama_py_http_requests_in_flight 2.0" not in http.get("/metrics").text:
                assert not call.done()  # it is computed for half a minute
        server.stop()
        answer = call.result()
        code, _, err = server.end()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["type"] == "unavailable_error"
    assert (code, "Traceback" in err) == (0, False)


def test_a_second_signal_ends_it_at_once() -> None:
    with running("-c", "16384", program=SLOWLY) as server:
        stream = Stream(server.address, max_tokens=16000)

        def act() -> None:
            server.stop()
            while httpx.get(server.address + "/readyz").status_code != 503:
                pass
            server.process.send_signal(signal.SIGINT)

        stream_while([stream], act)
        assert stream.broken
        code, _, err = server.end()
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in err


SLOW_LOADING = """
import asyncio, sys
from llama_py.cli import main
from llama_py.server.pool.pool import ModelPool
ModelPool.start = lambda self: asyncio.sleep(60)
sys.exit(main(sys.argv[1:]))
"""


def test_while_it_loads_it_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_LOADING, "serve", "--host", f"unix:{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        end = time.monotonic() + PATIENCE
        while not path.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://any", transport=transport, timeout=PATIENCE) as http:
            assert http.get("/livez").status_code == 200
            assert http.get("/readyz").status_code == http.get("/health").status_code == 503
            refused = http.post(CHATS, json=body())
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert refused.json()["error"]["message"] == "Loading model"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


# ---- starting ----------------------------------------------------------------------------------


def failed(*arguments: str) -> str:
    """The one sentence of a server that cannot start."""
    code, out, err = Process(*arguments).end()
    assert (code, out) == (2, "")
    sentence = err.splitlines()[-1]
    assert sentence.startswith("llama-py: "), err
    assert "Traceback" not in err
    return sentence


def test_a_model_that_is_missing_or_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.gguf"
    assert main(["serve", str(missing)]) == 2
    expected = f"llama-py: there is no model file at {missing} (for 'none')\n"
    assert capsys.readouterr() == ("", expected)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03" + bytes(40))
    assert str(damaged) in failed(str(damaged))


def test_a_start_that_fails_in_a_way_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_pool: ModelPool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ModelPool, "start", broken)
    with ThreadPoolExecutor() as threads, pytest.raises(ZeroDivisionError):
        threads.submit(serve, Settings(port=0)).result(PATIENCE)


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        shown = failed("--port", str(port))
        assert f"at 127.0.0.1, port {port}: another program listens there; choose" in shown


def test_a_public_address_without_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "there is no API key" in capsys.readouterr().err
    options = ("--host", "0.0.0.0", "--root-path", "/llm/")
    with running(*options, LLAMA_PY_API_KEY="secret") as server:
        url = f"http://127.0.0.1:{server.address.rpartition(':')[2]}"
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = {"x-api-key": "secret"}
        assert httpx.get(f"{url}/v1/models", headers=key).status_code == 200
        missing = httpx.get(f"{url}/v1/messages/x", headers=key).json()  # what the proxy sends
        assert missing["error"]["type"] == "not_found_error"
        assert httpx.get(f"{url}/health").status_code == 200


def test_tls_and_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    with running("--tls-cert", str(tmp_path / "server.pem")) as server:
        assert server.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with httpx.Client(base_url=server.address, verify=context) as http:
            assert http.get("/health").json() == {"status": "ok"}
            answer = http.post(CHATS, json=body(max_tokens=2))
            assert answer.json()["usage"]["completion_tokens"] == 2
            server.process.send_signal(signal.SIGINT)
            code, out, err = server.end()
    assert (code, out) == (0, "")
    assert "Traceback" not in err
    (tmp_path / "no.pem").write_text("nothing")
    assert main(["serve", "--tls-cert", str(tmp_path / "no.pem")]) == 2
    assert "are not a certificate and its key" in capsys.readouterr().err


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    settings = Settings(host=f"unix:{path}")
    with running("--host", settings.host) as server:
        assert server.address == settings.host
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://anything", transport=transport) as http:
            assert http.get("/v1/models").status_code == 200
        with pytest.raises(OSError, match="another server listens there"), listen(settings):
            pass
        server.stop()
        assert server.end()[0] == 0
    assert not path.exists()


@pytest.fixture
def ipv6() -> None:
    """Skip where this machine has no IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.usefixtures("ipv6")
def test_several_addresses(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    with running("--host", f"127.0.0.1,::1,{path}") as server:
        first, second, third = server.address.split(", ")
        port = first.rpartition(":")[2]
        assert (second, third) == (f"http://[::1]:{port}", f"unix:{path}")
        for url in (first, second):
            answer = httpx.post(f"{url}{CHATS}", json=body(max_tokens=2))
            assert answer.json()["usage"]["completion_tokens"] == 2
        with httpx.Client(transport=httpx.HTTPTransport(uds=third[len("unix:") :])) as http:
            assert http.get("http://localhost/v1/models").status_code == 200
        server.stop()
        assert server.end()[0] == 0
    assert not path.exists()


def test_a_second_port_for_ollamas_clients() -> None:
    with running("--ollama-port", "0", "--host", "127.0.0.1,::1") as server:
        found = [each.rpartition(":") for each in server.address.split(", ")]
        assert [host for host, _, _ in found] == ["http://127.0.0.1", "http://[::1]"] * 2
        own, same, other, again = (port for _, _, port in found)
        assert own == same != other == again
        for port in (own, other):
            answer = httpx.get(f"http://127.0.0.1:{port}/api/version")
            assert answer.status_code == 200


def test_one_of_several_addresses_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        host = f"unix:{path},127.0.0.1"
        assert f"cannot listen at 127.0.0.1, port {port}: " in failed(
            "--port", str(port), "--host", host
        )
    assert not path.exists()


@pytest.mark.usefixtures("ipv6")
def test_an_ipv6_address_of_all_takes_ipv4_if_it_is_alone() -> None:
    with listen(Settings(host="::", port=0)) as (listening,):
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), PATIENCE).close()
    with listen(Settings(host="::,127.0.0.1", port=0)) as (six, four):
        assert six.getsockname()[1] == four.getsockname()[1]


def test_a_file_in_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="not a socket"), listen(Settings(host=f"unix:{path}")):
        pass
    assert path.read_text() == "mine"


# ---- the command line --------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LLAMA_PY_")]:
        if name != "LLAMA_PY_LIB":
            monkeypatch.delenv(name)


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--check"]) == 0
    out = capsys.readouterr().out
    assert out == "the settings are right: demo-chat-q8_0 at 127.0.0.1, port 8080\n"
    config = tmp_path / "server.toml"
    config.write_text("[[model]]\npath = 'none.gguf'\n")
    assert main(["serve", "--check", "--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert err == f"llama-py: there is no model file at {tmp_path}/none.gguf (for 'none')\n"
    config.write_text("prot = 1")
    assert main(["serve", "--check", "--config", str(config)]) == 2
    assert "there is no setting 'prot'; did you mean 'port'?" in capsys.readouterr().err
    assert main(["serve", "--check", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
    assert main(["serve", "--check", "--host", "0.0.0.0"]) == 2
    assert "there is no API key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--speculative", "draft=NONE"], "speculative: there is no file at NONE (for 'demo-"),
        (["--lora", "NONE"], "lora_path: there is no LoRA adapter at NONE"),
        (["--tls-cert", "NONE"], "tls_cert: there is no file at NONE"),
        (["--tls-cert", "OTHER", "--tls-key", "NONE"], "tls_key: there is no file at NONE"),
    ],
)
def test_check_finds_files_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    (tmp_path / "other").touch()
    places = {"NONE": str(tmp_path / "none"), "OTHER": str(tmp_path / "other")}
    for name, path in places.items():
        arguments = [each.replace(name, path) for each in arguments]
        expected = expected.replace(name, path)
    assert main(["serve", "--check", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


def test_check_makes_directories(tmp_path: Path) -> None:
    assert main(["serve", "--check", "--session-dir", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b").is_dir()


def test_print_config_hides_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_PY_API_KEY", "env-secret")
    arguments = ["--host", "::1", "-c", "512", "--parallel", "2", "--no-metrics", "--strict"]
    assert main(["serve", "--print-config", "my.gguf", *arguments]) == 0
    out = capsys.readouterr().out
    assert "secret" not in out
    for line in (
        'host = "::1"  # --host',
        "metrics = false  # --metrics",
        "strict = true  # --strict",
        'path = "my.gguf"',
        "n_ctx = 512",
        "n_seq_max = 2",
        'key = "(hidden)"',
    ):
        assert line in out.splitlines(), line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "x"], "argument --port: port must be an integer"),
        (["--prot", "1"], "there is no option --prot; did you mean --port?"),
        (["-c", "-5"], "n_ctx=-5 is out of range"),
        (["a.gguf", "-m", "b.gguf"], "not allowed with argument MODEL"),
        (["--api-key", ""], "API key"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("missing", ["httptools", "starlette", "uvicorn", "prometheus_client"])
def test_what_is_not_installed_is_said_with_the_remedy(missing: str) -> None:
    """As in an environment where the package was installed without the extra."""
    code = f"import sys; sys.modules['{missing}'] = None\n"
    code += "from llama_py.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert done.stdout == ""
    wanted = f"the server needs the package {missing}: pip install 'llama-py[server]'\n"
    assert done.stderr.endswith(wanted)
    assert done.stderr.count("\n") == 1


def test_help_is_in_groups_and_loads_nothing() -> None:
    code = "import sys; from llama_py.cli import main; main(['serve', '--help'])\n"
    code += "print(any('starlette' in n or '_native' in n for n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    assert done.stdout.endswith("False\n")
    for group in ("model:", "listening:", "access:", "limits:", "times:", "watching:"):
        assert f"\n{group}\n" in done.stdout
