"""All dialects at one address, with replicas of the bundled model behind it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from llama_py.dialects.routing_hints import hint_of
from llama_py.server.access.keys import SCOPES, ApiKey
from tests.cluster.local import Cluster, cluster
from tests.patience import PATIENCE, in_the_end
from tests.server.serving import demo_settings

HEADER = "x-llama-py-replica"


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


LONG = "Tell me about bread, tea and apples. " * 12


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def ask(client: httpx.Client, session: str, *texts: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"messages": messages, "session_id": session, "temperature": 0, "max_tokens": 8}
    return client.post("/v1/chat/completions", json={**body, **fields})


def cached(response: httpx.Response) -> int:
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


# -- dialects --------------------------------------------------------------------------------------


def test_openais_client_streams(running: Cluster) -> None:
    with running.openai() as client:
        question = [{"role": "user", "content": "What is 2 + 3?"}]
        stream = client.chat.completions.create(
            model="demo", messages=question, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "2 + 3 = 5."


def test_openais_responses_go_on_where_the_last_one_ended(running: Cluster) -> None:
    with running.openai() as client:
        first = client.responses.create(model="demo", input=LONG, temperature=0)
        raw = client.responses.with_raw_response
        replicas = set()
        for _ in range(3):
            response = raw.create(
                model="demo", input="And tea?", previous_response_id=first.id, temperature=0
            )
            replicas.add(response.headers[HEADER])
            assert response.parse().usage.input_tokens_details.cached_tokens > 100
        assert len(replicas) == 1
        assert client.responses.retrieve(first.id).output_text == first.output_text
        events = client.responses.create(model="demo", input="hi", stream=True)
        assert [event.type for event in events][-1] == "response.completed"


def test_anthropics_client_streams(running: Cluster) -> None:
    question: Any = [{"role": "user", "content": "What is 2 + 3?"}]
    with running.anthropic().messages.stream(
        model="demo", max_tokens=20, messages=question, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == "2 + 3 = 5."


def test_llama_servers_own_paths_are_there(running: Cluster) -> None:
    with running.http() as client:
        reply = client.post("/completion", json={"prompt": "2 + 3 =", "n_predict": 4})
        assert reply.json()["content"]
        assert client.post("/tokenize", json={"content": "hello"}).json()["tokens"]
        assert client.get("/props").json()["model_alias"] == "demo"
        assert client.get("/v1/models").json()["data"][0]["id"] == "demo"


def test_what_is_wrong_is_said_in_the_dialect_of_the_path(running: Cluster) -> None:
    with running.http() as client:
        wrong = client.post("/v1/messages", json={"messages": []})
        assert wrong.status_code == 400
        assert wrong.json()["type"] == "error"
        broken = client.post(
            "/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
        )
        assert broken.json()["error"]["code"] == "invalid_json"
        assert client.get("/nothing").status_code == 404
        assert ask(client, "", "hi").status_code == 400  # no name of a session


def test_a_client_that_leaves_ends_its_request(running: Cluster) -> None:
    with running.openai() as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        assert running.unfinished() == 1
        stream.close()
    wait_until(lambda: running.unfinished() == 0)
    before = running.given_up()
    long: Any = [{"role": "user", "content": "Tell me about bread. " * 220}]
    impatient = running.anthropic().with_options(timeout=0.02)
    with pytest.raises(anthropic.APITimeoutError):
        [*impatient.messages.create(model="demo", max_tokens=20, messages=long, stream=True)]
    wait_until(lambda: running.unfinished() == 0)
    assert running.given_up() >= before


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_stays_and_reuses_what_it_said(running: Cluster) -> None:
    with running.http() as client:
        names = [f"{number}" for number in range(6)]
        homes = {name: ask(client, name, f"{name} {LONG}").headers[HEADER] for name in names}
        assert len({*homes.values()}) >= 2
        for name in names[::-1]:
            again = ask(client, name, f"{name} {LONG}", "And more?")
            assert again.headers[HEADER] == homes[name]
            assert cached(again) > 100


def test_a_beginning_is_found_without_any_name(running: Cluster) -> None:
    with running.http() as client:
        body = {"messages": [{"role": "user", "content": f"nameless {LONG}"}], "max_tokens": 4}
        replies = [client.post("/v1/chat/completions", json=body) for _ in range(4)]
        assert len({reply.headers[HEADER] for reply in replies}) == 1
        assert cached(replies[-1]) > 100


def test_sessions_are_listed_and_deleted(running: Cluster) -> None:
    with running.http() as client:
        ask(client, "to/be deleted", LONG)
        assert client.get("/v1/sessions/to%2Fbe%20deleted").json()["id"] == "to/be deleted"
        gone = client.delete("/v1/sessions/to%2Fbe%20deleted")
        assert gone.json()["deleted"] is True
        assert client.get("/v1/sessions/to%2Fbe%20deleted").status_code == 404


# -- replicas that die -----------------------------------------------------------------------------


def test_a_reply_of_which_nothing_was_sent_comes_from_another_replica() -> None:
    with cluster() as running, running.http() as client:
        home = ask(client, "s", LONG).headers[HEADER]
        running.kill_after[home] = 1  # the head came
        whole = ask(client, "s", LONG, "And more?")
        assert whole.status_code == 200
        assert whole.headers[HEADER] != home
        running.kill_after[whole.headers[HEADER]] = 2  # the head, and the opening of the stream
        with ask_streaming(client, "s") as stream:
            frames = [*stream.iter_lines()]
        assert stream.headers[HEADER] not in (home, whole.headers[HEADER])
        assert frames[-2] == "data: [DONE]"
        assert sum('"role"' in frame for frame in frames) == 1
        assert len(running.replicas) == 1


def test_a_stream_that_breaks_off_ends_with_an_error_in_its_dialect() -> None:
    with cluster(count=2) as running, running.http() as client:
        home = ask(client, "s", LONG).headers[HEADER]
        running.kill_after[home] = 3
        with ask_streaming(client, "s", ignore_eos=True, max_tokens=500) as stream:
            frames = [line for line in stream.iter_lines() if line]
        assert frames[-1] == "data: [DONE]"
        assert json.loads(frames[-2][6:])["error"]["code"] == "replica_gone"
        again = ask(client, "s", LONG)
        assert again.status_code == 200
        assert again.headers[HEADER] != home


def test_openais_client_raises_where_a_stream_breaks_off() -> None:
    with cluster(count=1) as running, running.openai() as client:
        running.kill_after["replica-0"] = 3
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.APIError, match="gone"):
            for _ in stream:
                pass


def ask_streaming(client: httpx.Client, session: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": LONG}], "session_id": session}
    return client.stream(
        "POST", "/v1/chat/completions", json={**body, "stream": True, "temperature": 0, **fields}
    )


# -- keys ------------------------------------------------------------------------------------------

KEYS = (
    ApiKey("alice", "alice-" + "a" * 20),
    ApiKey("bob", "bob-" + "b" * 20),
    ApiKey("root", "root-" + "r" * 20, SCOPES, max_concurrent=1),
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("sessions")
    given = {"api_keys": KEYS, "session_dir": place}
    with cluster(demo_settings(given, n_ctx=8192, n_seq_max=4, n_threads=1)) as running:
        yield running


def test_a_key_is_needed(guarded: Cluster) -> None:
    with guarded.http() as client:
        assert ask(client, "s", "hi").status_code == 401
        assert client.get("/readyz").status_code == 200
    with guarded.http("wrong") as client:
        assert ask(client, "s", "hi").status_code == 401
    with guarded.http(KEYS[0].key) as client:
        assert client.get("/metrics").status_code == 403


def test_a_key_finds_nothing_of_another_one_on_any_replica(guarded: Cluster) -> None:
    with guarded.http(KEYS[0].key) as alice, guarded.http(KEYS[1].key) as bob:
        mine = [ask(alice, f"{number}", f"{number} {LONG}") for number in range(6)]
        assert len({each.headers[HEADER] for each in mine}) == 3
        assert cached(ask(alice, "0", f"0 {LONG}", "more")) > 100
        for number in range(6):
            # Not more than the beginning of the template, which bob's others have as well.
            assert cached(ask(bob, f"b{number}", f"{number} {LONG}")) < 10
            assert bob.get(f"/v1/sessions/{number}").status_code == 404
            assert bob.delete(f"/v1/sessions/{number}").status_code == 404
        listed = {each["id"] for each in bob.get("/v1/sessions").json()["data"]}
        assert listed == {f"b{number}" for number in range(6)}
        stored = alice.post("/v1/responses", json={"input": "hi"}).json()["id"]
        assert alice.get(f"/v1/responses/{stored}").status_code == 200
        assert bob.get(f"/v1/responses/{stored}").status_code == 404
        named = {"input": "and?", "previous_response_id": stored}
        unknown = bob.post("/v1/responses", json=named)
        never = bob.post("/v1/responses", json={**named, "previous_response_id": "resp_0"})
        assert unknown.status_code == never.status_code == 400
        assert unknown.json()["error"]["code"] == never.json()["error"]["code"]


def test_limits_of_a_key_hold_for_all_replicas_together(guarded: Cluster) -> None:
    root = KEYS[2].key
    body = {"messages": [{"role": "user", "content": "Count."}], "stream": True, "ignore_eos": True}
    path = "/v1/chat/completions"

    def attempt() -> None:  # on a busy machine the stream may be over when the other one asks
        with guarded.http(root) as one, guarded.http(root) as other:
            with one.stream("POST", path, json={**body, "max_tokens": 7000}) as reply:
                next(reply.iter_lines())
                assert ask(other, "s", "hi").status_code == 429
            wait_until(lambda: guarded.unfinished() == 0)
            wait_until(lambda: ask(other, "s", "hi").status_code == 200)

    in_the_end(attempt)


def test_metrics_are_those_of_all_replicas(guarded: Cluster) -> None:
    with guarded.http(KEYS[2].key) as client:
        page = client.get("/metrics").text
    for name in guarded.replicas:
        assert f'llama_py_model_loads_total{{replica="{name}"}} 1.0' in page
    assert page.count("# TYPE llama_py_model_loads_total") == 1


def test_a_session_goes_on_at_another_replica_from_the_shared_store(guarded: Cluster) -> None:
    with guarded.http(KEYS[0].key) as client:
        first = ask(client, "moves", f"moves {LONG}")
        home = first.headers[HEADER]
        for replica in guarded.replicas.values():  # what is written beside replies
            replica._app.state.service.models.loaded[0].llama.cache.flush()
        guarded.kill_after[home] = 0
        again = ask(client, "moves", f"moves {LONG}", "And more?")
        assert again.headers[HEADER] != home
        assert cached(again) > 100


def test_a_response_is_known_to_all_replicas(guarded: Cluster) -> None:
    body = {"input": LONG, "max_output_tokens": 8}
    with guarded.http(KEYS[0].key) as client:
        first = client.post("/v1/responses", json=body)
        name = first.json()["id"]
        guarded.kill_after[first.headers[HEADER]] = 0
        then = {"input": "And more?", "previous_response_id": name, "max_output_tokens": 8}
        second = client.post("/v1/responses", json=then)
        assert second.status_code == 200
        assert second.headers[HEADER] != first.headers[HEADER]
        assert second.json()["usage"]["input_tokens"] > first.json()["usage"]["input_tokens"]
        item = second.json()["output"][0]["id"]
        referred = {
            "input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "?"}]
        }
        assert client.post("/v1/responses", json=referred).status_code == 200
        assert client.delete(f"/v1/responses/{name}").json()["deleted"] is True
        assert client.get(f"/v1/responses/{name}").status_code == 404
    with guarded.http(KEYS[1].key) as bob:
        unknown = bob.post(
            "/v1/responses", json={**then, "previous_response_id": second.json()["id"]}
        )
        assert unknown.status_code == 400


def test_the_router_learns_what_a_replica_has_evicted() -> None:
    small = demo_settings(n_ctx=512, n_seq_max=2, n_threads=1, parking_bytes=0)
    with cluster(small, count=1) as running, running.http() as client:
        texts = [f"{number} {LONG}" for number in range(4)]
        hints = [hint_of({"messages": [{"role": "user", "content": text}]}) for text in texts]
        for text in texts:
            ask(client, "", text, session_id=None).raise_for_status()
        held = [running.policy.rank(hint)[0].shared == hint.size for hint in hints]
        assert (held[0], held[3]) == (False, True)
        state = asyncio.run(running.replicas["replica-0"].state())
        assert {*hints[0].blocks} <= {*state.lost}
        assert {*hints[3].blocks} <= {*state.held}
        assert state.models == {"demo"}
        assert 0 < state.used <= state.room


def test_what_a_model_in_a_process_of_its_own_holds_is_known() -> None:
    isolated = demo_settings(n_ctx=1024, n_threads=1, isolate=True)
    with cluster(isolated, count=1) as running, running.http() as client:
        ask(client, "", LONG, session_id=None).raise_for_status()
        hint = hint_of({"messages": [{"role": "user", "content": LONG}]})
        state = asyncio.run(running.replicas["replica-0"].state())
        assert {*hint.blocks} <= {*state.held}


def test_what_is_parked_in_ram_is_held() -> None:
    small = demo_settings(n_ctx=512, n_seq_max=2, n_threads=1)
    with cluster(small, count=1) as running, running.http() as client:
        texts = [f"{number} {LONG}" for number in range(4)]
        for text in texts:
            ask(client, "", text, session_id=None).raise_for_status()
        hints = [hint_of({"messages": [{"role": "user", "content": text}]}) for text in texts]
        assert all(running.policy.rank(hint)[0].shared == hint.size for hint in hints)
        assert cached(ask(client, "", texts[0], session_id=None)) > 100


def test_a_gateway_without_replicas_is_not_ready() -> None:
    with cluster(count=1) as running, running.http() as client:
        assert client.get("/readyz").status_code == 200
        running.replicas.clear()
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200


def test_several_streams_at_once_come_whole(running: Cluster) -> None:
    replies: dict[int, str] = {}

    def one(number: int) -> None:
        with running.openai() as client:
            stream = client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": f"What is {number} + 3?"}],
                temperature=0,
                stream=True,
            )
            replies[number] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"{number} + 3" in replies[number] for number in range(9))
