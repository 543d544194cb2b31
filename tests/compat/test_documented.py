"""The examples in the documentation of llama-cpp-python do here what it says (``documented``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_py.demo import demo_model_path
from tests.media.pictures import disc, png
from tests.media.projectors import tiny_projector
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    picture = tmp_path_factory.mktemp("pictures") / "disc.png"
    picture.write_bytes(png(disc()))
    files = [demo_model_path(), str(tiny_projector("mlp", 192)), str(picture)]
    program = Path(__file__).parent / "documented.py"
    done = subprocess.run(
        [sys.executable, "-m", "llama_py.compat", str(program), *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_THREAD_LIMIT": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "llama_model_loader" in done.stderr, "verbose=True is the default there"
    return json.loads(done.stdout)


def test_completions(found: Any) -> None:
    reply = found["high_level"]
    assert reply["object"] == "text_completion"
    choice = reply["choices"][0]
    assert choice["text"].startswith("Q: Name the planets in the solar system? A: ")
    assert choice["logprobs"] is None
    assert choice["finish_reason"] in ("stop", "length")
    usage = reply["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]


def test_chats_and_schemas(found: Any) -> None:
    assert found["chat"]["choices"][0]["message"]["role"] == "assistant"
    whole = json.loads(found["json_mode"]["choices"][0]["message"]["content"])
    assert isinstance(whole, dict)
    team = json.loads(found["json_schema_mode"]["choices"][0]["message"]["content"])
    assert isinstance(team["team_name"], str)


def test_functions_are_called(found: Any) -> None:
    message = found["function_calling"]["choices"][0]["message"]
    call = message["tool_calls"][0]["function"]
    assert call["name"] == "UserDetail"
    assert set(json.loads(call["arguments"])) == {"name", "age"}
    assert message["function_call"] == call


def test_what_is_not_there_says_so(found: Any) -> None:
    described = found["multimodal"]
    assert described["object"] == "chat.completion"
    assert described["usage"]["completion_tokens"] <= 4
    assert described["usage"]["prompt_tokens"] > 16, "the cells of a picture"


def test_a_draft_model_changes_no_text(found: Any) -> None:
    assert found["speculative"][0] == found["speculative"][1]


def test_embeddings_have_the_form_of_openai(found: Any) -> None:
    assert found["embeddings"][:2] == [1, 2]
    assert found["embeddings"][2] > 0


def test_the_rest(found: Any) -> None:
    assert found["context_window"] == 2048
    assert found["low_level"] == "Q: Name the planets in the solar system? A: "
    assert found["caches"][0] == found["caches"][1]
    assert len(found["generate"]) == 4
    assert found["grammars"] in ("yes", "no")
