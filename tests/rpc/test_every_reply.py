"""A server that is gone, or talks nonsense, after each of the replies of a model's life.

In a process of its own: what is tested is that it does not end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rpc.servers import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
#: Its arguments: the server, what comes then, after how many replies first, and how many more in
#: each next life.
LIVES = """
import json
import sys

from llama_py import Llama, demo_model_path, rpc
from llama_py.errors import LlamaError
from tests.rpc.proxies import through

endpoint, then, first, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def life(last):
    with through(endpoint) as proxy:
        proxy.last, proxy.zeros = last, then == "zeros"
        options = dict(n_ctx=256, n_seq_max=1, n_threads=1, rpc_servers=[proxy.endpoint])
        try:
            with Llama(demo_model_path(), **options) as llm:
                question = [{"role": "user", "content": "Count to 9."}]
                reply = llm.create_chat_completion(question, max_tokens=4, temperature=0.0)
                return proxy.replies, reply["choices"][0]["message"]["content"]
        except LlamaError as error:
            return proxy.replies, type(error).__name__


rpc.set_patience(1.0)
count, text = life(sys.maxsize)
print(json.dumps([count, text]), flush=True)
for last in range(first, count, step):
    print(json.dumps([last, life(last)[1]]), flush=True)
print(json.dumps([count, life(sys.maxsize)[1]]), flush=True)
"""


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("then", ["gone", "zeros"])
def test_the_process_goes_on(then: str, first: int) -> None:
    with running() as server:
        command = [sys.executable, "-c", LIVES, server.endpoint, then, str(first), "3"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after the replies {[last for last, _ in ends]}: {done.stderr}"
    (count, text), *lives, (_, again) = ends
    assert text == again != ""
    assert len(lives) == len(range(first, count, 3)) > 15
    if then == "gone":
        assert {end for _, end in lives} <= {"DeviceLostError", "DeviceUnavailableError"}
