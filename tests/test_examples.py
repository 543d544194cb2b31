"""Every script in ``examples/`` runs, on the bundled model or on tiny ones that see and hear, and
prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llama_py
from tests.media.pictures import chirp, disc, gradient, png, wav
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.patience import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

#: script -> patterns that its output has, in this order
EXPECTED = {
    "after_restart.py": [
        r"2 \+ 3 = 5\.",
        r"\[(\d+) of \1 prompt tokens were evaluated\]",
        r"Your name is Anna\.",
        r"\[1\d of 2\d\d prompt tokens were evaluated\]",
    ],
    "asyncio_chat.py": [
        r"Hello! -> Hello!",
        r"2 \+ 3\? -> 2 \+ 3 = 5\.",
        r"Count to 5\. -> 1, 2, 3, 4, 5\.",
        r"loop was free: True",
    ],
    "chat.py": [
        r"Nice to meet you, Alice\.",
        r"\[0 of \d+ prompt tokens were in memory\]",
        r"2 \+ 3 = 5\.",
        r"\[[1-9]\d* of \d+ prompt tokens were in memory\]",
        r"Your name is Alice\.",
        r"\[[1-9]\d* of \d+ prompt tokens were in memory\]",
    ],
    "ask_twice.py": [
        r"> What is in this picture\?",
        r"\[0 of \d+ prompt tokens were in memory, \d+ ms\]",
        r"> Which colours does it have\?",
        r"\[2\d of \d+ prompt tokens were in memory, \d+ ms\]",
    ],
    "compare_pictures.py": [r"\[[1-9]\d* of \d+ prompt tokens were in memory\]"],
    "describe_picture.py": [r"\[\d+ tokens with the picture\]"],
    "embeddings_cluster.py": [
        r"0 \['What is 2 \+ 3\?', 'What is 4 \+ 1\?', 'What is 7 \+ 2\?'\]",
        r"1 \['What is the capital of France\?', .*Spain.*Italy",
    ],
    "embeddings_rerank.py": [r"nearest: \['What is 2 \+ 4\?', ", r"0\.\d\d What is 2 \+ 4\?"],
    "embeddings_search.py": [r"0\.\d\d places\.txt: What is the capital of Spain\?"],
    "json_schema.py": [r"\['age', 'name'\] int", r"(yes|no)"],
    "logprobs.py": [r"'2' .* of  '2' [01]\.\d{3}, ", r"perplexity \d+", r"perplexity \d+"],
    "scoring.py": [
        r"2 \+ 3 = 5\. with probability [01]\.\d\d",
        r"14 tokens of the question, \d+ in all",
        r"'Hello': -0\.\d\d in 1 token",
    ],
    "server_models.py": [
        r"gpt-4o is long: 2 \+ 3 = 5\.",
        r"long loaded",
        r"short unloaded",
        r"short is short: 2 \+ 3 = 5\.",
        r"long unloaded",
        r"short loaded",
    ],
    "server_openai.py": [
        r"demo-chat",
        r"Nice to meet you, Anna\. \[0 of \d+ reused\]",
        r"Your name is Anna\. \[[1-9]\d* of \d+ reused\]",
        r"1, 2, 3, 4, 5\.",
    ],
    "sessions.py": [
        r"Nice to meet you, Alice\.",
        r"Nice to meet you, Bob\.",
        r"Alice: Your name is Alice\.",
        r"Bob: Your name is Bob\.",
        r"4 6",
    ],
    "streaming.py": [
        r"1, 2, 3, 4, 5, 6, 7, 8, 9, 10\.",
        r"\[stop\]",
        r"\[\d+ tokens per second\]",
        r"\[\d+ tokens\]",
        r"text_completion",
    ],
    "threads.py": [rf"{number}: {number} \+ 1 = {number + 1}\." for number in range(8)],
    "transcribe.py": [r"\[\d+ tokens with the sound\]"],
    "tools.py": [r"get_weather\(\{'city': 'Paris'\}\)", r"It is 21 degrees and sunny in Paris\."],
}


#: script -> the files that it is given beside a model and a projector
GIVEN = {
    "ask_twice.py": ["a.png"],
    "compare_pictures.py": ["a.png", "b.png"],
    "describe_picture.py": ["a.png"],
    "transcribe.py": ["a.wav"],
}


def arguments(name: str, folder: Path) -> list[str]:
    """What a script is called with: tiny models that see and hear, and drawn pictures."""
    if name not in GIVEN:
        return []
    (folder / "a.png").write_bytes(png(disc()))
    (folder / "b.png").write_bytes(png(gradient()))
    (folder / "a.wav").write_bytes(wav(chirp()))
    return [str(media_model("full")), str(tiny_projector("omni")), *GIVEN[name]]


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_examples_run(name: str, tmp_path: Path) -> None:
    package = Path(llama_py.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments(name, tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    position = 0
    for pattern in EXPECTED[name]:
        match = re.compile(pattern).search(done.stdout, position)
        assert match, f"{pattern!r} is not in the rest of the output:\n{done.stdout}"
        position = match.end()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_examples_are_short(name: str) -> None:
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 50
    assert lines[0].startswith('"""')
