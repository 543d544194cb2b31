"""``llama-py tune``: what a profile does, and that a wrong one is never written or used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.api import tuning
from llama_py.api.tuning import Contest, tune
from llama_py.cli import main
from llama_py.core.host import profiles
from llama_py.errors import ParameterError, TuningError
from llama_py.gguf.check import check_model_file
from llama_py.params import ContextParams

MODEL = demo_model_path()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(profiles.VARIABLE, raising=False)
    return tmp_path / "profiles"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Measurements of milliseconds, on a machine that counts as quiet whatever it does."""
    for name, value in {
        "_PROMPT_SECONDS": 0.02,
        "_REPLY_SECONDS": 0.01,
        "_FILL_SECONDS": 0.3,
        "_QUIET": float("inf"),
        "_OTHERS": float("inf"),
        "_ROUNDS": 1,
        "_DEEP": 256,
        "_UBATCHES": (128, 512),
    }.items():
        monkeypatch.setattr(tuning, name, value)
    return monkeypatch


def written(folder: Path) -> list[Path]:
    return [*folder.glob("*")] if folder.exists() else []


def keep(**values: bool | int) -> profiles.Profile:
    """A profile of the bundled model on this machine."""
    return profiles.write(profiles.key_of(check_model_file(MODEL)), values, {})


# -- which setting wins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "winner"),
    [
        ({"on": [1.0, 1.0, 1.0], "off": [0.8, 0.9, 0.8]}, "off"),
        ({"on": [1.0, 1.0, 1.0], "off": [0.5, 0.5, 1.0]}, "on"),  # not in every round
        ({"on": [1.0, 1.0, 1.0], "off": [0.97, 0.97, 0.97]}, "on"),  # by too little
        ({"on": [1.0, 1.0], "off": [0.9, 0.9], "x": [0.8, 0.8]}, "x"),
        ({"on": [1.0, 1.0]}, "on"),
    ],
)
def test_the_default_stays_unless_another_setting_always_wins(
    rounds: dict[str, list[float]], winner: str
) -> None:
    assert Contest("flash_attn", "on", rounds).winner == winner


def test_rounds_that_differ_say_nothing() -> None:
    assert not Contest("n_ubatch", "1", {"1": [1.0, 1.1], "2": [2.0, 2.1]}).noisy
    assert Contest("n_ubatch", "1", {"1": [1.0, 1.1], "2": [2.0, 3.0]}).noisy
    assert Contest("n_ubatch", "1", {"1": [1.0, 1.0]}, busy=1.0).noisy


# -- measuring -------------------------------------------------------------------------------------


