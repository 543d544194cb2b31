"""What who runs a server sees: health, metrics, lines of requests, refusals over a real socket."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llama_py.server.access.keys import ADMIN, CHAT, ApiKey
from llama_py.server.exchange import Exchange
from llama_py.server.lifecycle import Phase
from llama_py.server.logs import log_to
from tests.patience import PATIENCE
from tests.server.leaving import until
from tests.server.serving import Server, demo_settings, serving
from tests.slowness import slow_steps

ALICE = ApiKey("alice", "alice-secret")
OPS = ApiKey("ops", "ops-secret", frozenset({CHAT, ADMIN}))
CHATS = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = demo_settings({"api_keys": (ALICE, OPS), "max_body_bytes": 4096})
    with serving(settings) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http(headers={"Authorization": f"Bearer {OPS.key}"}) as client:
        yield client


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged meanwhile."""
    with logging_to(io.StringIO()) as stream:
        yield stream


@contextlib.contextmanager
def logging_to(stream: io.StringIO) -> Iterator[io.StringIO]:
    """Log to a stream meanwhile."""
    handler = log_to(stream)
    try:
        yield stream
    finally:
        for name in ("", "llama_py", "llama_py.server"):
            logging.getLogger(name).setLevel(logging.NOTSET if name else logging.WARNING)
        logging.getLogger().removeHandler(handler)


def logged(lines: io.StringIO, count: int) -> list[dict[str, Any]]:
    """The lines of that many requests; a line comes when the answer is out."""
    end = time.monotonic() + PATIENCE
    while lines.getvalue().count("\n") < count and time.monotonic() < end:
        time.sleep(0.01)
    return [json.loads(line) for line in lines.getvalue().splitlines()]


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(http: httpx.Client) -> Samples:
    """Every sample of ``/metrics`` by name and labels."""
    text = http.get("/metrics").raise_for_status().text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


# ---- health ------------------------------------------------------------------------------------


def test_probes_need_no_key(server: Server) -> None:
    with server.http() as http:
        for path in ("/health", "/v1/health", "/livez", "/readyz"):
            assert http.get(path).json() == {"status": "ok"}
        for method, path in (("HEAD", "/"), ("HEAD", "/api/hello"), ("GET", "/api/hello")):
            answer = http.request(method, path)
            assert (answer.status_code, answer.content) == (200, b"")


def test_probes_while_loading_and_draining(server: Server, lines: io.StringIO) -> None:
    lifecycle = server.service.lifecycle
    with server.http() as http:
        try:
            lifecycle.phase = Phase.LOADING
            for path in ("/health", "/readyz"):
                answer = http.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
                assert answer.json() == {
                    "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
                }
            assert http.get("/livez").status_code == 200
            lifecycle.phase = Phase.DRAINING
            statuses = [http.get(path).status_code for path in ("/livez", "/health", "/readyz")]
            assert statuses == [200, 200, 503]
        finally:
            lifecycle.phase = Phase.READY
        http.get("/healthier")
    assert [line["route"] for line in logged(lines, 1)] == ["/healthier"]


def test_readiness_follows_load() -> None:
    settings = demo_settings({"ready_waiting": 1}, n_seq_max=1, n_ctx=8192)
    body = {"messages": [{"role": "user", "content": "Count."}], "stream": True}
    endless = {**body, "ignore_eos": True, "max_tokens": 7000}
    with serving(settings) as server, server.http() as http, contextlib.ExitStack() as stack:
        assert http.get("/readyz").status_code == 200
        for _ in range(3):
            client = stack.enter_context(server.http())
            stack.enter_context(client.stream("POST", CHATS, json=endless))
        until(lambda: http.get("/readyz").status_code == 503, "two of three wait")
        assert "2 requests wait" in http.get("/readyz").json()["error"]["message"]
        assert http.get("/health").status_code == http.get("/livez").status_code == 200
        stack.close()
        until(lambda: http.get("/readyz").status_code == 200, "nobody waits")


