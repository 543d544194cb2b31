"""``Embedder(cache=DIR)``: vectors of texts that are kept across calls and processes."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncEmbedder, Embedder, demo_model_path
from llama_py.embeddings.queue import EmbeddingJob, EmbeddingQueue
from llama_py.embeddings.vector_cache import VectorCache
from llama_py.errors import ParameterError, StateError
from tests.models import tiny_model

TEXTS = ["What is 2 + 3?", "Count to 5.", "Hello!"]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each call has computed."""
    counts: list[int] = []
    submit = EmbeddingQueue.submit

    def counting(queue: EmbeddingQueue, job: EmbeddingJob) -> None:
        counts.append(len(job.inputs))
        submit(queue, job)

    monkeypatch.setattr(EmbeddingQueue, "submit", counting)
    return counts


def embedded(folder: Path, *texts: str, model: str | None = None, **options: Any) -> Any:
    with Embedder(model or demo_model_path(), cache=folder, n_threads=1, **options) as embedder:
        return embedder.embed([*texts])


def test_a_text_is_computed_once_and_its_vector_is_the_same(
    tmp_path: Path, computed: list[int]
) -> None:
    first = embedded(tmp_path, *TEXTS)
    again = embedded(tmp_path, "something new", *reversed(TEXTS), "Hello!")
    assert computed == [3, 1]
    assert again[1:4].tobytes() == first[::-1].tobytes()
    assert again[4].tobytes() == first[2].tobytes()
    with Embedder(demo_model_path(), n_threads=1) as embedder:
        assert np.allclose(first, embedder.embed(TEXTS), atol=1e-5)


def test_what_is_done_with_a_vector_is_no_part_of_it(tmp_path: Path, computed: list[int]) -> None:
    with Embedder(demo_model_path(), cache=tmp_path, n_threads=1) as embedder:
        raw = embedder.embed("Hello!", normalize=False)
        seen: list[tuple[int, int]] = []
        short = embedder.embed(
            "Hello!", dimensions=8, progress=lambda done, all_: seen.append((done, all_))
        )
        assert np.allclose(short, raw[:8] / np.linalg.norm(raw[:8]), atol=1e-6)
        assert seen[-1] == (1, 1)
    assert computed == [1, 0]


OTHER = """
import sys
import numpy as np
from llama_py import Embedder, demo_model_path
from llama_py.embeddings.queue import EmbeddingQueue
submit = EmbeddingQueue.submit
def counting(queue, job):
    print(len(job.inputs))
    submit(queue, job)
EmbeddingQueue.submit = counting
with Embedder(demo_model_path(), cache=sys.argv[1], n_threads=1) as embedder:
    for text in sys.argv[2:]:
        print(embedder.embed(text).tobytes().hex())
"""


def other(folder: Path, *texts: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(folder), *texts]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_another_process_finds_it(tmp_path: Path) -> None:
    vectors = embedded(tmp_path, *TEXTS)
    out, _ = other(tmp_path, *TEXTS).communicate()
    assert out.split() == [word for row in vectors for word in ("0", row.tobytes().hex())]


def test_processes_write_at_the_same_time(tmp_path: Path, computed: list[int]) -> None:
    texts = [[f"process {number}, text {each}" for each in range(40)] for number in range(2)]
    running = [other(tmp_path, *each) for each in texts]
    outs = [each.communicate()[0].split() for each in running]
    assert [each.returncode for each in running] == [0, 0]
    for own, out in zip(texts, outs, strict=True):
        assert [row.tobytes().hex() for row in embedded(tmp_path, *own)] == out[1::2]
    assert computed == [0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "cls"},
        {"flash_attn": True},
        {"model": str(tiny_model("full"))},
    ],
    ids=str,
)
def test_another_model_or_way_is_another_vector(
    tmp_path: Path, computed: list[int], options: dict[str, Any]
) -> None:
    embedded(tmp_path, "Hello!")
    embedded(tmp_path, "Hello!", **options)
    embedded(tmp_path, "Hello!", **options)
    embedded(tmp_path, "Hello!")
    assert computed == [1, 1, 0, 0]


