"""The tiny projectors: libmtmd loads them, and each picture and sound changes the next logits.

Tests of reuse with media compare logits. They prove something only if a lost or a wrong picture
would be seen in them, with every kind of memory.
"""

from __future__ import annotations

import ctypes
import io
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import llama_h as C
from llama_py._native import mtmd_h as M
from tests.media.oracle import Chunk, MediaOracle, Part, Row, helper_chunks, helper_logits
from tests.media.pictures import (
    chirp,
    disc,
    gradient,
    noise,
    plain,
    png,
    silence,
    stripes,
    tone,
    wav,
)
from tests.media.projectors import AUDIO, KINDS, VISION, tiny_projector, write_projector
from tests.media.text_models import media_model, media_vocab
from tests.memory.oracle import nmse

#: Every projector with the text models that it makes sense with.
PAIRS = [
    *(("mlp", model) for model in ("full", "iswa", "recurrent", "hybrid", "hybrid_swa", "learned")),
    ("mlp", "mrope"),
    ("gemma3", "iswa_gemma"),
    ("qwen2vl_merger", "mrope"),
    ("gemma4ua", "full"),
    ("gemma4ua", "recurrent"),
    ("gemma4ua", "mrope"),
    ("mlp_tiles", "full"),
    ("omni", "hybrid"),
]
SEEING = [pair for pair in PAIRS if pair[0] in VISION]
HEARING = [pair for pair in PAIRS if pair[0] in AUDIO]
NOTICEABLE = 1e-3
#: Still ten thousand times what rounding makes of equal prompts that are cut differently.
FAR = 1e-5

pairs = pytest.mark.parametrize(("kind", "model"), PAIRS)


_opened: dict[tuple[str, str], MediaOracle] = {}


def opened(kind: str, model: str) -> MediaOracle:
    if (kind, model) not in _opened:
        _opened[kind, model] = MediaOracle(media_model(model), tiny_projector(kind))
    return _opened[kind, model]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.popitem()[1].close()


def media(kind: str) -> list[Part]:
    """Two pictures or two sounds, whatever the projector knows."""
    return [disc(), gradient()] if kind in VISION else [tone(), chirp()]


def shapes(chunks: list[Chunk]) -> list[tuple[str, int, int]]:
    return [(chunk.kind, chunk.n_tokens, chunk.n_pos) for chunk in chunks]


# --- every projector ------------------------------------------------------------------------------


@pairs
def test_media_become_different_vectors_as_loud_as_tokens(kind: str, model: str) -> None:
    one, other = (opened(kind, model).embeddings([part])[0] for part in media(kind))
    for vectors in (one, other):
        assert np.isfinite(vectors).all()
        assert vectors.std(axis=0).min() > 0.01
        assert 0.2 < np.sqrt(np.mean(vectors**2)) < 1
    assert nmse(other, one) > 0.5


@pairs
def test_the_next_logits_tell_media_apart(kind: str, model: str) -> None:
    oracle, (one, other) = opened(kind, model), media(kind)
    expected = oracle.logits(["one ", one, " two"])
    assert np.isfinite(expected).all()
    assert nmse(oracle.logits(["one ", other, " two"]), expected) > NOTICEABLE
    assert nmse(oracle.logits(["one ", " two"]), expected) > NOTICEABLE
    assert nmse(oracle.logits(["one ", one, one, " two"]), expected) > NOTICEABLE


@pairs
def test_the_next_logits_tell_far_media_apart(kind: str, model: str) -> None:
    """With a window of 32, only cells that saw the picture are still there."""
    oracle, (one, other) = opened(kind, model), media(kind)
    long = " the quick brown fox" * 15
    expected = oracle.logits([one, long])
    assert nmse(oracle.logits([other, long]), expected) > FAR


