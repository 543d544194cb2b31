"""Files become the pixels and samples that llama.cpp's own decoder made of them, upright."""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow

from llama_py import Audio, Image, Llama, MediaError
from llama_py.core.model import Model
from llama_py.core.projector import Cells, Projector
from llama_py.media.arrays import Decoded
from llama_py.media.decoding import read_picture, read_sound
from llama_py.media.limits import MediaLimits
from llama_py.params import ModelParams
from tests.media.encoded import PICTURES, SOUNDS, helper_decodes, scene, spoken, written
from tests.media.pictures import RATE, disc, png, tone, wav
from tests.media.projectors import tiny_projector
from tests.media.talking import talk
from tests.media.text_models import media_model

LIMITS = MediaLimits()
#: Of two vectors: 1 - cosine.
FAR = 1e-2


@pytest.fixture(scope="module")
def projector() -> Iterator[Projector]:
    with (
        Model(media_model("full"), ModelParams()) as model,
        Projector(model, tiny_projector("omni"), n_threads=1) as one,
    ):
        yield one


def picture(data: bytes) -> npt.NDArray[np.uint8]:
    return read_picture(data, "it", LIMITS)


def sound(data: bytes, rate: int = RATE) -> npt.NDArray[np.float32]:
    return read_sound(data, rate, "it", LIMITS)