def test_a_header_names_what_a_conversation_begins_with(http: httpx.Client) -> None:
    def asked(*texts: str, path: str = CHATS, system: str = "Be brief.") -> str:
        said = [{"role": "user", "content": text} for text in texts]
        messages = [{"role": "system", "content": system}, *said]
        answer = http.post(path, json={"messages": messages, "max_tokens": 1})
        return str(answer.headers["x-prefix-id"])

    first = asked("What is bread?")
    assert asked("What is bread?", "And tea?") == first
    assert asked("What is tea?") != first
    assert asked("What is bread?", system="Be long.") != first
    prompt = http.post("/v1/completions", json={"prompt": "What is", "max_tokens": 1})
    assert len(prompt.headers["x-prefix-id"]) == 16
    assert "x-prefix-id" not in http.get("/v1/models").headers


# ---- metrics -----------------------------------------------------------------------------------


def test_metrics_count_what_happened(http: httpx.Client) -> None:
    before = scraped(http)
    prompts = [{"role": "user", "content": f"Count to {number}."} for number in ("two", "three")]
    usages = [
        http.post(CHATS, json={"messages": [prompt], "max_tokens": 4, "temperature": 0}).json()
        for prompt in (*prompts, prompts[0])
    ]
    http.post(CHATS, json={"messages": []})
    http.get("/v1/models/some-name")
    http.get("/nothing/at/all")
    http.get("/v1/sessions", headers={"Authorization": ""})
    after = scraped(http)
    model = labels(model_name="demo")

    def grew(name: str, of: frozenset[tuple[str, str]] | None = None) -> float:
        if of is None:  # llama-server's names have no label where there is one model
            of = labels() if name.startswith("llamacpp:") else model
        return after[name, of] - before.get((name, of), 0.0)

    prompt = sum(each["usage"]["prompt_tokens"] for each in usages)
    cached = sum(each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in usages)
    assert cached > 0
    assert grew("llamacpp:prompt_tokens_total") == prompt - cached
    assert grew("llamacpp:prompt_tokens_cached_total") == cached
    assert grew("llama_py_prefix_cache_queries_total") == prompt
    assert grew("llama_py_prefix_cache_hits_total") == cached
    assert grew("llamacpp:tokens_predicted_total") == 12
    assert grew("llama_py_request_success_total", model | labels(finished_reason="length")) == 3
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
    ):
        assert grew(f"llama_py_{name}_count") == 3
        assert grew(f"llama_py_{name}_bucket", model | labels(le="+Inf")) == 3
        assert after[f"llama_py_{name}_sum", model] > 0
    assert grew("llama_py_inter_token_latency_seconds_count") == 9
    assert grew("llamacpp:n_decode_total") >= 12
    assert grew("llamacpp:prompt_seconds_total") > 0
    assert grew("llamacpp:tokens_predicted_seconds_total") > 0
    assert after["llamacpp:requests_processing", labels()] == 0
    assert after["llamacpp:requests_deferred", labels()] == 0
    assert after["llamacpp:n_tokens_max_total", labels()] >= 16  # as this parser calls it
    assert after["llamacpp:n_busy_slots_per_decode", labels()] == 1
    for name in ("num_draft_tokens", "num_accepted_tokens", "num_drafts"):
        assert after[f"llamacpp:spec_decode_{name}_total", labels()] == 0
    assert 0 < after["llama_py_kv_cache_usage_perc", model] < 1
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        assert after[f"vllm:{name}", model] == after["llama_py_kv_cache_usage_perc", model]
    for name in ("num_requests_running", "num_requests_waiting"):
        assert after[f"vllm:{name}", model] == 0
    for name in ("prefix_cache", "gpu_prefix_cache"):
        assert grew(f"vllm:{name}_queries_total") == prompt
        assert grew(f"vllm:{name}_hits_total") == cached
    assert after["llama_py_model_loads_total", labels()] == 1
    requests = "llama_py_http_requests_total"
    assert grew(requests, labels(method="POST", path=CHATS, status="200")) == 3
    assert grew(requests, labels(method="POST", path=CHATS, status="400")) == 1
    one = labels(method="GET", path="/v1/models/{id:path}", status="200")
    assert grew(requests, one) == 1  # of the route, not of the path
    assert grew(requests, labels(method="other", path="other", status="404")) == 1
    assert grew(requests, labels(method="GET", path="/v1/sessions", status="401")) == 1
    page = http.get("/metrics")
    assert abs(int(page.headers["process-start-time-unix"]) - time.time()) < 600
    assert "# TYPE llamacpp:n_tokens_max counter" in page.text


