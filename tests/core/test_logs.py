"""llama.cpp's log goes to ``logging``, and its reasons into errors."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama
from llama_py._native import ggml_h
from llama_py.core import logs
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.errors import InvalidModelError, StateError
from llama_py.params import ContextParams
from tests.models import tiny_model

ROOT = Path(__file__).resolve().parents[2]


def say(level: int, *pieces: str) -> None:
    """What llama.cpp does when it logs."""
    for piece in pieces:
        logs._receive(level, piece.encode(), None)


def test_the_log_goes_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llama_py"):
        Model(tiny_model("full")).close()
    assert any("tiny full" in record.getMessage() for record in caplog.records)
    assert {record.name for record in caplog.records} == {"llama_py"}
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    Model(tiny_model("full")).close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("verbose", "printed"), [(True, True), (False, False)])
def test_verbose_prints_on_standard_error(verbose: bool, printed: bool) -> None:
    code = f"from llama_py import Llama; Llama({str(tiny_model('full'))!r}, verbose={verbose})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert ("llama_context" in done.stderr) == printed
    assert printed or done.stderr == ""


def test_verbose_lasts_as_long_as_its_model(capfd: pytest.CaptureFixture[str]) -> None:
    before = (logs.LOGGER.level, list(logs.LOGGER.handlers))
    options: dict[str, Any] = {"n_ctx": 64, "n_threads": 1}
    model = str(tiny_model("full"))
    loud = Llama(model, verbose=True, **options)
    assert "llama_context" in capfd.readouterr().err
    Llama(model, **options).close()  # llama.cpp does not say of which model it speaks
    capfd.readouterr()
    assert (logs.LOGGER.level, logs.LOGGER.handlers) == before
    del loud
    capfd.readouterr()
    Llama(model, **options).close()
    assert capfd.readouterr() == ("", "")


def test_verbose_ends_with_a_load_that_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model("full").read_bytes()[:-1000])
    with pytest.raises(InvalidModelError):
        Llama(broken, verbose=True)
    capfd.readouterr()
    Model(tiny_model("full")).close()
    assert capfd.readouterr() == ("", "")


def test_pieces_of_a_line_become_one_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llama_py"):
        say(ggml_h.GGML_LOG_LEVEL_WARN, "a warn")
        say(ggml_h.GGML_LOG_LEVEL_CONT, "ing", " in pieces\n")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.INFO, "a warning in pieces")
    ]


def test_dots_of_progress_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llama_py"):
        say(ggml_h.GGML_LOG_LEVEL_INFO, ".", ".", "...\n")
    assert caplog.records == []


def test_errors_are_those_of_one_call() -> None:
    say(ggml_h.GGML_LOG_LEVEL_ERROR, "of an earlier call\n", "and its unfinished")
    with logs.ErrorLines() as outer:
        say(ggml_h.GGML_LOG_LEVEL_ERROR, "first\n")
        with logs.ErrorLines() as inner:
            say(ggml_h.GGML_LOG_LEVEL_ERROR, "of a call within\n")
        say(ggml_h.GGML_LOG_LEVEL_ERROR, "second\n")
    say(ggml_h.GGML_LOG_LEVEL_ERROR, "of a later call\n")
    assert (str(outer), str(inner)) == ("first; second", "of a call within")


def test_one_models_reason_is_not_in_anothers_error() -> None:
    """What was logged about one model, and asked for by nobody, is not why another one fails."""
    with Model(tiny_model("full")) as model:
        context = Context(model, ContextParams(n_ctx=64, n_threads=1))
        say(ggml_h.GGML_LOG_LEVEL_ERROR, "the reason of another model\n")
        with pytest.raises(StateError, match=r"a state of 0 bytes .*: (?!the reason)"):
            context.state_set(0, b"")


def test_the_list_of_errors_does_not_grow() -> None:
    with logs.ErrorLines() as lines:
        for number in range(1000):
            say(ggml_h.GGML_LOG_LEVEL_ERROR, f"error {number}\n")
    assert len(str(lines).split("; ")) == 12


def test_bytes_that_are_no_text_do_not_end_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llama_py"):
        logs._receive(ggml_h.GGML_LOG_LEVEL_WARN, b"\xff\xfe\n", None)
        logs._receive(ggml_h.GGML_LOG_LEVEL_WARN, None, None)
        logs._receive(99, b"an unknown level\n", None)
    assert "an unknown level" in caplog.text