def vectors(projector: Projector, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    split = projector.split_samples if values.ndim == 1 else projector.split_pixels
    with split(values, "it") as chunks:
        cells = [part for part in chunks.parts if isinstance(part, Cells)]
        return np.concatenate([projector.encode(chunks, each.index).ravel() for each in cells])


def distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return 1 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("format", [*PICTURES, *SOUNDS])
def test_vectors_are_those_of_llama_cpps_own_decoder(projector: Projector, format: str) -> None:
    for seed, write in enumerate((PICTURES | SOUNDS)[format]):
        data = write(seed)
        expected = helper_decodes(projector, data)
        found = picture(data) if expected.ndim == 3 else sound(data)
        if expected.ndim == 1:  # which is a sample longer where one rate is a multiple of the other
            expected, found = expected[:12000], found[:12000]
        assert found.shape == expected.shape
        assert distance(vectors(projector, found), vectors(projector, expected)) < FAR, seed


def turned(data: bytes, orientation: int, format: str) -> bytes:
    """The picture as a camera stores it that was held in one of eight ways."""
    upright = Pillow.open(io.BytesIO(data))
    turns = {
        2: Pillow.Transpose.FLIP_LEFT_RIGHT,
        3: Pillow.Transpose.ROTATE_180,
        4: Pillow.Transpose.FLIP_TOP_BOTTOM,
        5: Pillow.Transpose.TRANSPOSE,
        6: Pillow.Transpose.ROTATE_90,
        7: Pillow.Transpose.TRANSVERSE,
        8: Pillow.Transpose.ROTATE_270,
    }
    stored = upright.transpose(turns[orientation]) if orientation in turns else upright
    exif = Pillow.Exif()
    exif[0x010F], exif[0x0112] = "a camera", orientation
    out = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if format == "jpeg" else {"lossless": True}
    stored.save(out, format, exif=exif, **(options if format != "png" else {}))
    return out.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
def test_photographs_are_upright_however_the_camera_was_held(
    projector: Projector, format: str, orientation: int
) -> None:
    upright = scene(3, 96, 64)
    found = picture(turned(png(upright), orientation, format))
    assert found.shape == upright.shape
    difference = np.abs(found.astype(int) - upright.astype(int))
    assert difference.max() <= (12 if format == "jpeg" else 0)
    assert distance(vectors(projector, found), vectors(projector, upright)) < 1e-3


def test_an_image_of_pillow_is_upright_as_well() -> None:
    marked = Pillow.open(io.BytesIO(turned(png(scene(3)), 6, "png")))
    made = Image(marked).source
    assert isinstance(made, Decoded)
    assert np.array_equal(made.values, scene(3))


@pytest.mark.parametrize(
    "block",
    [b"", b"Exif\0\0", b"MM\0*", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", bytes(64)],
)
def test_damaged_exif_leaves_the_picture_as_it_is_stored(block: bytes) -> None:
    marked = written("png", disc(), exif=b"Exif\0\0" + block)
    assert np.array_equal(picture(marked), disc())


def test_webp_and_ogg_are_read() -> None:
    assert np.array_equal(picture(written("webp", scene(1), lossless=True)), scene(1))
    near = sound(written("ogg", spoken(1, RATE)))
    assert distance(near, spoken(1, RATE)[: len(near)]) < FAR


def test_the_first_frame_of_several_is_the_picture() -> None:
    frames = [Pillow.fromarray(scene(each)) for each in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(picture(out.getvalue()), scene(0))


def test_a_sound_is_as_long_as_it_is_played() -> None:
    """An MP3 of changing bit rate that does not say how long it is."""
    loud = np.random.default_rng(0).normal(0, 0.3, 5 * RATE)
    whole = np.concatenate([loud, np.zeros(60 * RATE)]).astype(np.float32)
    data = written("mp3", whole, bitrate_mode="VARIABLE", compression_level=0.0)
    assert b"Xing" in data[:400]
    rest = data[data.index(data[:2], 4) :]  # without the frame that says it
    assert abs(len(sound(rest)) - len(whole)) < RATE / 5


def test_channels_are_heard_together() -> None:
    sides = np.stack([tone(440), tone(880)], axis=1)
    found = sound(written("wav", sides[:, :1].repeat(2, axis=1)))
    assert np.allclose(found, tone(440), atol=1e-3)
    out = io.BytesIO()
    import soundfile

    soundfile.write(out, sides, RATE, format="WAV", subtype="FLOAT")
    assert np.allclose(sound(out.getvalue()), sides.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_tones_keep_their_pitch_at_other_rates(rate: int) -> None:
    times = np.arange(2 * rate) / rate
    found = read_sound(
        Decoded(np.sin(2 * np.pi * 1000 * times).astype(np.float32), rate), RATE, "it", LIMITS
    )
    loudness = np.abs(np.fft.rfft(found))
    assert abs(len(found) - 2 * RATE) <= 2
    assert loudness.argmax() * RATE / len(found) == pytest.approx(1000, abs=1)


def test_arrays_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    with talk("full", "omni") as talking:
        expected = [talking.ask([disc(), "?"]), talking.ask([tone(), "?"])]
        talking.llm.reset()
        talking.encoder.forget()
        monkeypatch.setattr(importlib, "import_module", missing)
        found = [talking.ask([disc(), "?"]), talking.ask([tone(), "?"])]
        for one, other in zip(expected, found, strict=True):
            assert one["choices"][0]["message"] == other["choices"][0]["message"]
        for content, package in ((Image(png(disc())), "pillow"), (Audio(wav(tone())), "soundfile")):
            said = rf"{package} .* pip install 'llama-py\[media\]'"
            with pytest.raises(MediaError, match=said):
                talking.llm.create_chat_completion([{"role": "user", "content": [content]}])


def test_programs_arrays_are_copied() -> None:
    values = disc().copy()
    made = Image(values)
    values[:] = 0
    assert isinstance(made.source, Decoded)
    assert np.array_equal(made.source.values, disc())
    assert np.array_equal(picture(made.data), disc())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (png(scene(1))[:-3000], "image file is truncated"),
        (b"\xff\xd8\xff\xe0", "it is damaged"),
        (b"RIFF\0\0\0\0WAVEfmt ", "Error in WAV"),
        (b"OggS" + bytes(200), "cannot be decoded"),
    ],
)
def test_errors_are_sentences_without_objects_of_python(data: bytes, said: str) -> None:
    read = sound if data.startswith((b"RIFF", b"OggS")) else picture
    with pytest.raises(MediaError, match="it cannot be decoded: ") as caught:
        read(data)
    assert "0x" not in str(caught.value)
    assert said in str(caught.value)


def test_a_llama_is_asked_about_a_photograph_that_lies_on_its_side() -> None:
    with Llama(media_model("full"), mmproj=tiny_projector("mlp"), n_ctx=1024) as llm:
        texts = []
        for data in (png(scene(3)), turned(png(scene(3)), 6, "png")):
            message = {"role": "user", "content": [Image(data), "What?"]}
            reply = llm.create_chat_completion([message], max_tokens=8, temperature=0.0)
            texts.append((reply["choices"][0]["message"]["content"], reply["usage"]))
        assert texts[0][0] == texts[1][0]
        assert texts[1][1]["prompt_tokens_details"]["cached_tokens"] > 16  # the same picture


def test_the_header_of_a_wav_is_not_believed() -> None:
    """Two descriptions of one sound, the second of one sample per second."""
    form = [struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16) for rate in (384_000, 1)]
    body = b"".join(b"fmt " + struct.pack("<I", 16) + each for each in form)
    body += b"data" + struct.pack("<I", 1 << 20) + bytes(1 << 20)
    with pytest.raises(MediaError):
        sound(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body)