def test_buckets_grow(http: httpx.Client) -> None:
    samples = scraped(http)
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        buckets = {
            float(dict(given)["le"]): value
            for (each, given), value in samples.items()
            if each == f"llama_py_{name}_seconds_bucket"
        }
        counts = [buckets[bound] for bound in sorted(buckets)]
        assert counts == sorted(counts)
        assert len(counts) > 10


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.2",
        "application/openmetrics-text; version=x",
    ],
)
def test_names_are_the_same_in_whatever_form_they_are_asked_for(
    http: httpx.Client, accept: str
) -> None:
    """Prometheus asks for OpenMetrics, in which the library writes other names of samples."""
    answer = http.get("/metrics", headers={"Accept": accept}).raise_for_status()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "\nllamacpp:tokens_predicted_total " in answer.text


def test_clients_make_no_labels(http: httpx.Client) -> None:
    http.request("PURGE", "/health")
    methods = {dict(labels).get("method") for _, labels in scraped(http)}
    assert "other" in methods
    assert "PURGE" not in methods


def test_metrics_are_not_for_everybody(server: Server) -> None:
    with server.http(headers={"x-api-key": ALICE.key}) as http:
        assert http.get("/metrics").status_code == 403


# ---- lines -------------------------------------------------------------------------------------


def test_the_token_that_ends_a_reply_is_not_counted(http: httpx.Client, lines: io.StringIO) -> None:
    """The log has what the client is told."""
    body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
    answer = http.post(CHATS, json=body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert logged(lines, 1)[0]["generated_tokens"] == answer["usage"]["completion_tokens"]


def test_a_line_for_each_request(http: httpx.Client, lines: io.StringIO) -> None:
    body = {"messages": [{"role": "user", "content": "Reply with the word zebra."}]}
    answer = http.post(CHATS, json={**body, "max_tokens": 3}, headers={"x-request-id": "trace-7"})
    for path in ("/health", "/metrics", "/readyz", "/page/js/app.js"):
        assert http.get(path).status_code == 200
    http.get("/v1/models", headers={"Authorization": "Bearer wrong-secret"})
    with http.stream("POST", CHATS, json={**body, "max_tokens": 3, "stream": True}) as stream:
        stream.read()
    first, refused, streamed = logged(lines, 3)
    usage = answer.json()["usage"]
    assert first["id"] == answer.headers["x-request-id"] == "trace-7"
    assert (first["key"], first["model"], first["route"]) == ("ops", "demo", CHATS)
    assert (first["status"], first["method"], first["finish"]) == (200, "POST", "length")
    assert first["prompt_tokens"] == usage["prompt_tokens"]
    assert first["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert first["generated_tokens"] == 3
    assert 0 <= first["queue_ms"] <= first["ttft_ms"] <= first["total_ms"]
    assert (refused["status"], refused["error"], refused["route"]) == (
        401,
        "invalid_api_key",
        "/v1/models",
    )
    assert "key" not in refused
    http.post("/v1/completions", json={"prompt": 5})
    assert logged(lines, 4)[3]["error"] == "invalid_type"
    assert streamed["cached_tokens"] > 0
    written = lines.getvalue()
    assert not any(word in written for word in ("zebra", "secret", "Bearer"))


def test_nobody_writes_lines_of_his_own(http: httpx.Client, lines: io.StringIO) -> None:
    http.get("/x%0a%1b[31m%7f%c2%9b%e2%80%a8y")
    http.get("/v1/models/%22,%22status%22:0", headers={"x-request-id": "a\tb"})
    written = lines.getvalue() if logged(lines, 2) else ""
    assert written.count("\n") == 2
    assert all(0x20 <= ord(each) < 0x7F for each in written.replace("\n", ""))
    odd, quoted = (json.loads(line) for line in written.splitlines())
    assert odd["route"] == "/x\n\x1b[31m\x7f\x9b\u2028y"
    assert (quoted["status"], quoted["route"]) == (200, "/v1/models/{id:path}")
    assert quoted["id"].startswith("req_")


def test_a_client_that_leaves_is_499(server: Server, lines: io.StringIO) -> None:
    body = json.dumps({**QUESTION, "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = (
            f"POST {CHATS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {ALICE.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        assert connection.recv(200).startswith(b"HTTP/1.1 200")
    line = logged(lines, 1)[0]
    assert (line["status"], line["key"], line["finish"]) == (499, "alice", "cancelled")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_lines_for_people(http: httpx.Client) -> None:
    stream = Terminal()
    with logging_to(stream):
        http.post(CHATS, json={**QUESTION, "max_tokens": 2})
        http.get("/%1b[31m%0a%7f")
        try:
            raise ValueError("of a\x1b[31mreason")
        except ValueError:
            logging.getLogger("llama_py.server").exception("it\nfailed")
        end = time.monotonic() + PATIENCE
        while stream.getvalue().count("\n") < 6 and time.monotonic() < end:
            time.sleep(0.01)
    first, second, third, *trace = stream.getvalue().splitlines()
    assert re.match(
        rf"\d\d:\d\d:\d\d  POST {CHATS} 200  client=127.0.0.1  key=ops  model=demo  finish=length",
        first,
    )
    assert r"  GET /\u001b[31m\n\u007f 404" in second
    assert third.endswith(r"  error  it\nfailed")
    assert trace[0].startswith("Traceback")


def test_what_a_program_logs_is_json_too(lines: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("llama_py.server").exception("it\x1b failed")
    line = json.loads(lines.getvalue())
    assert (line["level"], line["message"]) == ("error", "it\x1b failed")
    assert line["traceback"].endswith("ValueError: two\nlines")


# ---- refusals ----------------------------------------------------------------------------------


def test_bodies_that_are_too_large_said_or_not(http: httpx.Client) -> None:
    large = b'{"prompt": "' + b"x" * 5000 + b'"}'
    kind = {"Content-Type": "application/json"}
    for content in (large, iter([large[:3000], large[3000:]])):
        answer = http.post("/v1/completions", content=content, headers=kind)
        assert answer.status_code == 413
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
        assert "larger than the limit of 4096 bytes" in error["message"]


@pytest.mark.parametrize("path", ["/nothing", "/v1/messages/nothing"])
def test_paths_and_methods_that_do_not_exist(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] in ("invalid_request_error", "not_found_error")
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = http.request(method, CHATS)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"]["code"] == "method_not_allowed"


def test_metrics_that_are_off() -> None:
    with serving(demo_settings({"metrics": False})) as server, server.http() as http:
        answer = http.get("/metrics")
        assert answer.status_code == 501
        assert answer.json()["error"]["code"] == "not_implemented"


# ---- keys and prefixes -------------------------------------------------------------------------

BOB = ApiKey("bob", "bob-secret")
LONG = {
    "messages": [{"role": "user", "content": "Tell me what is 2 + 3, and why it is so." * 3}],
    "max_tokens": 4,
    "temperature": 0,
}


def by_chat(http: httpx.Client) -> int:
    """How many tokens of the same prompt did not have to be evaluated."""
    usage = http.post(CHATS, json=LONG).raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def by_messages(http: httpx.Client) -> int:
    """The same in another dialect."""
    usage = http.post("/v1/messages", json=LONG).raise_for_status().json()["usage"]
    return int(usage["cache_read_input_tokens"])


def by_completion(http: httpx.Client) -> int:
    """The same without a template, in llama-server's."""
    body = {"prompt": "Once upon a time there was a king, and a queen.", "n_predict": 2}
    timings = http.post("/completion", json=body).raise_for_status().json()["timings"]
    return int(timings["cache_n"])


@pytest.mark.parametrize("cached", [by_chat, by_messages, by_completion])
def test_a_key_profits_from_itself_only(cached: Callable[[httpx.Client], int]) -> None:
    settings = demo_settings({"api_keys": (ALICE, BOB)}, n_ctx=2048)
    with serving(settings) as server, of(server, ALICE) as alice, of(server, BOB) as bob:
        assert (cached(alice), cached(bob)) == (0, 0)
        assert min(cached(alice), cached(bob)) > 5
        count = alice.post("/v1/messages/count_tokens", json=LONG).json()["input_tokens"]
        assert count == bob.post("/v1/messages/count_tokens", json=LONG).json()["input_tokens"]


def test_a_key_profits_from_others_if_the_settings_say_so() -> None:
    settings = demo_settings({"api_keys": (ALICE, BOB), "share_prefixes": True})
    with serving(settings) as server, of(server, ALICE) as alice, of(server, BOB) as bob:
        assert by_chat(alice) == 0
        assert by_chat(bob) > 20


def test_prefixes_that_had_to_make_room_are_not_shared_either() -> None:
    settings = demo_settings({"api_keys": (ALICE, BOB)}, n_seq_max=1, n_ctx=512)
    with serving(settings) as server, of(server, ALICE) as alice, of(server, BOB) as bob:
        assert (by_chat(alice), by_chat(bob)) == (0, 0)
        assert by_chat(alice) > 20  # brought back
        assert by_chat(bob) > 20


def test_prefixes_on_disk_are_not_shared_either(tmp_path: Path) -> None:
    settings = {"api_keys": (ALICE, BOB), "session_dir": tmp_path}
    body = {**LONG, "session_id": "s"}
    with serving(demo_settings(settings)) as server, of(server, ALICE) as alice:
        alice.post(CHATS, json=body).raise_for_status()
    with serving(demo_settings(settings)) as server:
        with of(server, BOB) as bob:
            assert bob.get("/v1/sessions/s").status_code == 404
            assert by_chat(bob) == 0
        with of(server, ALICE) as alice:
            assert alice.get("/v1/sessions/s").json()["id"] == "s"
            assert by_chat(alice) > 20


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHATS, QUESTION),
        ("/v1/completions", {"prompt": "Once"}),
        ("/completion", {"prompt": "Once"}),
    ],
)
@pytest.mark.parametrize(("key", "asked", "counts"), [
    (ALICE, -5, 0), (ALICE, -(2**31), 0), (ALICE, 7, 7), (OPS, -5, -5),
])  # fmt: skip
def test_nobody_goes_ahead_of_others(
    server: Server,
    path: str,
    body: dict[str, Any],
    key: ApiKey,
    asked: int,
    counts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchanges: list[Exchange] = []
    submit = Exchange._submit

    def noted(self: Exchange, *given: Any) -> None:
        submit(self, *given)
        exchanges.append(self)

    monkeypatch.setattr(Exchange, "_submit", noted)
    with of(server, key) as http:
        http.post(path, json={**body, "priority": asked, "max_tokens": 2}).raise_for_status()
    (exchange,) = exchanges
    assert [each.request.priority for each in exchange.records] == [counts]


def test_a_key_that_says_it_is_urgent_waits_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ask while there is one place: the one who came first gets it, whatever others say."""
    settings = demo_settings({"api_keys": (ALICE, BOB)}, n_seq_max=1)
    slow_steps(monkeypatch)

    def ask(busy: Server, key: ApiKey, options: dict[str, Any]) -> None:
        with of(busy, key) as http:
            http.post(CHATS, json={**QUESTION, **options}).raise_for_status()

    calls: list[tuple[ApiKey, dict[str, Any]]] = [
        (ALICE, {"max_tokens": 600, "ignore_eos": True}),
        (BOB, {"max_tokens": 2}),
        (ALICE, {"max_tokens": 2, "priority": -1}),
    ]
    with serving(settings) as busy, ThreadPoolExecutor(3) as pool:
        queued: list[Any] = []
        asked = []
        for key, options in calls:
            asked.append(pool.submit(ask, busy, key, options))
            known = len(queued)
            until(partial(later, busy, queued, known), f"request {known + 1} is queued")
        assert not queued[0].records[0].ended
        for each in asked:
            each.result()
    begun = [exchange.records[0].first_token for exchange in queued]
    assert begun == sorted(begun)


def later(server: Server, known: list[Any], n: int) -> bool:
    """Note what is queued beside the ``n`` that are known."""
    known += [each for each in [*server.service.exchanges] if each.records and each not in known]
    return len(known) > n


def of(server: Server, key: ApiKey) -> httpx.Client:
    """A client with a key."""
    return server.http(headers={"x-api-key": key.key})