def test_what_wins_is_kept_and_used(
    brief: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = property(
        lambda contest: next(each for each in contest.rounds if each != contest.default)
    )
    brief.setattr(Contest, "winner", other)
    assert main(["tune", "--json", "--model", MODEL]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["values"]
    assert [str(path) for path in written(folder)] == [report["profile"]]
    assert main(["inspect", MODEL]) == 0
    shown = capsys.readouterr().out
    with Llama(MODEL) as llm:
        for name, value in report["values"].items():
            assert getattr(llm.runtime.loaded.context.params, name) == value
            assert f"{name} = {value} (profile of " in shown
    assert main(["tune", "--forget", MODEL]) == 0
    assert "removed" in capsys.readouterr().out
    assert written(folder) == []


def test_a_table_says_what_was_measured(
    brief: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brief.setattr(tuning, "_WINS", 0.0)
    assert main(["tune", "--dry-run", MODEL]) == 0
    shown = capsys.readouterr().out
    assert "flash attention (flash_attn)" in shown
    assert "changed: nothing" in shown
    assert written(folder) == []


def test_a_machine_that_is_busy_is_not_measured(brief: pytest.MonkeyPatch, folder: Path) -> None:
    brief.setattr(tuning, "_QUIET", 0.0)
    brief.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(TuningError, match=r"too busy .* times as long"):
        tune(MODEL)
    assert written(folder) == []


def test_one_noisy_contest_is_repeated(brief: pytest.MonkeyPatch) -> None:
    noisy = iter([True, False])
    brief.setattr(Contest, "noisy", property(lambda contest: next(noisy, False)))
    brief.setattr("time.sleep", lambda seconds: None)
    assert tune(MODEL, keep=False).contests


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_it_keeps_nothing(
    brief: pytest.MonkeyPatch, folder: Path, error: type[BaseException]
) -> None:
    old = keep(n_ubatch=256)

    def interrupt(done: float) -> None:
        if done > 0.3:
            raise error

    with pytest.raises(error):
        tune(MODEL, progress=interrupt)
    assert written(folder) == [old.path]
    assert profiles.find(check_model_file(MODEL)) == old


def test_too_little_time_keeps_nothing(brief: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(TuningError, match="not enough"):
        tune(MODEL, seconds=0.01)
    assert written(folder) == []
    with pytest.raises(ParameterError, match="seconds=0"):
        tune(MODEL, seconds=0)


def test_two_at_once(brief: pytest.MonkeyPatch, folder: Path) -> None:
    pytest.importorskip("fcntl")
    with tuning._alone(), pytest.raises(TuningError, match="another process"):
        tune(MODEL)
    assert written(folder) == []
    assert tune(MODEL).profile is not None, "the other one has ended"


def test_one_cpu_of_a_quota(brief: pytest.MonkeyPatch) -> None:
    """No threads are tried that the quota does not pay for; others do not use what was found."""
    for module in (tuning, profiles):
        brief.setattr(module, "usable_cores", lambda: 1)
    found = tune(MODEL)
    assert {contest.name for contest in found.contests} <= {"flash_attn", "n_ubatch"}
    info = check_model_file(MODEL)
    assert profiles.find(info) is not None
    brief.setattr(profiles, "usable_cores", lambda: 8)
    assert profiles.find(info) is None


def test_cores_that_change_meanwhile(brief: pytest.MonkeyPatch, folder: Path) -> None:
    cores = iter([2, 3])
    brief.setattr(profiles, "usable_cores", lambda: next(cores))
    with pytest.raises(TuningError, match="changed"):
        tune(MODEL)
    assert written(folder) == []


# -- profiles --------------------------------------------------------------------------------------


def test_what_is_given_takes_precedence() -> None:
    keep(flash_attn=False, n_threads=2, n_threads_batch=2, n_ubatch=64)
    with Llama(MODEL, n_ctx=256, flash_attn="auto", n_threads=1) as llm:
        params = llm.runtime.loaded.context.params
        assert (params.flash_attn, params.n_threads, params.n_threads_batch) == (None, 1, 1)
        assert params.n_ubatch == 64
        assert not llm.runtime.loaded.context.threads_may_change
    with Llama(MODEL, n_ctx=256) as llm:
        assert llm.runtime.loaded.context.params.flash_attn is False
        assert llm.runtime.loaded.context.params.n_threads == 2
        assert llm.runtime.loaded.context.threads_may_change


def test_cells_of_other_types_were_not_measured() -> None:
    found = keep(flash_attn=False)
    params, _ = profiles.apply(ContextParams(type_v=8), {"type_v"}, found)
    assert params.flash_attn is None


def test_the_environment_can_turn_profiles_off(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(n_ubatch=64)
    monkeypatch.setenv(profiles.VARIABLE, "off")
    assert profiles.find(check_model_file(MODEL)) is None


def spoiled(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return spoil


def valued(values: Any) -> Callable[[Path], object]:
    """Other values, with a digest that fits."""
    return spoiled(lambda content: content.update(values=values, digest=profiles._digest(values)))


SPOILED: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_text(path.read_text()[:-9]),
    "empty": lambda path: path.write_text(""),
    "no JSON": lambda path: path.write_text("{]"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda path: path.write_text("[" * 60000),
    "long": lambda path: path.write_text(path.read_text() + " " * 100_000),
    "a list": lambda path: path.write_text("[]"),
    "another CPU": spoiled(lambda content: content["key"].update(cpu="another")),
    "another build": spoiled(lambda content: content["key"].update(build="another")),
    "other values": spoiled(lambda content: content["values"].update(n_ubatch=128)),
    "unknown": valued({"n_gpu_layers": 1}),
    "too large": valued({"n_threads": 100_000}),
    "too small": valued({"n_ubatch": 0}),
    "a text": valued({"flash_attn": "on"}),
    "a truth that is a number": valued({"n_threads": True}),
    "no values": valued(None),
    "no date": spoiled(lambda content: content.pop("made")),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_profile_that_is_damaged_is_absent(name: str) -> None:
    found = keep(n_ubatch=64)
    info = check_model_file(MODEL)
    assert profiles.find(info) == found
    SPOILED[name](found.path)
    assert profiles.find(info) is None


def test_a_folder_in_its_place(folder: Path) -> None:
    info = check_model_file(MODEL)
    profiles.path_of(profiles.key_of(info)).mkdir(parents=True)
    assert profiles.find(info) is None
    with pytest.raises(OSError, match=r"\.json"):
        keep(n_ubatch=64)
    assert len(written(folder)) == 1, "nothing is left of what could not be written"


def test_who_reads_meanwhile_sees_a_whole_profile() -> None:
    info, wrong = check_model_file(MODEL), list[Any]()
    keep(n_ubatch=64)
    key, stop = profiles.key_of(info), threading.Event()

    def write() -> None:
        for size in range(64, 164):
            profiles.write(key, {"n_ubatch": size}, {"padding": "x" * 20_000})

    def read() -> None:
        while not stop.is_set():
            found = profiles.find(info)
            if found is None or not 64 <= found.values["n_ubatch"] < 164:
                wrong.append(found)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(2)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == []
