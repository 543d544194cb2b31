"""Damaged model files end in a typed error or in a working model, never in a dead process.

Every case is a tiny model with one deterministic mutation. Worker processes load the cases one
after another and say which one they begin, so a death or a hang names its file. By hand, over
many more seeds::

    python -m tests.core.test_mutated_gguf 1000 5000
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.core.gguf_mutations import MUTATIONS, mutate
from tests.models import KINDS, tiny_model

ROOT = Path(__file__).parents[2]
N_CASES = 12 * len(MUTATIONS)
N_WORKERS = 2
SECONDS_PER_CASE = 30


def kind_of(seed: int) -> str:
    """Return the model that a seed damages; each mutation meets every kind."""
    return KINDS[(seed // len(MUTATIONS)) % len(KINDS)]


# --- in a worker ----------------------------------------------------------------------------------


def attempt(path: Path) -> str:
    """Load a model and generate a few tokens; return "works", or the name of the typed error."""
    from llama_py import Llama
    from llama_py.errors import LlamaError

    try:
        with Llama(str(path), n_ctx=64, n_threads=1, verbose=False) as llm:
            llm.create_completion("Once upon a --- time", max_tokens=4, temperature=0.8, seed=1)
            llm.create_completion("Once upon a --- time", max_tokens=2, temperature=0.0)
    except LlamaError as error:
        return type(error).__name__
    return "works"


def work(seeds: Sequence[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.gguf"
        for seed in seeds:
            name, data = mutate(tiny_model(kind_of(seed)), seed)
            print("begin", seed, kind_of(seed), name, flush=True)
            path.write_bytes(data)
            print("end", seed, attempt(path), flush=True)


# --- outside --------------------------------------------------------------------------------------


def run_worker(seeds: Sequence[int]) -> tuple[list[str], str | None]:
    """Return the outcomes of the seeds, as many as there are, and how the worker died."""
    command = [sys.executable, "-m", "tests.core.test_mutated_gguf", "--worker"]
    limit = SECONDS_PER_CASE + len(seeds)
    try:
        done = subprocess.run(
            [*command, *map(str, seeds)],
            capture_output=True,
            timeout=limit,
            cwd=ROOT,
            check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
    except subprocess.TimeoutExpired as error:
        return _outcomes(error.stdout or b""), f"took more than {limit} s: {_last(error.stdout)}"
    if done.returncode == 0:
        return _outcomes(done.stdout), None
    death = f"exit status {done.returncode}: {_last(done.stdout)}: {_last(done.stderr)}"
    return _outcomes(done.stdout), death


def _outcomes(output: bytes) -> list[str]:
    lines = output.decode().splitlines()
    return [line.split(maxsplit=2)[2] for line in lines if line.startswith("end ")]


def _last(output: bytes | None) -> str:
    lines = (output or b"").decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def run_all(seeds: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """Run the seeds in one worker after another; return the outcomes and the deaths."""
    outcomes: Counter[str] = Counter()
    deaths: list[str] = []
    rest = list(seeds)
    while rest:
        done, death = run_worker(rest)
        outcomes.update(done)
        if death is None:
            break
        deaths.append(death)
        rest = rest[len(done) + 1 :]
    return outcomes, deaths


def test_damaged_models_end_in_an_error_or_work() -> None:
    for kind in KINDS:
        tiny_model(kind)  # made once, not by each worker
    parts = [range(first, N_CASES, N_WORKERS) for first in range(N_WORKERS)]
    with ThreadPoolExecutor(N_WORKERS) as pool:
        results = list(pool.map(run_all, parts))
    deaths = [death for _, some in results for death in some]
    outcomes = sum((counts for counts, _ in results), Counter[str]())
    assert not deaths
    assert sum(outcomes.values()) == N_CASES
    assert N_CASES >= 200
    # Both ends of the range are met, or the mutations are not what they should be.
    assert outcomes["works"] > N_CASES // 10
    assert outcomes["InvalidModelError"] > N_CASES // 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_models_work(kind: str) -> None:
    assert attempt(tiny_model(kind)) == "works"


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        work([int(seed) for seed in sys.argv[2:]])
    else:
        print(*run_all(range(int(sys.argv[1]), int(sys.argv[2]))), sep="\n")