@pairs
def test_equal_prompts_have_equal_logits(kind: str, model: str) -> None:
    one = media(kind)[0]
    first = opened(kind, model).logits(["one ", one, " two"])
    assert np.array_equal(first, opened(kind, model).logits(["one ", one, " two"]))
    fresh = helper_logits(media_model(model), tiny_projector(kind), ["one ", one, " two"])
    assert np.array_equal(first, fresh)


@pairs
def test_tokens_behind_a_prompt_are_like_its_text(kind: str, model: str) -> None:
    oracle, one = opened(kind, model), media(kind)[0]
    *_, last = oracle.chunks([one, "two three"])
    begun = len(oracle.chunks([one])[-1].tokens)
    with_text = oracle.logits([one, "two three"])
    assert nmse(oracle.logits([one, ""], last.tokens[begun:]), with_text) < 1e-6


def test_a_reply_goes_on_behind_a_picture() -> None:
    oracle = opened("qwen2vl_merger", "mrope")
    tokens, row = oracle.greedy([disc(), "two"], 6)
    assert len(tokens) == 6
    assert nmse(oracle.logits([disc(), "two"], tokens[:-1]), row) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_weights(kind: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_projector(tmp_path / name, kind, 64, seed=seed)
    first, same, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == same
    assert first != other
    assert len(first) < 1_000_000


def test_a_projector_of_another_width_is_refused() -> None:
    with pytest.raises(AssertionError, match="mismatch between text model"):
        helper_chunks(media_model("full"), tiny_projector("mlp", 64), ["a"])


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not unknown"):
        write_projector(tmp_path / "p.gguf", "unknown", 64)


# --- chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["full", "recurrent", "hybrid"])
def test_mlp_has_sixteen_tokens_and_nothing_around_them(model: str) -> None:
    chunks = helper_chunks(media_model(model), tiny_projector("mlp"), ["a", noise(1, 30, 99), "b"])
    assert shapes(chunks) == [("text", 1, 1), ("image", 16, 16), ("text", 1, 1)]
    assert not chunks[1].non_causal


def test_mlp_pictures_lie_side_by_side() -> None:
    chunks = opened("mlp", "full").chunks([disc(), gradient(), ""])
    assert shapes(chunks) == [("image", 16, 16), ("image", 16, 16)]
    assert chunks[0].id != chunks[1].id


def test_gemma3_is_not_causal_and_between_special_tokens() -> None:
    before, image, after = opened("gemma3", "iswa_gemma").chunks([disc(), "b"])
    assert before.tokens == (media_vocab().id("<start_of_image>"),)
    assert after.tokens[0] == media_vocab().id("<end_of_image>")
    assert image.non_causal
    assert not before.non_causal
    assert (image.n_tokens, image.n_pos) == (16, 16)


def by_hand(
    oracle: MediaOracle, parts: list[Part], *, causal: bool, grid: npt.NDArray[np.int32]
) -> Row:
    """Logits after one picture that is decoded here, at positions ``(p, n)`` from its first one."""
    before, image, after = oracle.chunks(parts)
    vectors = oracle.embeddings(parts)[0]
    oracle.context.clear()
    oracle.decode(before.tokens, 0)
    C.llama_set_causal_attn(oracle.context.pointer, causal)
    decode_vectors(oracle, vectors, (grid + before.n_pos).astype(np.int32))
    C.llama_set_causal_attn(oracle.context.pointer, True)
    return oracle.decode(after.tokens, before.n_pos + image.n_pos)


def decode_vectors(
    oracle: MediaOracle, vectors: npt.NDArray[np.float32], positions: npt.NDArray[np.int32]
) -> None:
    count = len(vectors)
    batch = C.llama_batch_init(count, vectors.shape[1], 1)
    room = (
        ctypes.cast(batch.pos, ctypes.c_void_p).value or 0
    )  # too little for four numbers a position
    try:
        ctypes.memmove(batch.embd, vectors.ctypes.data, vectors.nbytes)
        batch.pos = ctypes.cast(positions.ctypes.data, ctypes.POINTER(ctypes.c_int32))
        batch.n_tokens = count
        for index in range(count):
            batch.n_seq_id[index], batch.logits[index] = 1, 0
            batch.seq_id[index][0] = 0
        assert C.llama_decode(oracle.context.pointer, batch) == 0
    finally:
        batch.pos = ctypes.cast(room, ctypes.POINTER(ctypes.c_int32))
        C.llama_batch_free(batch)


def test_a_gemma3_picture_that_is_decoded_causally_is_another_one() -> None:
    oracle = opened("gemma3", "iswa_gemma")
    parts: list[Part] = ["a", disc(), "b"]
    grid = np.arange(16, dtype=np.int32)[None]
    expected = oracle.logits(parts)
    assert nmse(by_hand(oracle, parts, causal=False, grid=grid), expected) < 1e-6
    assert nmse(by_hand(oracle, parts, causal=True, grid=grid), expected) > NOTICEABLE


def test_a_qwen2vl_picture_with_wrong_positions_is_another_one() -> None:
    oracle = opened("qwen2vl_merger", "mrope")
    parts: list[Part] = ["a", gradient(84, 56), "b"]
    t, x, y = np.array(oracle.chunks(parts)[1].positions, np.int32).T
    none = np.full_like(t, -len(oracle.chunks(parts)[0].tokens))
    expected = oracle.logits(parts)
    for grid, right in (([t, y, x, none], True), ([t, x, y, none], False), ([t, t, t, t], False)):
        found = by_hand(oracle, parts, causal=True, grid=np.array(grid))
        assert (nmse(found, expected) < 1e-6) is right
        assert (nmse(found, expected) > NOTICEABLE) is not right


@pytest.mark.parametrize(
    ("width", "height", "columns", "rows"),
    [(56, 56, 4, 4), (84, 56, 6, 4), (56, 84, 4, 6), (1, 1, 2, 2), (300, 300, 8, 8)],
)
def test_qwen2vl_has_positions_in_two_dimensions(
    width: int, height: int, columns: int, rows: int
) -> None:
    _, image, _ = opened("qwen2vl_merger", "mrope").chunks([gradient(width, height)])
    assert image.n_tokens == columns * rows
    assert image.n_pos == max(columns, rows)
    expected = [(0, x, y) for y in range(rows) for x in range(columns)]
    assert list(image.positions) == expected


def test_qwen2vl_is_between_special_tokens() -> None:
    before, _, between, _, after = opened("qwen2vl_merger", "mrope").chunks([disc(), disc()])
    begin, end = (media_vocab().id(f"<|vision_{name}|>") for name in ("start", "end"))
    assert (before.tokens, between.tokens, after.tokens) == ((begin,), (end, begin), (end,))


def test_a_narrow_picture_has_more_tokens_than_the_limit() -> None:
    """The limit is 64, and counts pixels before a side is made as long as one patch."""
    _, image, _ = opened("qwen2vl_merger", "mrope").chunks([gradient(2000, 1)])
    assert image.n_tokens == 357


def test_limits_of_a_picture_can_be_set() -> None:
    with MediaOracle(
        media_model("mrope"), tiny_projector("qwen2vl_merger"), image_max_tokens=8
    ) as oracle:
        assert oracle.chunks([gradient(84, 56)])[1].n_tokens == 6


@pytest.mark.parametrize(
    ("width", "height", "chunks"), [(56, 56, 1), (100, 50, 3), (50, 100, 3), (200, 200, 5)]
)
def test_tiles_are_chunks_of_their_own(width: int, height: int, chunks: int) -> None:
    found = opened("mlp_tiles", "full").chunks(["a", gradient(width, height), "b"])
    image = ("image", 16, 16)
    assert shapes(found) == [("text", 1, 1), *[image] * chunks, ("text", 1, 1)]
    assert len({chunk.id for chunk in found[1:-1]}) == 1


def test_tiles_have_no_positions_in_two_dimensions() -> None:
    with MediaOracle(media_model("mrope"), tiny_projector("mlp_tiles")) as oracle:
        chunks = oracle.chunks([gradient(200, 200)])
        assert shapes(chunks) == [("image", 16, 16)] * 5
        assert chunks[0].positions[5] == (5, 5, 5)


@pytest.mark.parametrize("model", ["full", "recurrent", "mrope"])
def test_a_sound_has_a_token_for_each_forty_milliseconds(model: str) -> None:
    before, sound, after = opened("gemma4ua", model).chunks([tone(seconds=0.41)])
    assert before.tokens == (media_vocab().id("<|audio>"),)
    assert after.tokens == (media_vocab().id("<audio|>"),)
    assert (sound.kind, sound.n_tokens, sound.n_pos) == ("audio", 11, 11)
    assert not sound.non_causal


def test_omni_sees_and_hears() -> None:
    oracle = opened("omni", "hybrid")
    kinds = [chunk.kind for chunk in oracle.chunks([disc(), tone()])]
    assert kinds == ["image", "text", "audio", "text"]
    expected = oracle.logits([disc(), tone(), "?"])
    assert nmse(oracle.logits([disc(), chirp(), "?"]), expected) > NOTICEABLE
    assert nmse(oracle.logits([gradient(), tone(), "?"]), expected) > NOTICEABLE


@pytest.mark.parametrize(("kind", "model"), [("mlp", "full"), ("gemma4ua", "full")])
def test_what_a_projector_does_not_know_is_refused(kind: str, model: str) -> None:
    wrong = tone() if kind == "mlp" else disc()
    with pytest.raises(AssertionError, match="does not support"):
        opened(kind, model).chunks([wrong])


# --- pictures and sounds --------------------------------------------------------------------------


def test_drawn_pictures_are_all_different() -> None:
    oracle = opened("mlp", "full")
    drawn = [plain(255, 0, 0), plain(0, 0, 255), gradient(), stripes(), disc(), noise(), noise(2)]
    rows = [oracle.logits([picture, "?"]) for picture in drawn]
    for index, row in enumerate(rows):
        assert all(nmse(row, other) > NOTICEABLE for other in rows[:index])


def test_sounds_are_all_different() -> None:
    oracle = opened("gemma4ua", "full")
    rows = [oracle.logits([sound, "?"]) for sound in (tone(), tone(880), chirp(), silence())]
    for index, row in enumerate(rows):
        assert all(nmse(row, other) > NOTICEABLE for other in rows[:index])


def decoded(oracle: MediaOracle, data: bytes) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """What libmtmd reads from a file: its bytes, and its width and height."""
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    made = M.mtmd_helper_bitmap_init_from_buf(
        oracle.media, buffer, len(data), False, M.mtmd_helper_init_opt_default()
    )
    assert made.bitmap
    try:
        size = int(M.mtmd_bitmap_get_n_bytes(made.bitmap))
        values = np.ctypeslib.as_array(M.mtmd_bitmap_get_data(made.bitmap), (size,)).copy()
        return values, (M.mtmd_bitmap_get_nx(made.bitmap), M.mtmd_bitmap_get_ny(made.bitmap))
    finally:
        M.mtmd_bitmap_free(made.bitmap)


def test_png_files_hold_the_picture() -> None:
    picture = noise(3, 31, 17)
    values, size = decoded(opened("mlp", "full"), png(picture))
    assert size == (31, 17)
    assert np.array_equal(values.reshape(picture.shape), picture)


def test_wav_files_hold_the_sound() -> None:
    sound = chirp()
    with wave.open(io.BytesIO(wav(sound))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16000, 6400)
    values, size = decoded(opened("gemma4ua", "full"), wav(sound))
    assert size == (len(sound), 1)
    assert np.abs(values.view(np.float32) - sound).max() < 1e-4
