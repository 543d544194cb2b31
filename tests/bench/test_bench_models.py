"""The generated benchmark models are what they claim to be, and the same each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from benchmarks import models, quantizing, vocabulary
from benchmarks.models import SHAPES, main, write_model
from benchmarks.vocabulary import SPECIAL_TOKENS, make_vocabulary
from llama_py import DraftModel, Llama, LlamaError, Speculative
from llama_py.gguf.check import check_model_file

SMALL_TEXT = "def main(self, value): return value + 1\nThe quick brown fox jumps over it.\n" * 3


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on a few lines; the standard library takes ten seconds."""

    def corpus() -> Iterator[str]:
        yield SMALL_TEXT

    monkeypatch.setattr(vocabulary, "_corpus", corpus)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only the first layers of each shape, and no more than 1,024 columns."""
    for name, shape in SHAPES.items():
        n_embd, n_ff = min(shape.n_embd, 1024), min(shape.n_ff, 4608)
        small = dataclasses.replace(shape, n_layer=3, n_embd=n_embd, n_ff=n_ff)
        monkeypatch.setitem(models.SHAPES, name, small)


@pytest.mark.parametrize("size", [300, 350, 600])
def test_a_vocabulary_has_the_size_that_was_asked_for(size: int) -> None:
    made = make_vocabulary(size)
    assert len(made.tokens) == len(set(made.tokens)) == size
    assert tuple(made.tokens[made.first_special :]) == SPECIAL_TOKENS
    assert len(made.merges) == size - len(SPECIAL_TOKENS) - 256


def test_every_merge_makes_a_token_of_tokens() -> None:
    made = make_vocabulary(600)
    known = set(made.tokens)
    for merge in made.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_a_vocabulary_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="263"):
        make_vocabulary(100)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_each_shape_is_a_model_that_works(shape: str, tmp_path: Path) -> None:
    from llama_py import Llama

    path = tmp_path / "model.gguf"
    write_model(path, shape, vocab=600)
    info = check_model_file(path)
    assert info.architecture == SHAPES[shape].architecture
    assert info.n_vocab == 600
    assert info.tensor_types.keys() == {"F32", "Q8_0"}
    with Llama(str(path), n_ctx=64, n_threads=1, verbose=False) as llm:
        response = llm.create_completion("The quick", max_tokens=2, temperature=0.0)
    assert response["choices"][0]["finish_reason"] in ("length", "stop")


@pytest.mark.usefixtures("shallow")
def test_a_seed_gives_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_model(path, "lfm2-350m", vocab=300, quant="q4_0", seed=seed)
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert first != other


@pytest.mark.usefixtures("shallow")
def test_weights_are_spread_as_they_should_be(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, "smollm2-135m", quant="f32", vocab=300)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    assert tensors["blk.0.ffn_down.weight"].std() == pytest.approx(1536**-0.5, rel=0.01)
    assert (tensors["blk.0.attn_norm.weight"] == 1).all()


@pytest.mark.parametrize(
    ("quant", "kinds"),
    [
        ("q4_k_m", {"F32", "Q4_K", "Q6_K"}),
        ("q5_k_m", {"F32", "Q5_K", "Q6_K"}),
        ("q6_k", {"F32", "Q6_K"}),
        ("iq4_xs", {"F32", "IQ4_XS"}),
    ],
)
def test_mixtures_are_made_by_llama_cpp(
    quant: str, kinds: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(SHAPES["llama-3b-half"], n_layer=3, n_embd=256, n_head=2, n_ff=512)
    monkeypatch.setitem(models.SHAPES, "llama-3b-half", dataclasses.replace(small, n_head_kv=1))
    path = tmp_path / "model.gguf"
    write_model(path, "llama-3b-half", quant=quant, vocab=300)
    assert kinds <= check_model_file(path).tensor_types.keys() <= kinds | {"Q5_K", "Q6_K", "Q8_0"}
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
    with Llama(str(path), n_ctx=64, n_threads=1, verbose=False) as llm:
        response = llm.create_completion("The quick", max_tokens=2, temperature=0.0)
    assert response["choices"][0]["finish_reason"] in ("length", "stop")


@pytest.mark.usefixtures("shallow")
def test_what_cannot_be_quantized_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quantizing.MIXTURES, "q4_k_m", -1)
    with pytest.raises(LlamaError, match="q4_k_m"):
        write_model(tmp_path / "model.gguf", "smollm2-17m", quant="q4_k_m", vocab=300)
    assert not [*tmp_path.iterdir()]


def test_parameters_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gpt-5"):
        write_model(tmp_path / "model.gguf", "gpt-5")


@pytest.mark.usefixtures("shallow")
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    assert main(["--shape", "mamba2-130m", "--vocab", "300", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert check_model_file(path).architecture == "mamba2"
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_help_names_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert all(shape in said for shape in SHAPES)


@pytest.mark.usefixtures("shallow")
def test_models_that_repeat_themselves_agree(tmp_path: Path) -> None:
    """What a draft model of another size says is what the model says: the token before."""
    path = tmp_path / "repeats.gguf"
    write_model(path, "smollm2-17m", vocab=350, repeats=True)
    speculative = Speculative((DraftModel(str(path)),), adaptive=False)
    with Llama(str(path), n_ctx=128, speculative=speculative) as llm:
        llm.create_completion([5, 6, 300], max_tokens=12, temperature=0, ignore_eos=True)
        assert llm.runtime.last.record.generated == [300] * 12
        assert llm.metrics["accepted"] == llm.metrics["drafted"] > 0
