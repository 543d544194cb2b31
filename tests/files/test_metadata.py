"""Parts, edits and differences: tensors keep their bytes, and a failure changes nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py import Llama, demo_model_path
from llama_py.errors import InvalidModelError, LlamaError, ParameterError
from llama_py.gguf.check import whole_file
from llama_py.tools.edit import diff, edit
from llama_py.tools.parts import merge, split
from tests.models import tiny_model
from tests.test_cli import run

DEMO = Path(demo_model_path())


def content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("max_tensors", "max_bytes"), [(7, None), (128, 400_000), (128, None)])
def test_parts_are_a_model_and_merge_to_the_same_bytes(
    tmp_path: Path, max_tensors: int, max_bytes: int | None
) -> None:
    parts = split(DEMO, tmp_path / "demo", max_tensors=max_tensors, max_bytes=max_bytes)
    assert [each.name for each in parts] == [
        f"demo-{n:05}-of-{len(parts):05}.gguf" for n in range(1, len(parts) + 1)
    ]
    assert len(parts) > 1 or max_tensors == 128
    with Llama(parts[0], n_ctx=256) as llm:
        reply = llm.create_chat_completion([{"role": "user", "content": "What is 2 + 3?"}])
        assert reply["choices"][0]["message"]["content"] == "2 + 3 = 5."
    merge(parts[0], tmp_path / "whole.gguf")
    assert content(tmp_path / "whole.gguf") == content(DEMO)


@pytest.mark.parametrize("alignment", [8, 64, 1024])
def test_parts_of_a_file_with_another_alignment(tmp_path: Path, alignment: int) -> None:
    source = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_custom_alignment(alignment)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.arange(33, dtype=np.float32) + number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = split(source, tmp_path / "part", max_tensors=2)
    second = gguf.GGUFReader(parts[1]).tensors
    assert [float(each.data[0]) for each in second] == [2.0, 3.0]
    merge(parts[0], tmp_path / "whole.gguf")
    assert content(tmp_path / "whole.gguf") == content(source)


def test_a_split_that_fails_leaves_no_parts(tmp_path: Path) -> None:
    calls: list[int] = []

    def fail(count: int) -> None:
        calls.append(count)
        if len(calls) > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(DEMO, tmp_path / "p", max_tensors=7, progress=fail)
    assert not [*tmp_path.iterdir()]
    assert split(DEMO, tmp_path / "p", max_tensors=7)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    parts = split(DEMO, tmp_path / "a", max_tensors=7)
    other = split(Path(tiny_model("full")), tmp_path / "b", max_tensors=7)
    parts[1].write_bytes(other[1].read_bytes())
    with pytest.raises(InvalidModelError, match="not parts of one model"):
        merge(parts[0], tmp_path / "x.gguf")
    parts[1].unlink()
    with pytest.raises(LlamaError, match="00002-of"):
        merge(parts[0], tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(ParameterError, match="is one of several parts"):
        split(parts[0], tmp_path / "c")
    with pytest.raises(ParameterError, match="exists already"):
        split(DEMO, tmp_path / "a", max_tensors=7)
    with pytest.raises(ParameterError, match="at least 1, not 0"):
        split(DEMO, tmp_path / "a", max_tensors=0)
    with pytest.raises(ParameterError, match="not a first part"):
        merge(parts[2], tmp_path / "x.gguf")


def test_an_edit_keeps_every_tensor(tmp_path: Path) -> None:
    target = tmp_path / "edited.gguf"
    edit(
        DEMO,
        target,
        set_values={
            "general.name": "Another",
            "tokenizer.chat_template": "{{ messages[0].content }}",
            "own.number": ("u16", 7),
            "own.list": ("str", ["a", "ü"]),
        },
        remove=["general.description"] if "general.description" in keys(DEMO) else [],
    )
    before, after = whole_file(DEMO), whole_file(target)
    assert after.scalars["general.name"] == "Another"
    assert (after.types["own.number"], after.scalars["own.number"]) == ("u16", 7)
    assert after.arrays["own.list"].count == 2
    assert [(t.name, t.type, t.shape) for t in before.tensors] == [
        (t.name, t.type, t.shape) for t in after.tensors
    ]
    names = {each.name for each in diff(DEMO, target)}
    assert not names & {each.name for each in before.tensors}
    assert {"general.name", "own.number", "own.list"} <= names
    with Llama(target, n_ctx=256) as llm:
        assert llm.metadata["general.name"] == "Another"


def keys(path: Path) -> set[str]:
    return {*whole_file(path).places}


@pytest.mark.parametrize(
    ("changes", "removed", "words"),
    [
        ({"general.name": 7}, [], "not a value of the type str"),
        ({"llama.context_length": "long"}, [], "not a value of the type u32"),
        ({"new": ("u8", 300)}, [], "not a value of the type u8"),
        ({"new": ("u9", 3)}, [], "'u9' is not a type"),
        ({"tokenizer.ggml.tokens": "x"}, [], "is a list"),
        ({"general.alignment": 64}, [], "how the file is laid out"),
        ({"new": None}, [], "None is not a value"),
        ({"new": "\ud800"}, [], "half of a character"),
        ({"new": {"a": 1}}, [], "is not a value"),
        ({"general.name": ["a"]}, [], "a list needs a type"),
        ({"new": 1e300}, [], "not a value of the type f32"),
        ({}, ["nothing"], "has no key 'nothing'"),
    ],
)
def test_a_wrong_edit_changes_nothing(
    tmp_path: Path, changes: dict[str, object], removed: list[str], words: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DEMO.read_bytes())
    with pytest.raises(ParameterError, match=words):
        edit(path, set_values=changes, remove=removed)  # type: ignore[arg-type]
    assert content(path) == content(DEMO)
    assert os.listdir(tmp_path) == ["m.gguf"]  # noqa: PTH208


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    blob, link = tmp_path / "blob", tmp_path / "m.gguf"
    blob.write_bytes(DEMO.read_bytes())
    link.symlink_to("blob")
    with pytest.raises(ParameterError, match="is a link to"):
        edit(link, set_values={"general.name": "x"})
    assert link.is_symlink()
    assert content(blob) == content(DEMO)
    edit(link, tmp_path / "new.gguf", set_values={"general.name": "x"})
    assert whole_file(tmp_path / "new.gguf").scalars["general.name"] == "x"


def test_a_target_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="is a folder"):
        edit(DEMO, tmp_path, set_values={"general.name": "x"})
    if sys.platform == "linux":
        with pytest.raises(OSError, match=r"'/proc/x\.gguf'"):
            edit(DEMO, Path("/proc/x.gguf"), set_values={"general.name": "x"})


def test_differences_are_named(tmp_path: Path) -> None:
    assert diff(DEMO, DEMO) == []
    changed = bytearray(DEMO.read_bytes())
    changed[-1] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(changed)
    [only] = diff(DEMO, other)
    assert (only.left, only.right) == ("its bytes", "other bytes")
    assert diff(DEMO, other, contents=False) == []
    done = run("diff", str(DEMO), str(other))
    assert (done.returncode, done.stdout) == (1, f"{only.name}: its bytes | other bytes\n")


def test_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DEMO.read_bytes())
    done = run("edit", str(path), "--set", "general.name=My model", "--set", "own.x:u8=3")
    assert run("edit", str(path), "--set", 'general.name=["a"]').returncode == 0
    assert run("edit", str(path), "--set", "general.name=[x").returncode == 0
    assert whole_file(path).scalars["general.name"] == "[x"
    assert (done.returncode, done.stdout.strip()) == (0, str(path))
    assert whole_file(path).scalars["own.x"] == 3
    parts = run("split", str(path), str(tmp_path / "p"), "--max-size", "500K").stdout.split()
    assert len(parts) > 2
    assert run("merge", parts[0], str(tmp_path / "w.gguf")).returncode == 0
    assert content(tmp_path / "w.gguf") == content(path)
    assert run("edit", str(path)).returncode == 2


SLOWLY = """
import sys, time
from pathlib import Path
from llama_py.tools.edit import edit

