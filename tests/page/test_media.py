"""Pictures and sounds: attached, converted, sent, and what the model does not read."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import wave
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.media.pictures import chirp, noise, png
from tests.page.conftest import Open
from tests.page.media_site import (
    BOTH,
    CHIRP,
    DISC,
    GRADIENT,
    SEES,
    File,
    attach,
    bytes_of,
    chips,
    file_of,
    is_drawn,
    kept,
    parts_of,
)
from tests.page.scripted import Scripted
from tests.page.site import Site


def test_a_picture_goes_before_the_question(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC)
    expect(chips(seeing)).to_contain_text(["disc.png"])
    expect(chips(seeing)).to_contain_text(["56 × 56 · 1 kB"])
    seeing.say("What is this?")
    picture, words = parts_of(told.requests[0])
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert bytes_of(picture) == DISC["buffer"]
    assert words == {"type": "text", "text": "What is this?"}
    is_drawn(seeing)
    expect(seeing.page.get_by_alt_text("disc.png")).to_be_visible()
    expect(chips(seeing)).to_have_count(0)
    assert kept(seeing) == {hashlib.sha256(DISC["buffer"]).hexdigest(): DISC["buffer"]}


def test_a_picture_alone_is_a_message(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC)
    seeing.field.press("Enter")
    seeing.wait()
    assert [part["type"] for part in parts_of(told.requests[0])] == ["image_url"]
    expect(seeing.conversations).to_have_text(["disc.png"])
    expect(seeing.asked.locator(".panel")).to_be_hidden()


def test_what_was_attached_is_taken_away(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC, GRADIENT)
    seeing.button("Remove disc.png").click()
    expect(seeing.field).to_be_focused()
    seeing.say("And this?")
    assert bytes_of(parts_of(told.requests[0])[0]) == GRADIENT["buffer"]
    assert len(kept(seeing)) == 1


PASTE = """({ data, text, kind }) => {
    const transfer = new DataTransfer();
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    transfer.items.add(new File([bytes], "image.png", { type: "image/png" }));
    if (text) transfer.setData("text/plain", text);
    const all = { bubbles: true, cancelable: true };
    const target = document.getElementById(kind === "paste" ? "message" : "scroller");
    const event = kind === "paste"
        ? new ClipboardEvent("paste", { ...all, clipboardData: transfer })
        : new DragEvent(kind, { ...all, dataTransfer: transfer });
    return target.dispatchEvent(event);
}"""


def hand_over(site: Site, kind: str, words: str = "") -> bool:
    """Paste or drop a picture; whether the browser goes on with it."""
    data = base64.b64encode(DISC["buffer"]).decode()
    return bool(site.page.evaluate(PASTE, {"data": data, "text": words, "kind": kind}))


def test_pictures_are_pasted_and_dropped(seeing: Site) -> None:
    assert not hand_over(seeing, "paste")
    expect(chips(seeing)).to_have_count(1)
    hand_over(seeing, "dragover")
    expect(seeing.page.locator("#composer")).to_have_class("composer taking")
    assert not hand_over(seeing, "drop")
    expect(seeing.page.locator("#composer")).to_have_class("composer")
    expect(chips(seeing)).to_contain_text(["image.png", "image.png"])
    seeing.say("Twice")
    is_drawn(seeing, 2)
    assert len(kept(seeing)) == 1


def test_of_words_with_a_picture_of_them_the_words_are_pasted(seeing: Site) -> None:
    assert hand_over(seeing, "paste", "A table from a letter")
    assert not hand_over(seeing, "paste", "image.png")
    expect(chips(seeing)).to_have_count(1)


def test_what_is_sent_at_once_waits_for_its_picture(seeing: Site, told: Scripted) -> None:
    seeing.field.fill("Look")
    big = file_of("big.png", png(noise(1, 1500, 1500)))
    seeing.page.set_input_files("#composer input[type=file]", [big])
    seeing.field.press("Enter")
    expect(seeing.reply).to_contain_text("OK.")
    assert len(parts_of(told.requests[0])) == 2


def test_what_cannot_be_read_is_not_left_out_silently(seeing: Site, told: Scripted) -> None:
    seeing.field.fill("Look")
    files = [file_of("big.png", png(noise(1, 1500, 1500))), file_of("cut.png", b"\x89PNG")]
    seeing.page.set_input_files("#composer input[type=file]", files)
    seeing.field.press("Enter")
    seeing.shows(re.compile("cut.png is not a picture"))
    expect(chips(seeing)).to_contain_text(["big.png"])
    assert seeing.field.input_value() == "Look"
    assert not told.requests


# ---- formats and sizes ---------------------------------------------------------------------------

MAKE = """async ([type, width, height]) => {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.fillStyle = "rgb(200, 40, 40)";
    context.fillRect(0, 0, width / 2, height);
    const blob = await new Promise((done) => canvas.toBlob(done, type));
    return [blob.type, Array.from(new Uint8Array(await blob.arrayBuffer()))];
}"""
PIXELS = """async ([url, ...places]) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: image.naturalWidth, height: image.naturalHeight });
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const at = ([x, y]) => Array.from(context.getImageData(x, y, 1, 1).data);
    return [[canvas.width, canvas.height], ...places.map(at)];
}"""


def made(site: Site, kind: str, width: int, height: int) -> bytes:
    """A picture of the browser's own: its left half is red, the other one transparent."""
    found, data = site.page.evaluate(MAKE, [kind, width, height])
    assert found == kind
    return bytes(data)


def pixels(site: Site, part: dict[str, Any], *places: tuple[int, int]) -> Any:
    """Size of what was sent, and some of its pixels."""
    return site.page.evaluate(PIXELS, [part["image_url"]["url"], *places])


def near(colour: list[int], other: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.array(colour[:3]) - other).max() < 6)


def test_webp_becomes_png_and_transparency_white(seeing: Site, told: Scripted) -> None:
    for kind in ("image/webp", "image/png"):
        attach(seeing, file_of("half", made(seeing, kind, 64, 32), kind))
    seeing.say("What is this?")
    for part in parts_of(told.requests[0])[:2]:
        assert part["image_url"]["url"].startswith("data:image/png;base64,")
        size, red, white = pixels(seeing, part, (8, 8), (56, 8))
        assert size == [64, 32]
        assert near(red, (200, 40, 40))
        assert near(white, (255, 255, 255))


def test_a_drawing_is_made_large_enough_to_be_seen(seeing: Site, told: Scripted) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 12" width="24" height="12">'
    svg += b'<rect width="12" height="12" fill="#c82828"/></svg>'
    attach(seeing, file_of("mark.svg", svg, "image/svg+xml"))
    seeing.say("What is this?")
    size, red, white = pixels(seeing, parts_of(told.requests[0])[0], (10, 10), (1000, 10))
    assert size == [1024, 512]
    assert near(red, (200, 40, 40))
    assert near(white, (255, 255, 255))


def test_a_huge_picture_is_made_smaller_before_it_is_sent(seeing: Site, told: Scripted) -> None:
    attach(seeing, file_of("huge.png", made(seeing, "image/png", 6000, 3000)))
    expect(chips(seeing)).to_contain_text(["2,048 × 1,024 of 6,000 × 3,000"])
    attach(seeing, file_of("photo.png", png(noise(2, 2000, 1500))))
    seeing.say("What are these?")
    first, second, _ = parts_of(told.requests[0])
    assert first["image_url"]["url"].startswith("data:image/png;base64,")
    assert pixels(seeing, first)[0] == [2048, 1024]
    # What is as large as noise is not a drawing, and not worth nine megabytes with every question.
    assert second["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert pixels(seeing, second)[0] == [2000, 1500]


def test_a_photo_is_upright_and_says_nothing_of_where_it_was_taken(
    seeing: Site, told: Scripted
) -> None:
    jpeg = made(seeing, "image/jpeg", 64, 32)
    turned = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"  # by a quarter
    body = b"Exif\0\0" + turned
    exif = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    attach(seeing, file_of("plain.jpg", jpeg, "image/jpeg"))
    attach(seeing, file_of("photo.jpg", jpeg[:2] + exif + jpeg[2:], "image/jpeg"))
    seeing.say("What are these?")
    plain, photo, _ = parts_of(told.requests[0])
    assert bytes_of(plain) == jpeg
    size, red = pixels(seeing, photo, (16, 8))
    assert size == [32, 64]
    assert near(red, (200, 40, 40))
    assert b"Exif" not in bytes_of(photo)


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (file_of("cut.png", DISC["buffer"][:40]), "cut.png is not a picture that this browser"),
        (file_of("scan.tiff", b"II*\0" + bytes(64), "image/tiff"), "scan.tiff is not a picture"),
        (file_of("noise.mp3", bytes(64), "audio/mpeg"), "noise.mp3 is not a sound that this"),
        (file_of("film.mp4", bytes(64), "video/mp4"), "film.mp4 is not a text file, a picture or"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_what_cannot_be_read_is_said_in_words(seeing: Site, file: File, answer: str) -> None:
    seeing.page.set_input_files("#composer input[type=file]", [file])
    seeing.shows(re.compile(re.escape(answer)))
    expect(chips(seeing)).to_have_count(0)


# ---- sounds --------------------------------------------------------------------------------------


def samples(data: bytes) -> Any:
    """The samples of a WAV file, which must be as models hear them."""
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_a_sound_is_sent_and_played(seeing: Site, told: Scripted) -> None:
    attach(seeing, CHIRP)
    expect(chips(seeing)).to_contain_text(["chirp.wav"])
    seeing.say("What do you hear?")
    sound, words = parts_of(told.requests[0])
    assert sound["input_audio"]["format"] == "wav"
    assert bytes_of(sound) == CHIRP["buffer"]
    assert words["text"] == "What do you hear?"
    play = seeing.asked.get_by_role("button", name="Play chirp.wav")
    play.click()
    expect(play).to_be_visible()  # again, when it has ended


def test_other_sounds_become_one_channel_of_sixteen_kilohertz(seeing: Site, told: Scripted) -> None:
    left = chirp(1.0)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((2, 2, 32000, 0, "NONE", ""))
        both = np.stack([np.repeat(left, 2), np.zeros(2 * left.size, np.float32)], axis=1)
        out.writeframes((both * 32767).astype("<i2").tobytes())
    attach(seeing, file_of("stereo.wav", file.getvalue(), "audio/wav"))
    seeing.say("What do you hear?")
    heard = samples(bytes_of(parts_of(told.requests[0])[0])) / 32768
    assert heard.size == 16000
    assert np.abs(heard[200:-200] - left[200:-200] / 2).max() < 0.05


@pytest.fixture
def recorder(visit: Open, told: Scripted) -> Site:
    """The page where the microphone may be used."""
    told.modalities = BOTH
    site = visit(told.url, permissions=["microphone"])
    expect(site.button("Record a sound")).to_be_visible()
    return site


def test_the_microphone_is_recorded(recorder: Site, told: Scripted) -> None:
    recorder.button("Record a sound").click()
    row = recorder.page.get_by_role("group", name="Recording")
    expect(row.get_by_role("timer")).to_have_text("0:01")
    recorder.button("Attach the recording").click()
    expect(row).to_be_hidden()
    expect(chips(recorder)).to_contain_text([re.compile(r"Recording \d\d:\d\d")])
    recorder.say("What do you hear?")
    heard = samples(bytes_of(parts_of(told.requests[0])[0]))
    assert 8000 < heard.size < 160000
    assert np.abs(heard).max() > 1000  # the browser's own beeps


def test_a_recording_is_discarded(recorder: Site) -> None:
    recorder.button("Record a sound").click()
    expect(recorder.button("Attach the recording")).to_be_focused()
    recorder.page.keyboard.press("Escape")
    expect(recorder.page.get_by_role("group", name="Recording")).to_be_hidden()
    expect(recorder.field).to_be_focused()
    expect(chips(recorder)).to_have_count(0)


def test_without_a_microphone_it_says_so(visit: Open, told: Scripted) -> None:
    told.modalities = BOTH
    site = visit(told.url, script="delete Navigator.prototype.mediaDevices;")
    expect(site.button("Attach pictures")).to_be_visible()  # what it offers is known
    site.button("Add to the message").click()
    entry = site.page.get_by_role("menuitem", name="Record a sound")
    expect(entry).to_be_disabled()
    expect(entry).to_contain_text("Recording needs https, or this machine's own address.")
    expect(site.button("Record a sound")).to_be_hidden()


# ---- models that do not --------------------------------------------------------------------------


def test_a_model_of_texts_says_that_it_is_one(chat: Site, told: Scripted) -> None:
    expect(chat.button("Attach pictures")).to_be_hidden()
    expect(chat.button("Record a sound")).to_be_hidden()
    chat.button("Add to the message").click()
    reasons = {"Attach pictures": "sees no pictures", "Attach sounds": "hears no sounds"}
    for name, why in reasons.items():
        entry = chat.page.get_by_role("menuitem", name=name)
        expect(entry).to_be_disabled()
        expect(entry).to_contain_text(f"This model {why}.")
    expect(chat.page.get_by_role("menuitem", name="Record a sound")).to_have_count(0)
    chat.page.keyboard.press("Escape")
    chat.page.set_input_files("#composer input[type=file]", [DISC])
    chat.shows("disc.png was not attached. This model sees no pictures.")
    expect(chips(chat)).to_have_count(0)


def test_a_drawing_is_a_text_for_who_sees_none(chat: Site, told: Scripted) -> None:
    attach(chat, file_of("mark.svg", b"<svg/>", "image/svg+xml"))
    chat.say("What is this?")
    assert "<svg/>" in parts_of(told.requests[0])


def test_a_picture_is_not_sent_to_who_sees_none(visit: Open, told: Scripted) -> None:
    told.models, told.blind = ["large", "small"], {"small"}
    told.modalities = SEES
    site = visit(told.url)
    expect(site.button("Attach pictures")).to_be_visible()
    attach(site, DISC)
    site.page.get_by_label("Model", exact=True).select_option("small")
    expect(site.button("Attach pictures")).to_be_hidden()
    site.say("What is this?", wait=False)
    site.shows(re.compile("This model sees no pictures. Take away what it cannot read"))
    assert not told.requests
    assert site.field.input_value() == "What is this?"
    site.page.get_by_label("Model", exact=True).select_option("large")
    expect(site.button("Attach pictures")).to_be_visible()
    site.field.press("Enter")
    site.wait()
    assert told.requests[0]["model"] == "large"


def test_the_list_of_models_tells_what_is_not_loaded_yet(visit: Open, told: Scripted) -> None:
    told.listed = ["text", "image"]
    expect(visit(told.url).button("Attach pictures")).to_be_visible()