def test_those_longest_unused_go(tmp_path: Path) -> None:
    cache = VectorCache(str(tmp_path), 1 << 20, "a model")
    rows = np.random.default_rng(1).normal(size=(256, 4096)).astype(np.float32)
    inputs = [np.array([number], np.int32) for number in range(len(rows))]
    keys, table = cache.keys(inputs, "mean"), np.empty_like(rows)
    for number in range(len(rows)):
        cache.write(keys[number : number + 1], rows[number : number + 1], [0])
        assert cache.read(keys[:1], table[:1]) == []  # in use all the time
    missing = cache.read(keys, table)
    kept = len(rows) - len(missing)
    assert missing == [*range(1, len(missing) + 1)]
    assert 0.6 < kept * rows[0].nbytes / (1 << 20) < 1
    assert sum(path.stat().st_size for path in tmp_path.glob("cache.db")) <= 1 << 20
    assert np.array_equal(table[len(missing) + 1 :], rows[len(missing) + 1 :])


# -- what else may lie there -----------------------------------------------------------------------


def change(folder: Path, statement: str, *values: Any) -> None:
    base = sqlite3.connect(folder / "cache.db")
    with base:
        base.execute(statement, values)
    base.close()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit": lambda folder: change(
        folder, "UPDATE Cache SET value = CAST(substr(value, 1, 99) || x'00' || "
        "substr(value, 101) AS BLOB)"
    ),
    "cut off": lambda folder: change(folder, "UPDATE Cache SET value = substr(value, 1, 99)"),
    "nothing": lambda folder: change(folder, "UPDATE Cache SET value = NULL"),
    "a text": lambda folder: change(folder, "UPDATE Cache SET value = 'text'"),
    "a number": lambda folder: change(folder, "UPDATE Cache SET value = 1.5"),
    "a file": lambda folder: change(
        folder, "UPDATE Cache SET mode = 2, value = NULL, filename = '../secret'"
    ),
    "of another key": lambda folder: change(
        folder, "UPDATE Cache SET value = (SELECT value FROM Cache ORDER BY rowid DESC LIMIT 1)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_computed_again(tmp_path: Path, computed: list[int], kind: str) -> None:
    folder, secret = tmp_path / "cache", tmp_path / "secret"
    secret.write_text("kept")
    first = embedded(folder, "Hello!", "Count to 5.")
    DAMAGE[kind](folder)
    again = embedded(folder, "Hello!")
    assert computed == [2, 1]
    assert again[0].tobytes() == first[0].tobytes() or np.allclose(again[0], first[0], atol=1e-5)
    assert embedded(folder, "Hello!")[0].tobytes() == again[0].tobytes()
    assert computed == [2, 1, 0]
    assert secret.read_text() == "kept"


class _Harm:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_planted_pickle_is_an_error_and_runs_nothing(tmp_path: Path, in_a_file: bool) -> None:
    folder, harm = tmp_path / "cache", tmp_path / "harm"
    embedded(folder, "Hello!")
    code = pickle.dumps(_Harm(harm))
    if in_a_file:
        (folder / "planted.val").write_bytes(code)
        change(folder, "UPDATE Cache SET mode = 4, value = NULL, filename = 'planted.val'")
    else:
        change(folder, "UPDATE Cache SET mode = 4, value = ?", code)
    with pytest.raises(StateError, match=r"is a pickle.*remove the directory"):
        embedded(folder, "Hello!")
    assert not harm.exists()


def test_other_things_in_its_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cache.db").write_text("this is no database, whatever its name may be\n" * 99)
    with pytest.raises(ParameterError, match="cannot keep vectors"):
        embedded(tmp_path, "Hello!")
    with pytest.raises(ParameterError, match="cannot keep vectors"):
        embedded(tmp_path / "cache.db", "Hello!")
    planted = tmp_path / "settings"
    embedded(planted, "Hello!")
    change(planted, "INSERT INTO Settings VALUES ('disk_unknown', 1)")
    with pytest.raises(ParameterError, match="cannot keep vectors"):
        embedded(planted, "Hello!")


def test_without_the_cache_everything_is_computed(
    tmp_path: Path, computed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with Embedder(demo_model_path(), cache=tmp_path, n_threads=1) as embedder:
        change(tmp_path, "DROP TABLE Cache")
        assert embedder.embed(TEXTS).shape == (3, embedder.n_embd)
    assert computed == [3]
    assert "are not used" in caplog.text


def test_an_event_loop_uses_it_too(tmp_path: Path, computed: list[int]) -> None:
    async def run() -> Any:
        async with AsyncEmbedder(demo_model_path(), cache=tmp_path, n_threads=1) as embedder:
            return await embedder.embed(TEXTS), await embedder.embed(TEXTS)

    one, other = asyncio.run(run())
    assert one.tobytes() == other.tobytes()
    assert computed == [3, 0]


def test_a_bound_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cache_bytes=5"):
        Embedder(demo_model_path(), cache=tmp_path, cache_bytes=5)