print("begins", flush=True)
edit(Path(sys.argv[1]), set_values={"general.name": "x"}, progress=lambda _: time.sleep(0.2))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_an_edit_that_is_killed_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DEMO.read_bytes())
    command = [sys.executable, "-c", SLOWLY, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.3)
        child.send_signal(signal.SIGKILL)
    assert content(path) == content(DEMO)
    assert os.listdir(tmp_path) == ["m.gguf"]  # noqa: PTH208


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    data = Path(tiny_model("full")).read_bytes()
    head = whole_file(Path(tiny_model("full"))).data_offset
    path, out = tmp_path / "m.gguf", tmp_path / "out.gguf"
    refused = 0
    for _ in range(100):
        damaged = bytearray(data)
        for place in dice.integers(4, head, 3):
            damaged[place] = dice.integers(256)
        path.write_bytes(
            damaged[: int(dice.integers(20, len(data)))] if dice.random() < 0.3 else damaged
        )
        try:
            edit(path, out, set_values={"general.name": "x"})
        except LlamaError as error:
            problem = str(error)
        else:
            problem = ""
        if problem:
            refused += 1
            assert str(path) in problem
            assert [*tmp_path.iterdir()] == [path]
            with pytest.raises(LlamaError):
                split(path, tmp_path / "p", max_tensors=5)
            continue
        assert {each.name for each in diff(path, out)} <= {"general.name"}
        merge(split(path, tmp_path / "p", max_tensors=5)[0], tmp_path / "whole")
        assert diff(path, tmp_path / "whole") == []
        for made in (out, tmp_path / "whole", *tmp_path.glob("p-*")):
            made.unlink()
    assert 20 < refused < 100
