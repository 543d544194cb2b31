"""What pictures and sounds of others may cost: memory, time, and what is kept afterwards."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from llama_py import Audio, ContextOverflowError, Image, MediaError
from llama_py.tenants import working_for
from tests.media import costs
from tests.media.encoded import scene, spoken, written
from tests.media.pictures import RATE, disc, noise, png, tone
from tests.media.talking import Talk, talk

_MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_hostile_files_cost_neither_memory_nor_time() -> None:
    for each in costs.measured():
        _, most, seconds = costs.HOSTILE[each["name"]]
        assert each["peak"] < most * _MIB, each
        assert each["seconds"] < seconds, each
        assert each["became"].startswith("MediaError") or each["became"] == "16 tokens", each


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("kind", ["picture", "sound"])
@pytest.mark.parametrize("seconds", [4, pytest.param(600, marks=pytest.mark.long)])
def test_mutated_files_are_read_or_refused(kind: str, seconds: int) -> None:
    found = costs.fuzz(kind, seconds, seed=seconds)
    assert found["counts"]["MediaError"] > 5 * seconds
    assert found["counts"]["read"] > seconds
    assert found["peak"] < 16 * 4_000_000, "bytes for each pixel that was allowed"
    assert found["slowest"] < 5


def ask(talking: Talk, *content: Any, **options: Any) -> Any:
    return talking.ask_all([{"role": "user", "content": [*content, "?"]}], **options)


def test_all_pictures_of_a_request_have_one_budget() -> None:
    with talk(max_media_decoded=3 * 100 * 100 * 3, n_ctx=2048) as talking:
        shown = [Image(png(noise(seed, 100, 100))) for seed in range(4)]
        ask(talking, *shown[:3])
        ask(talking, shown[0], *[shown[0]] * 5)  # the same one is decoded once
        with pytest.raises(MediaError, match=r"content\[3\].*120000 bytes.*max_media_decoded"):
            ask(talking, *shown)
        decoded = talking.encoder.decoded
        with pytest.raises(MediaError, match="max_media_decoded"):  # also what is known already
            ask(talking, *shown)
        assert talking.encoder.decoded == decoded + 1


def test_long_sounds_are_refused_and_the_option_is_named() -> None:
    with talk("full", "omni", max_sound_seconds=0.5, n_ctx=2048) as talking:
        ask(talking, Audio(written("mp3", spoken(1, RATE, 0.4))))
        for long in (spoken(1, RATE, 0.6), spoken(1, 44100, 3)):
            rate = RATE if len(long) < RATE else 44100
            for sound in (Audio(written("mp3", long, samplerate=rate)), Audio(long, rate)):
                with pytest.raises(MediaError, match="longer than 0"):
                    ask(talking, sound)


def test_a_refused_request_leaves_nothing() -> None:
    with talk(n_ctx=256) as talking:
        with pytest.raises(ContextOverflowError):
            ask(talking, *[Image(png(noise(seed))) for seed in range(20)])
        encoder = talking.encoder
        assert encoder.decoded == 20
        assert encoder.used_bytes == 0
        assert [each for each in encoder._waiting if each() is not None] == []
        with pytest.raises(ContextOverflowError):
            ask(talking, *[Image(png(noise(seed))) for seed in range(20)])
        assert encoder.decoded == 40


def test_what_is_kept_is_bounded_by_bytes_and_not_by_the_file() -> None:
    """Small pictures in large files, and more vectors than there is room for."""
    behind = bytes(4 * _MIB)
    with talk(media_cache_bytes=16 << 10) as talking:
        for seed in range(24):
            ask(talking, Image(png(noise(seed)) + behind), reuse=False)
            assert 0 < talking.encoder.used_bytes <= 16 << 10
        ask(talking, Image(png(noise(0))), reuse=False)
        assert talking.encoded == 25


def test_without_room_nothing_is_kept_and_everything_works() -> None:
    with talk(media_cache_bytes=0) as talking:
        first = ask(talking, Image(disc()), max_tokens=4, reuse=False)
        again = ask(talking, Image(disc()), max_tokens=4, reuse=False)
        assert first["choices"] == again["choices"]
        assert (talking.encoder.used_bytes, talking.encoded) == (0, 2)


@pytest.mark.parametrize(
    ("projector", "content"),
    [
        ("mlp", Image(png(scene(1)))),
        ("omni", Audio(written("wav", tone()))),
        ("mlp", Image(disc())),
    ],
)
def test_tenants_share_no_pictures_and_no_sounds(projector: str, content: Any) -> None:
    """What is computed for one tenant does not depend on what another one has sent."""
    with talk("full", projector) as talking:
        counts = []
        for name in ("alice", "alice", "bob", "bob", "alice"):
            talking.llm.reset()
            with working_for(name):
                ask(talking, content)
            counts.append((talking.encoder.decoded, talking.encoded))
        assert counts == [(1, 1), (1, 1), (2, 2), (2, 2), (2, 2)]


def test_a_tenant_drives_out_nothing_of_one_who_has_less() -> None:
    with talk(media_cache_bytes=64 << 10) as talking:
        with working_for("alice"):
            ask(talking, Image(disc()))
        for seed in range(30):
            with working_for("bob"):
                ask(talking, Image(noise(seed)), reuse=False)
        encoded = talking.encoded
        talking.llm.reset()
        with working_for("alice"):
            ask(talking, Image(disc()))
        assert talking.encoded == encoded


def test_errors_name_the_place_of_who_sent_it_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(media_cache_bytes=0) as talking:
        monkeypatch.setattr(
            talking.encoder.projector,
            "encode",
            lambda chunks, index: np.full((16, 8), np.nan, np.float32),
        )
        for place in (0, 2):
            words = ["a"] * place
            with pytest.raises(
                MediaError, match=rf"produced NaN or infinity for messages\[0\].content\[{place}\]"
            ):
                ask(talking, *words, Image(disc()), reuse=False)
