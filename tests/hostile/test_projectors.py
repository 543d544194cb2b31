"""Damaged projectors end the process that tries them, and not the one that asked for them."""

from __future__ import annotations

import math
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llama_py.core import trial_load
from llama_py.core.model import Model
from llama_py.core.projector import Projector
from llama_py.errors import InvalidModelError, LlamaError
from llama_py.params import ModelParams
from tests.core.gguf_mutations import MUTATIONS, Gguf, mutate, parse
from tests.core.test_gguf_check import put
from tests.media.projectors import KINDS, tiny_projector
from tests.models import tiny_model

Change = Callable[[Gguf], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What was tried is remembered elsewhere, and forgotten."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(folder))
    return folder / "rehearsed"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(tiny_model("full"), ModelParams())


def without(name: str) -> Change:
    def change(file: Gguf) -> None:
        kept = [tensor for tensor in file.tensors if tensor.name.decode() != name]
        assert len(kept) == len(file.tensors) - 1
        sizes = [4 * _count(tensor.dims) for tensor in file.tensors]
        data, at = bytearray(), 0
        for tensor, size in zip(file.tensors, sizes, strict=True):
            if tensor in kept:
                raw = file.data[tensor.offset : tensor.offset + size]
                tensor.offset = at
                data += raw + bytes(-len(raw) % 32)
                at = len(data)
        file.tensors, file.data = kept, data

    return change


def _count(dims: list[int]) -> int:
    out = 1
    for each in dims:
        out *= each
    return out


def number(key: str, value: int) -> Change:
    return lambda file: put(file, key, 4, struct.pack("<I", value))


#: Files that end a process which uses them; what is done to a projector of the first kind.
FATAL: dict[str, Change] = {
    "no patches": without("v.patch_embd.weight"),
    "no positions": without("v.position_embd.weight"),
    "no keys": without("v.blk.0.attn_k.weight"),
    "no second layer": without("mm.2.weight"),
    "no heads": number("clip.vision.attention.head_count", 0),
    "patches of two": number("clip.vision.patch_size", 2),
    "a wide model": number("clip.vision.embedding_length", 65535),
}


def damaged(change: Change, folder: Path, kind: str = "mlp") -> Path:
    file = parse(tiny_projector(kind).read_bytes())
    change(file)
    path = folder / "mmproj.gguf"
    path.write_bytes(file.encode())
    return path


@pytest.mark.parametrize("case", FATAL)
def test_a_projector_that_ends_the_process_is_refused(
    case: str, model: Model, tmp_path: Path
) -> None:
    path = damaged(FATAL[case], tmp_path)
    with pytest.raises(InvalidModelError, match=r"the projector .*mmproj.gguf cannot be used"):
        Projector(model, path)


def test_weights_that_are_not_finite_are_named(model: Model, tmp_path: Path) -> None:
    def poison(file: Gguf) -> None:
        place = next(each for each in file.tensors if each.name == b"mm.2.weight").offset
        file.data[place + 8 : place + 12] = struct.pack("<f", math.nan)

    path = damaged(poison, tmp_path)
    with pytest.raises(InvalidModelError, match=r"mmproj.gguf .*'mm.2.weight' .*number 2 of .*nan"):
        Projector(model, path)


def test_vectors_that_are_not_finite_are_an_error(model: Model, tmp_path: Path) -> None:
    def enlarge(file: Gguf) -> None:
        for name in (b"mm.0.weight", b"mm.2.weight"):
            place = next(each for each in file.tensors if each.name == name).offset
            file.data[place : place + 256] = struct.pack("<f", 3e38) * 64

    path = damaged(enlarge, tmp_path)
    with pytest.raises(InvalidModelError, match=r"mmproj.gguf .* vectors that are NaN or infinite"):
        Projector(model, path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_one_is_tried_once(
    kind: str, model: Model, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    run = trial_load._run

    def noted(command: Sequence[str]) -> str:
        tried.append(command)
        return run(command)

    monkeypatch.setattr(trial_load, "_run", noted)
    for _ in range(2):
        Projector(model, tiny_projector(kind)).close()
    assert len(tried) == 1
    assert len([*cache.iterdir()]) == 1


def test_a_trial_without_an_end_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_load, "_LONGEST", 0.01)
    with pytest.raises(InvalidModelError, match="does not end within"):
        Projector(model, tiny_projector("mlp"))


def test_a_cache_that_cannot_be_written_is_no_error(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", os.fspath(tmp_path / "file"))
    with Projector(model, tiny_projector("mlp")) as projector:
        assert not projector.closed
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def outcomes(model: Model, seeds: range, folder: Path) -> Counter[str]:
    """Of files drawn at random, each loaded where a death would end the tests."""
    found: Counter[str] = Counter()
    for seed in seeds:
        kind = KINDS[random.Random(seed).randrange(len(KINDS))]
        path = folder / "mmproj.gguf"
        try:
            path.write_bytes(mutate(tiny_projector(kind), seed)[1])
        except IndexError:  # it has no array to be changed
            continue
        try:
            with Projector(model, path) as projector:
                found["sees" if projector.sees else "hears"] += 1
        except LlamaError as error:
            how = "died" if "signal" in str(error) else type(error).__name__
            found[how] += 1
    return found


def test_damaged_projectors_do_not_end_the_process(model: Model, tmp_path: Path) -> None:
    found = outcomes(model, range(2 * len(MUTATIONS)), tmp_path)
    assert {*found} <= {"sees", "hears", "died", "InvalidModelError"}
    assert found["InvalidModelError"] > len(MUTATIONS) // 2


@pytest.mark.long
def test_many_damaged_projectors_do_not_end_the_process(model: Model, tmp_path: Path) -> None:
    found = outcomes(model, range(100, 600), tmp_path)
    assert {*found} <= {"sees", "hears", "died", "InvalidModelError"}
    print(found)
