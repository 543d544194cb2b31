"""Pictures and sounds that are damaged, enormous or odd: a typed error or a right reply, and never
the end of the process.

The cases run in a process of their own, one after another, which says what it begins: whatever
ends it is known by name. By hand: ``python -m tests.media.test_hostile omni [NAME ...]``.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llama_py import Audio, Image, Llama
from llama_py.errors import LlamaError, MediaError
from tests.media.broken import (
    BAD_SOUNDS,
    GOOD_PICTURES,
    GOOD_SOUNDS,
    hostile_pictures,
    hostile_sounds,
)
from tests.media.pictures import disc, png
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model

ROOT = Path(__file__).parents[2]
#: Projectors, and the models that they are tried with.
PAIRS = {"omni": "full", "qwen2vl_merger": "mrope", "gemma3": "iswa_gemma", "mlp_tiles": "full"}
_SECONDS = 200


def opened(kind: str) -> Llama:
    """A model with a projector of a kind."""
    return Llama(
        media_model(PAIRS[kind]),
        mmproj=tiny_projector(kind),
        n_ctx=2048,
        n_threads=1,
        n_seq_max=2,
        verbose=False,
    )


def part_of(data: bytes, sound: bool) -> dict[str, Any]:
    """A part of a message, as clients send it."""
    text = base64.b64encode(data).decode()
    if sound:
        return {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}


def asked(llm: Llama, part: dict[str, Any]) -> str:
    """What becomes of a case."""
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]
    try:
        llm.create_chat_completion(messages, max_tokens=1, temperature=0.0)
    except LlamaError as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def cases(kind: str) -> dict[str, dict[str, Any]]:
    """All parts for a projector, by name."""
    good = {name: part_of(write(), False) for name, write in GOOD_PICTURES.items()}
    bad = {name: part_of(data, False) for name, data in hostile_pictures().items()}
    if kind != "omni":
        return {**good, **bad}
    sounds = {name: part_of(write(), True) for name, write in GOOD_SOUNDS.items()}
    sounds |= {name: part_of(data, True) for name, data in hostile_sounds().items()}
    return {**good, **bad, **sounds}


def child(kind: str, names: list[str]) -> None:
    """Run cases, and say what becomes of each."""
    with opened(kind) as llm:
        for name, part in cases(kind).items():
            if names and name not in names:
                continue
            print(f"begin\t{name}", flush=True)
            print(f"end\t{name}\t{asked(llm, part)}", flush=True)
        print(f"end\tthe next call\t{asked(llm, part_of(png(disc()), False))}", flush=True)


def outcomes(kind: str) -> dict[str, str]:
    """What became of each case in a process of its own."""
    command = [sys.executable, "-m", "tests.media.test_hostile", kind]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    begun = [line[1] for line in lines if line[0] == "begin"]
    assert ran.returncode == 0, f"it ended in {begun[-1:]}: {ran.stderr[-2000:]}"
    return {line[1]: line[2] for line in lines if line[0] == "end"}


@pytest.mark.parametrize("kind", PAIRS)
def test_the_process_lives(kind: str) -> None:
    found = outcomes(kind)
    assert len(found) == len(cases(kind)) + 1
    assert len(found) >= 60
    assert found["the next call"] == "answered"
    for name in hostile_pictures():
        if "cut" not in name and name != "no palette":  # which Pillow takes for greys
            assert found[name].startswith(("MediaError", "ParameterError")), (name, found[name])
    for name in {*GOOD_PICTURES} - {"1 x 5000", "5000 x 1", "2 x 30000"}:
        assert found[name] == "answered", (name, found[name])
    if kind == "omni":
        assert all(found[name] == "answered" for name in GOOD_SOUNDS)
        assert all(found[name].startswith("MediaError") for name in BAD_SOUNDS)


def test_two_hundred_pictures_are_too_many() -> None:
    with opened("omni") as llm:
        content = [part_of(png(disc()), False)] * 200
        with pytest.raises(MediaError, match=r"200 pictures and sounds; at most 64 .*max_media"):
            llm.create_chat_completion([{"role": "user", "content": content}])
        assert asked(llm, content[0]) == "answered"


def test_a_wrong_type_is_no_obstacle() -> None:
    with opened("omni") as llm:
        text = base64.b64encode(png(disc())).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text}"}}
        assert asked(llm, part) == "answered"


def test_a_neighbour_is_not_disturbed() -> None:
    messages = [{"role": "user", "content": "one two three"}]
    wanted: dict[str, Any] = {"max_tokens": 120, "temperature": 0.0}
    with opened("omni") as llm:
        expected = llm.create_chat_completion(messages, **wanted)["choices"][0]["message"]
        said: list[str] = []

        def listen() -> None:
            for piece in llm.create_chat_completion(messages, stream=True, **wanted):
                said.append(piece["choices"][0]["delta"].get("content") or "")

        listener = threading.Thread(target=listen)
        listener.start()
        for data in [*hostile_pictures().values()][:20]:
            asked(llm, part_of(data, False))
        listener.join()
        assert "".join(said) == expected["content"]


@pytest.mark.parametrize("read", [Image, Audio])
def test_programs_get_the_same_errors(read: Any) -> None:
    for data in (b"", b"hello", b"<svg/>"):
        with pytest.raises(MediaError):
            read(data)


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2:])
