"""A cluster on Ray Serve, really run: official clients, keys, a killed replica, scaling."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from benchmarks import cluster as bench
from llama_py.bench.report import Report
from tests.patience import PATIENCE

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

HEADER = "x-llama-py-replica"
LONG = "Tell me about bread, tea and apples. " * 12
KEYS = {"alice": "alice-" + "a" * 20, "bob": "bob-" + "b" * 20}


def options(**given: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    small = {"n_ctx": 8192, "n_seq_max": 8, "characters": 6000, "chats": 40, "seconds": 20.0}
    return argparse.Namespace(**{**vars(parser.parse_args([])), **small, **given})


@pytest.fixture(scope="module")
def running() -> Iterator[bench.Running]:
    scopes = {"alice": ["chat", "admin"], "bob": ["chat"]}
    keys = [{"name": n, "key": key, "scopes": scopes[n]} for n, key in KEYS.items()]
    with bench.cluster(options(), store=True, server={"api_key": keys}) as running:
        yield running


def url(running: bench.Running) -> str:
    return f"http://{running.endpoint.address}"


def http(running: bench.Running, name: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {KEYS[name]}"}
    return httpx.Client(base_url=url(running), headers=headers, timeout=PATIENCE)


def of_openai(running: bench.Running, name: str = "alice") -> Any:
    return openai.OpenAI(
        base_url=f"{url(running)}/v1", api_key=KEYS[name], max_retries=0, timeout=PATIENCE
    )


def of_anthropic(running: bench.Running, name: str = "alice") -> Any:
    return anthropic.Anthropic(
        base_url=url(running), api_key=KEYS[name], max_retries=0, timeout=PATIENCE
    )


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def counted(running: bench.Running, *words: str) -> float:
    """The sum of what the replicas count in the lines that have all these words."""
    with http(running, "alice") as client:
        lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line[0] != "#" and all(word in line for word in words)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def at_work(running: bench.Running) -> float:
    """Requests that engines work on, of all replicas."""
    return counted(running, "llamacpp:requests_processing{")


def given_up(running: bench.Running) -> float:
    """Requests that ended because their client left."""
    return counted(running, "llama_py_request_success_total{", 'finished_reason="abort"')


def ask(client: httpx.Client, session: str, *texts: str) -> httpx.Response:
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"messages": messages, "session_id": session, "temperature": 0, "max_tokens": 8}
    return client.post("/v1/chat/completions", json=body)


def cached(response: httpx.Response) -> int:
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_openais_client_streams_and_cancels(running: bench.Running) -> None:
    with of_openai(running) as client:
        question = [{"role": "user", "content": "What is 2 + 3?"}]
        create = client.chat.completions.create
        stream = create(model="demo", messages=question, temperature=0, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "2 + 3 = 5."
        endless = create(
            model="demo",
            messages=question,
            max_tokens=6000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(endless))
        wait_until(lambda: at_work(running) == 1)
        endless.close()
        wait_until(lambda: at_work(running) == 0)


def test_openais_responses_go_on(running: bench.Running) -> None:
    with of_openai(running) as client:
        first = client.responses.create(model="demo", input=LONG)
        events = client.responses.create(
            model="demo", input="And?", previous_response_id=first.id, stream=True
        )
        last = [*events][-1]
        assert last.type == "response.completed"
        assert last.response.usage.input_tokens_details.cached_tokens > 100


def test_anthropics_client_streams_and_cancels(running: bench.Running) -> None:
    question: Any = [{"role": "user", "content": "What is 2 + 3?"}]
    messages = of_anthropic(running).messages
    greedy = {"temperature": 0}
    with messages.stream(
        model="demo", max_tokens=20, messages=question, extra_body=greedy
    ) as stream:
        assert "".join(stream.text_stream) == "2 + 3 = 5."
    before = given_up(running)
    long: Any = [{"role": "user", "content": "Tell me about bread. " * 600}]
    impatient = of_anthropic(running).with_options(timeout=0.3)
    with pytest.raises(anthropic.APITimeoutError):
        [*impatient.messages.create(model="demo", max_tokens=20, messages=long, stream=True)]
    wait_until(lambda: given_up(running) == before + 1)
    assert at_work(running) == 0


def test_llama_servers_paths_are_there(running: bench.Running) -> None:
    with http(running, "bob") as client:
        prompt = {"prompt": "2 + 3 =", "n_predict": 4, "stream": True}
        with client.stream("POST", "/completion", json=prompt) as reply:
            assert sum(line.startswith("data: ") for line in reply.iter_lines()) > 2
        assert client.get("/v1/models").json()["data"][0]["id"] == "demo-chat-q8_0"
        assert client.get("/metrics").status_code == 403


def test_a_key_finds_nothing_of_another_one_on_any_replica(running: bench.Running) -> None:
    with http(running, "alice") as alice, http(running, "bob") as bob:
        mine: list[httpx.Response] = []
        # What a replica said seconds ago may keep the first ones from it.
        while len({each.headers[HEADER] for each in mine}) < 3:
            assert len(mine) < 100
            mine.append(ask(alice, f"{len(mine)}", f"{len(mine)} {LONG}"))
            time.sleep(0.1)
        for number in range(len(mine)):
            again = ask(alice, f"{number}", f"{number} {LONG}", "And more?")
            assert again.headers[HEADER] == mine[number].headers[HEADER]
            assert cached(again) > 100
            assert cached(ask(bob, f"b{number}", f"{number} {LONG}")) < 10
            assert bob.get(f"/v1/sessions/{number}").status_code == 404
        with httpx.Client(base_url=url(running), timeout=PATIENCE) as nobody:
            assert ask(nobody, "s", LONG).status_code == 401


def test_a_session_outlives_its_replica(running: bench.Running) -> None:
    """The last one of this module: a replica is missing for a while."""
    with http(running, "alice") as client:
        first = ask(client, "outlives", f"outlives {LONG}")
        client.post("/v1/sessions/outlives/save").raise_for_status()
        for process in running.replicas()[:2]:
            os.kill(process, signal.SIGKILL)
        again = ask(client, "outlives", f"outlives {LONG}", "And more?")
        assert again.status_code == 200
        assert cached(again) > 100, (first.headers, again.headers)
        wait_until(lambda: len(running.replicas()) == 3)


# -- under load ------------------------------------------------------------------------------------


def checked(report: Report) -> dict[str, float]:
    assert not report.failures, report.as_text()
    return {target.name: target.value for target in report.targets}


def test_sessions_keep_their_replicas_and_little_is_evaluated_twice() -> None:
    figures = checked(bench.run(options(parts="one,prefix")))
    assert figures["sessions that kept their replica"] >= 0.95
    assert figures["evaluated / one server"] <= 1.1


def test_a_killed_replica_loses_no_conversation() -> None:
    checked(bench.run(options(parts="kill")))


def test_replicas_come_and_go_and_no_request_is_lost() -> None:
    figures = checked(bench.run(options(parts="scale")))
    assert figures["replicas under load"] == 3
    assert figures["replicas afterwards"] == 1
