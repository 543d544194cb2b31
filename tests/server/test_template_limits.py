"""A template that loops where a message says so: refused cold and warm, and nobody else waits."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE
from tests.server.serving import demo_settings, serving
from tests.server.test_serve import running

LOOPING = (
    "{%- for m in messages -%}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{%- if 'boom' in m['content'] -%}{%- for a in range(99999) -%}"
    "{%- for b in range(99999) -%}{%- endfor -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
    "<|im_start|>assistant\n"
)


def ask(http: Any, text: str) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    return http.post("/v1/chat/completions", json=body)


def test_a_loop_is_refused_cold_and_warm_and_others_go_on() -> None:
    settings = demo_settings(n_threads=1, chat_template=LOOPING)
    with serving(settings) as server, server.http() as http, ThreadPoolExecutor(4) as pool:
        cold = ask(http, "hello boom")
        assert ask(http, "hello").status_code == 200
        warm = [*pool.map(lambda _: ask(http, "hello boom"), range(4))]
        assert {reply.status_code for reply in (cold, *warm)} == {400}
        assert {reply.json()["error"]["message"] for reply in warm} == {
            cold.json()["error"]["message"]
        }
        assert "takes more than" in cold.json()["error"]["message"]
        assert ask(http, "hello again").status_code == 200


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_ends_while_templates_loop(tmp_path: Path) -> None:
    path = tmp_path / "loop.jinja"
    path.write_text(LOOPING)
    with (
        running("--chat-template", str(path), "--drain-seconds", "2") as server,
        httpx.Client(base_url=server.address, timeout=PATIENCE) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        assert ask(http, "hello").status_code == 200
        replies = [pool.submit(ask, http, "hello boom") for _ in range(8)]
        time.sleep(0.1)
        start = time.monotonic()
        server.stop()
        code, _, _ = server.end()
        assert code == 0
        assert time.monotonic() - start < 20
        for reply in replies:
            assert reply.exception() is not None or reply.result().status_code in (400, 503)
