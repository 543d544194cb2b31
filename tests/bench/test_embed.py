"""``bench embed`` measures, and says so when a vector is wrong."""

from __future__ import annotations

import json

import pytest

from benchmarks import cli, embed
from benchmarks.embed_model import minilm, mixed_texts


@pytest.mark.slow
def test_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(minilm(layers=1, tokens=1000))
    small = "--texts 8 --runs 1 --clients 2 --inputs 2000 --threads 1 --no-llama-server --json"
    small += " --chat-model demo"
    assert cli.main(["embed", "--model", model, *small.split()]) == 0
    report = json.loads(capsys.readouterr().out)
    titles = [table["title"] for table in report["tables"]]
    assert len(titles) == 4
    assert all(row["median"] > 0 for table in report["tables"][:2] for row in table["rows"])
    assert {target["name"] for target in report["targets"]} == {
        "MiB that it grew by",
        "generate: times as long as alone",
        "embed: times as long as alone",
    }


def test_texts_have_all_lengths() -> None:
    lengths = [len(text.split()) + 2 for text in mixed_texts(400)]
    assert min(lengths) < 12
    assert 400 < max(lengths) <= 512
    assert mixed_texts(3) == mixed_texts(3)
    assert embed._PARTS == ("process", "http", "memory", "beside")
