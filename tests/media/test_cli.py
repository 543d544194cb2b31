"""Pictures and sounds on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.media.pictures import chirp, disc, png, stripes, wav
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.test_cli import run

MODEL = ("-m", str(media_model("full")), "-c", "2048", "-n", "4", "--temp", "0")
SEES_AND_HEARS = ("--mmproj", str(tiny_projector("omni")))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "disc.png").write_bytes(png(disc()))
    (tmp_path / "chirp.wav").write_bytes(wav(chirp()))
    return tmp_path


def test_one_question_about_a_picture_and_a_sound(files: Path) -> None:
    shown = ("--image", str(files / "disc.png"), "--audio", str(files / "chirp.wav"))
    done = run("chat", *MODEL, *SEES_AND_HEARS, *shown, "--stats", "What is it?")
    assert done.returncode == 0, done.stderr
    plain = run("chat", *MODEL, *SEES_AND_HEARS, "--stats", "What is it?")
    assert evaluated(done.stderr) > evaluated(plain.stderr) + 16
    assert done.stdout != plain.stdout


def test_embed_writes_a_vector_for_each_picture(files: Path) -> None:
    picture = str(files / "disc.png")
    (files / "other.png").write_bytes(png(stripes()))
    model = ("-m", str(media_model("full")), *SEES_AND_HEARS)
    done = run("embed", *model, "--image", picture, "--image", str(files / "other.png"))
    assert done.returncode == 0, done.stderr
    vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines()]
    assert len(vectors) == 2
    assert vectors[0] != vectors[1]
    for arguments, words in (
        ((*model, "--image", str(files / "none.png")), "cannot be read"),
        ((*model, "--image", picture, "notes.txt"), "notes.txt is embedded in a call of its own"),
        ((*model[:2], "--mmproj", str(files / "none.gguf"), "--image", picture), "no projector"),
    ):
        done = run("embed", *arguments)
        assert done.returncode != 0
        assert words in done.stderr


def evaluated(text: str) -> int:
    return int(text.partition(" tokens reused, ")[2].partition(" ")[0])


def test_what_cannot_be_shown(files: Path) -> None:
    picture, sound = str(files / "disc.png"), str(files / "chirp.wav")
    (files / "text.txt").write_text("no picture")
    (files / "alone").mkdir()
    blind = str(shutil.copy(media_model("full"), files / "alone" / "model.gguf"))
    for arguments, words in (
        ((*MODEL, *SEES_AND_HEARS, "--image", str(files / "none.png")), "cannot be read"),
        ((*MODEL, *SEES_AND_HEARS, "--image", str(files / "text.txt")), "of no known format"),
        ((*MODEL, *SEES_AND_HEARS, "--image", sound), "should be a picture"),
        (("-m", blind, "--image", picture), "--mmproj FILE"),
        ((*MODEL, "--mmproj", str(files / "none.gguf")), "there is no projector"),
    ):
        done = run("chat", *arguments, "What is it?")
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_pictures_in_a_conversation(files: Path) -> None:
    lines = (
        "/help",
        "/image",
        "/image no.png",
        f"/image {files / 'disc.png'}",
        "What is it?",
        "/info",
        f"/audio {files / 'chirp.wav'}",
        "And this?",
        f"/save {files / 'talk.json'}",
        f"/load {files / 'talk.json'}",
        "Really?",
        "/info",
    )
    done = run("chat", "-i", *MODEL, *SEES_AND_HEARS, given="\n".join(lines))
    assert done.returncode == 0
    assert "/image FILE     show a picture with the next message" in done.stdout
    said = done.stderr.splitlines()
    assert said[0] == "(say which: /image FILE)"
    assert said[1].startswith("(no.png cannot be read")
    assert said[2] == f"({files / 'disc.png'} goes with the next message, as 16 tokens)"
    assert "goes with the next message, as 12 tokens" in done.stderr
    assert not said[-1].startswith("(0 tokens"), "what was loaded is still in memory"
    messages = json.loads((files / "talk.json").read_text())["messages"]
    assert [part["type"] for part in messages[0]["content"]] == ["image_url", "text"]
    assert [part["type"] for part in messages[2]["content"]] == ["input_audio", "text"]


def test_inspect_tells_of_projectors(tmp_path: Path) -> None:
    model, projector = tmp_path / "model.gguf", tmp_path / "mmproj-model.gguf"
    shutil.copy(media_model("full"), model)
    assert "projector" not in run("inspect", str(model)).stdout
    shutil.copy(tiny_projector("omni"), projector)
    line = "projector       mmproj-model.gguf, sees (mlp) and hears (gemma4ua)"
    assert f"\n{line}\n" in run("inspect", str(model)).stdout
    shutil.copy(tiny_projector("gemma3", 96), tmp_path / "mmproj-other.gguf")
    shown = run("inspect", str(model)).stdout
    assert f"\n{line}\n" in shown
    assert "mmproj-other.gguf, sees (gemma3); not used by itself: of another width" in shown
    shutil.copy(tiny_projector("mlp"), tmp_path / "mmproj-third.gguf")
    report = json.loads(run("inspect", "--json", str(model)).stdout)
    reasons = [each["unused"] for each in report["projectors"]]
    assert reasons[0] == reasons[2] == "there are several; say which with mmproj="


def test_inspect_of_a_projector(tmp_path: Path) -> None:
    path = str(tiny_projector("omni"))
    shown = run("inspect", path).stdout
    assert "a projector, for pictures and sounds (mmproj=)" in shown
    assert "sees (mlp) and hears (gemma4ua)" in shown
    assert "pictures        56 x 56 pixels, in patches of 14" in shown
    report = json.loads(run("inspect", "--json", path).stdout)
    assert report["kinds"] == {"vision": "mlp", "audio": "gemma4ua"}
    assert report["widths"] == [128]
