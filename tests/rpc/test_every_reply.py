"""A server that is gone, or talks nonsense or lies, after each of the replies of a model's life.

In a process of its own: what is tested is that it does not end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rpc.servers import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
#: Its arguments: the server, what comes then, after how many replies first, and how many more in
#: each next life.
LIVES = """
import json
import random
import sys

from llama_py import Llama, demo_model_path, rpc
from llama_py.errors import LlamaError
from tests.rpc.proxies import through

endpoint, then, first, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(int(sys.argv[5]))
NUMBERS = [0, 1, 2**31, 2**32 - 1, 2**33, 2**40, 2**47, 2**62, 2**63, 2**64 - 1, 2**64 - 4096]


def lie(body):
    changed = bytearray(body)
    for where in range(0, len(body) - 7, 8):
        if rng.random() < 0.6:
            changed[where : where + 8] = rng.choice(NUMBERS).to_bytes(8, "little")
    return bytes(changed)


def life(last):
    with through(endpoint) as proxy:
        proxy.last, proxy.zeros = last, then == "zeros"
        if then == "lies":
            proxy.lie, proxy.lies = lie, rng.choice([1, 2, sys.maxsize])
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
@pytest.mark.parametrize("then", ["gone", "zeros", "lies"])
def test_the_process_goes_on(then: str, first: int) -> None:
    (count, text), *lives, (_, again) = _ends(then, first, 3, 0)
    assert text == again != ""
    assert len(lives) == len(range(first, count, 3)) > 15
    if then == "gone":
        assert {end for _, end in lives} <= {"DeviceLostError", "DeviceUnavailableError"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_goes_on_whatever_numbers_come() -> None:
    end, seed, lives = time.monotonic() + 600, 1, 0
    while time.monotonic() < end:
        lives += len(_ends("lies", seed % 2, 2, seed))
        seed += 1
    assert lives > 15
    print(f"{lives} lives")


def _ends(then: str, first: int, step: int, seed: int) -> list[tuple[int, str]]:
    """How the lives end: after how many replies, and the error or the text."""
    with running() as server:
        command = [
            sys.executable,
            "-c",
            LIVES,
            server.endpoint,
            then,
            *map(str, (first, step, seed)),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after the replies {[last for last, _ in ends]}: {done.stderr}"
    return ends
