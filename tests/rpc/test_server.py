"""The HTTP server, when a device of its model is lost."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.patience import in_the_end
from tests.rpc.servers import Server as RpcServer
from tests.rpc.servers import running
from tests.server.serving import demo_settings, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count to 9."}],
    "max_tokens": 30,
    "temperature": 0,
}


def test_the_server_outlives_a_device() -> None:
    """Requests get an error that says so, and as soon as the device is back, replies."""
    with running() as doomed:
        endpoint = doomed.endpoint
        with serving(demo_settings(rpc_servers=(endpoint,), n_ctx=512)) as server:
            url = f"{server.url}/v1/chat/completions"
            expected = httpx.post(url, json=BODY, timeout=60).json()["choices"][0]["message"]
            doomed.process.kill()
            doomed.process.wait()
            answer = httpx.post(url, json=BODY, timeout=60)
            assert answer.status_code == 503
            assert "device" in answer.json()["error"]["message"]
            assert "127.0.0.1" not in answer.text
            answer = httpx.post(url, json=BODY, timeout=60)  # it cannot be loaded either
            assert answer.status_code == 503
            assert httpx.get(f"{server.url}/v1/models", timeout=60).status_code == 200
            again = RpcServer(port=int(endpoint.partition(":")[2]))
            try:

                def answers() -> None:
                    time.sleep(0.5)
                    found = httpx.post(url, json=BODY, timeout=60)
                    assert found.json()["choices"][0]["message"] == expected

                in_the_end(answers, KeyError)
            finally:
                again.close()
