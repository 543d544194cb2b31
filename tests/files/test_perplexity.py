"""Perplexity and divergence are those of logits that a fresh context gives, in 64-bit numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from llama_py import Llama, demo_model_path
from llama_py.errors import InvalidModelError, ParameterError
from llama_py.tools.perplexity import kl_divergence, perplexity
from llama_py.tools.quantize import quantize
from tests.models import tiny_model
from tests.test_cli import run

TEXT = " ".join(f"{n} and {n * 7 % 13} are {n + n * 7 % 13}." for n in range(400))


def expected(path: str | Path, n_ctx: int, chunks: int) -> list[float]:
    """Negative logarithms of the counted tokens, one piece after another."""
    found = []
    with Llama(path, n_ctx=n_ctx, logits_all=True) as llm:
        tokens = llm.tokenize(TEXT.encode())
        for chunk in range(chunks):
            piece = tokens[chunk * n_ctx : (chunk + 1) * n_ctx]
            if llm.tokenize(b"")[:1] == [llm.token_bos()]:
                piece = [llm.token_bos(), *piece[1:]]
            llm.reset()
            llm.eval(piece)
            rows = np.asarray(llm.scores[:n_ctx], np.float64)
            for place in range(n_ctx // 2, n_ctx - 1):
                row = rows[place]
                total = row.max() + math.log(np.exp(row - row.max()).sum())
                following = tokens[chunk * n_ctx + place + 1]
                found.append(total - row[following])
    return found


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
@pytest.mark.parametrize("n_batch", [128, 32])
def test_it_is_that_of_fresh_contexts(kind: str, n_batch: int) -> None:
    path = tiny_model(kind)
    found = perplexity(path, TEXT, n_ctx=64, n_batch=n_batch, chunks=3)
    logs = expected(path, 64, 3)
    assert found.n_tokens == len(logs) == 3 * 31
    assert found.estimate.value == pytest.approx(math.exp(np.mean(logs)), rel=1e-4)
    assert found.so_far[0] == pytest.approx(math.exp(np.mean(logs[:31])), rel=1e-4)


def test_a_model_does_not_differ_from_itself(tmp_path: Path) -> None:
    base = tmp_path / "base"
    first = perplexity(tiny_model("full"), TEXT, n_ctx=128, chunks=4, base=base)
    same = kl_divergence(tiny_model("full"), base)
    assert same.perplexity.value == pytest.approx(first.estimate.value, rel=1e-5)
    assert same.base_perplexity.value == pytest.approx(first.estimate.value, rel=1e-3)
    assert abs(same.mean.value) < 1e-3
    assert same.same_top.value > 0.99
    quantize(tiny_model("full"), tmp_path / "q.gguf", "Q4_0")
    other = kl_divergence(tmp_path / "q.gguf", base)
    assert other.mean.value > 10 * abs(same.mean.value)
    assert "Same top p" in other.report()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="at least 1024 are needed"):
        perplexity(demo_model_path(), "short")
    with pytest.raises(ParameterError, match="at least 1, not -1"):
        perplexity(demo_model_path(), TEXT, chunks=-1)
    with pytest.raises(ParameterError, match="not a multiple"):
        perplexity(demo_model_path(), TEXT, n_ctx=512, n_batch=700)
    base = tmp_path / "base"
    perplexity(demo_model_path(), TEXT, n_ctx=128, chunks=2, base=base)
    with pytest.raises(ParameterError, match="tokens in its vocabulary"):
        kl_divergence(tiny_model("full"), base)
    whole = base.read_bytes()
    base.write_bytes(whole[:-100])
    with pytest.raises(InvalidModelError, match="is cut off"):
        kl_divergence(demo_model_path(), base)
    base.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidModelError, match="does not have the logits"):
        kl_divergence(demo_model_path(), base)


def test_the_commands(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    model, base = demo_model_path(), str(tmp_path / "base")
    done = run("perplexity", model, str(text), "-c", "128", "--chunks", "3", "--base", base)
    assert done.stdout.startswith("perplexity ")
    assert "Mean    KLD" in run("kl-divergence", model, base).stdout
