"""Vectors of pictures and sounds are those that libmtmd's own helper leads to."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncEmbedder, Audio, Embedder, Image, Llama
from llama_py.errors import InputTooLongError, MediaError, ParameterError, ParameterTypeError
from tests.embeddings.models import encoder
from tests.media import pictures
from tests.media.oracle import MediaOracle, Part
from tests.media.projectors import tiny_projector
from tests.media.test_exact import CHIRP, DISC, EXACT, PAIRS, STRIPES, TONE, WIDE
from tests.media.text_models import media_model
from tests.memory.oracle import nmse
from tests.server.serving import serving, tiny_settings

INPUTS: list[list[Part]] = [
    ["What is ", DISC, " this?"],
    [DISC, "and", STRIPES, "compare"],
    [WIDE, "the end"],
    ["a text alone"],
]


def given(parts: list[Part]) -> Any:
    """An input as programs give it."""
    return {"content": [shown(part) for part in parts]}


def shown(part: Part) -> Any:
    if isinstance(part, str):
        return part
    return Image(part) if part.dtype == np.uint8 else Audio(part, 16000)


def embedder(kind: str, projector: str, **options: Any) -> Embedder:
    return Embedder(
        media_model(kind), mmproj=tiny_projector(projector), n_threads=1, pooling="last", **options
    )


@pytest.fixture(scope="module")
def seeing() -> Iterator[Embedder]:
    with embedder("full", "mlp") as made:
        yield made


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_vectors_of_pictures_are_those_of_the_helper(kind: str, projector: str) -> None:
    with (
        embedder(kind, projector) as made,
        MediaOracle(
            media_model(kind), tiny_projector(projector), embeds=True, add_special=True
        ) as oracle,
    ):
        found = made.embed([given(parts) for parts in INPUTS], normalize=False)
        for parts, vector in zip(INPUTS, found, strict=True):
            assert nmse(vector, oracle.last_vector(parts)) <= EXACT
        # One after the other, as well as together; and another picture is another vector.
        again = [made.embed(given(parts), normalize=False) for parts in INPUTS]
        assert nmse(np.concatenate(again), np.concatenate([*found])) <= EXACT
        other = made.embed(given(["What is ", STRIPES, " this?"]), normalize=False)
        assert nmse(other, found[0]) > 1e-4


def test_vectors_of_sounds_are_those_of_the_helper() -> None:
    with (
        embedder("full", "omni") as made,
        MediaOracle(
            media_model("full"), tiny_projector("omni"), embeds=True, add_special=True
        ) as oracle,
    ):
        asked: list[list[Part]] = [["Listen: ", TONE, " end"], [DISC, "and", CHIRP, "end"]]
        for parts in asked:
            found = made.embed(given(parts), normalize=False)
            assert nmse(found, oracle.last_vector(parts)) <= EXACT


def test_a_picture_longer_than_a_step_is_embedded_piece_by_piece() -> None:
    path, projector = media_model("full"), tiny_projector("mlp_tiles")
    with (
        Embedder(path, mmproj=projector, n_threads=1, pooling="last", n_ubatch=8) as made,
        MediaOracle(path, projector, embeds=True, add_special=True) as oracle,
    ):
        parts: list[Part] = ["What is ", WIDE, " this?"]
        found = made.embed(given(parts), normalize=False)
        assert nmse(found, oracle.last_vector(parts)) <= EXACT


def test_pictures_and_texts_in_one_call(seeing: Embedder) -> None:
    """Every input at its place, whatever is beside it; a picture alone is an input."""
    inputs = [Image(DISC), "some words", given(["and ", STRIPES, " that"]), "other words", [5, 6]]
    together = seeing.embed(inputs)
    assert together.shape == (5, seeing.n_embd)
    for each, vector in zip(inputs, together, strict=True):
        np.testing.assert_allclose(vector, seeing.embed(each), atol=1e-6)
    rows = seeing.embed_tokens(Image(DISC), normalize=False)
    assert rows.shape[0] > 8
    np.testing.assert_allclose(rows[-1], seeing.embed(Image(DISC), normalize=False), atol=1e-6)


def test_what_was_loaded_to_generate_embeds_pictures_too(seeing: Embedder) -> None:
    with Llama(media_model("full"), mmproj=tiny_projector("mlp"), n_ctx=512) as llm:
        with Embedder(llama=llm, pooling="last") as made:
            found = made.embed(Image(DISC))
        assert float(found @ seeing.embed(Image(DISC))) > 0.9999
        lists = llm.create_embedding(Image(DISC))
        assert len(lists["data"]) == 1
        assert lists["usage"]["prompt_tokens"] > 8


def test_awaited(seeing: Embedder) -> None:
    made = AsyncEmbedder(embedder=seeing)
    found = asyncio.run(made.embed([Image(DISC), "words"]))
    np.testing.assert_allclose(found[0], seeing.embed(Image(DISC)), atol=1e-6)


def test_what_cannot_be_embedded_says_why(seeing: Embedder) -> None:
    with pytest.raises(MediaError, match=r"inputs\[1\].content\[0\] is at an address.*not fetched"):
        seeing.embed(both("a", {"content": [address("http://example.org/a.png")]}))
    with pytest.raises(ParameterTypeError, match='objects with parts in "content"'):
        seeing.embed({"text": "a"})
    with pytest.raises(ParameterError, match=r"inputs\[0\] has no tokens"):
        seeing.embed({"content": []})
    with pytest.raises(MediaError, match="at most 64"):
        seeing.embed({"content": [Image(DISC)] * 65})
    with Embedder(media_model("full"), mmproj=None) as blind:
        with pytest.raises(ParameterError, match="mmproj"):
            blind.embed(Image(DISC))
        assert len(blind.embed("the next call works"))
    with Embedder(encoder("bert")) as bert, pytest.raises(ParameterError, match="texts only"):
        bert.embed(Image(DISC))
    with embedder("full", "mlp", n_ctx=12) as short:
        for truncate in (False, True):
            with pytest.raises(InputTooLongError):
                short.embed([Image(DISC)], truncate=truncate)


def both(*inputs: Any) -> list[Any]:
    return [*inputs]


def address(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_over_http(seeing: Embedder) -> None:
    """OpenAI's parts, and llama-server's form, with its markers."""
    data = pictures.png(DISC)
    encoded = base64.b64encode(data).decode()
    picture = address(f"data:image/png;base64,{encoded}")
    parts = {"content": [{"type": "text", "text": "What is "}, picture]}
    marked = {"prompt_string": "What is <__media__>", "multimodal_data": [encoded]}
    expected = seeing.embed(given(["What is ", DISC]))
    settings = tiny_settings(
        Path(media_model("full")), mmproj=str(tiny_projector("mlp")), n_seq_max=1, pooling_type=3
    )
    with serving(settings) as server, server.http() as http:
        body = {"model": "x", "input": [parts, "words", marked]}
        reply = http.post("/v1/embeddings", json=body).json()
        vectors = np.array([each["embedding"] for each in reply["data"]])
        assert reply["usage"]["prompt_tokens"] > 2 * 16
        for vector in (vectors[0], vectors[2]):
            assert float(vector @ expected) > 0.9999
        assert float(vectors[1] @ expected) < 0.999
        native = http.post("/embeddings", json={"content": marked}).json()
        assert np.array(native[0]["embedding"]).shape == (1, seeing.n_embd)
        bad = {"model": "x", "input": ["a", {"content": [address("file:///etc/passwd")]}]}
        refused = http.post("/v1/embeddings", json=bad)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input[1]"
