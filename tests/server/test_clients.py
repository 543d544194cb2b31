"""Who asked: addresses in the log, tokens of each key in the metrics."""

from __future__ import annotations

import io
import json
import logging

import pytest

from llama_py.server.access.clients import ClientAddresses
from llama_py.server.access.keys import ADMIN, CHAT, ApiKey
from llama_py.server.logs import log_to
from tests.server.serving import demo_settings, serving

ALICE = ApiKey("alice", "alice-secret")
BOB = ApiKey("bob", "bob-secret", frozenset({CHAT, ADMIN}))
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "client"),
    [
        ((), "10.0.0.1", ["1.2.3.4"], "10.0.0.1"),
        (("10.0.0.1",), "10.0.0.2", ["1.2.3.4"], "10.0.0.2"),
        (("10.0.0.1",), "10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        (("10.0.0.1",), "10.0.0.1", [], "10.0.0.1"),
        (("10.0.0.1",), "10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        (("10.0.0.1",), "10.0.0.1", ["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["1.2.3.4, 10.9.9.9"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["1.2.3.4, nonsense"], "10.0.0.1"),
        (("10.0.0.0/8",), "10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", ["[2001:db8::7]:99"], "2001:db8::7"),
        (("::1",), "::1", ["2001:db8::7"], "2001:db8::7"),
        (("fe80::/10",), "fe80::1%eth0", ["fe80::7%any text"], "fe80::7"),
        (("unix",), "", ["1.2.3.4"], "1.2.3.4"),
        (("10.0.0.1",), "", ["1.2.3.4"], ""),
        (("10.0.0.1",), "10.0.0.1", ["10.0.0.1," * 1000], "10.0.0.1"),
    ],
)
def test_whom_a_proxy_connects_for(
    proxies: tuple[str, ...], peer: str, forwarded: list[str], client: str
) -> None:
    assert ClientAddresses(proxies).find(peer, forwarded) == client


def test_the_log_and_the_metrics_tell_who_asked() -> None:
    more = {"metrics": True, "api_keys": (ALICE, BOB), "trusted_proxies": ("127.0.0.1",)}
    written, root = io.StringIO(), logging.getLogger()
    level = root.level
    handler = log_to(written)
    try:
        with serving(demo_settings(more, n_ctx=512)) as server, server.http() as http:
            path, came = "/v1/chat/completions", {"X-Forwarded-For": "6.6.6.6, 192.0.2.7"}
            assert http.post(path, json=HELLO, headers=came).status_code == 401
            usage = []
            for key in (ALICE, ALICE, BOB):
                reply = http.post(path, json=HELLO, headers={"x-api-key": key.key})
                usage.append(reply.json()["usage"])
            page = http.get("/metrics", headers={"x-api-key": BOB.key}).text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    asked = [line for line in lines if line["logger"] == "llama_py.server.requests"]
    assert [line["client"] for line in asked] == ["192.0.2.7", *["127.0.0.1"] * 3]
    assert asked[0]["status"] == 401
    alice = sum(each["prompt_tokens"] for each in usage[:2])
    assert f'llama_py_key_tokens_total{{key="alice",kind="prompt"}} {alice:.1f}' in page
    wrote = usage[2]["completion_tokens"]
    assert f'llama_py_key_tokens_total{{key="bob",kind="generated"}} {wrote:.1f}' in page
    assert 'llama_py_key_requests_total{key="alice"} 2.0' in page
    assert "secret" not in page
