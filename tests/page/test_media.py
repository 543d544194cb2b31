"""Pictures and sounds: attached, sent, kept, exported, and what the model does not read."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from llama_py.server.config.settings import ModelSettings, Settings
from tests.media.pictures import chirp, disc, gradient, noise, png, wav
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.page.conftest import Open
from tests.page.scripted import Gate, Scripted, finish, progress, text, usage
from tests.page.site import Site, eventually
from tests.page.test_access import overflows, problems
from tests.page.test_list import conversation
from tests.page.test_talking import import_file
from tests.server.serving import Server, serving

SEES = {"vision": True, "audio": False}
BOTH = {"vision": True, "audio": True}

File = dict[str, Any]


def file_of(name: str, data: bytes, kind: str = "image/png") -> File:
    """A file as the browser gets it."""
    return {"name": name, "mimeType": kind, "buffer": data}


DISC = file_of("disc.png", png(disc()))
GRADIENT = file_of("gradient.png", png(gradient(96, 64)))
CHIRP = file_of("chirp.wav", wav(chirp()), "audio/wav")


def attach(site: Site, *files: File) -> None:
    """Attach files, and wait until they are read."""
    before = chips(site).count()
    site.page.set_input_files("#composer input[type=file]", list(files))
    expect(chips(site)).to_have_count(before + len(files))
    expect(site.page.locator("#files")).not_to_contain_text("is read")


def chips(site: Site) -> Any:
    """What is attached to the message that is being written."""
    return site.page.locator("#files li")


def shown(site: Site) -> Any:
    """The pictures in the thread."""
    return site.page.locator("article.user .media img")


def is_drawn(site: Site, number: int = 1) -> None:
    """So many pictures are in the thread, and have pixels."""
    expect(shown(site)).to_have_count(number)
    for image in shown(site).all():
        expect(image).to_have_js_property("complete", value=True)
        assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0


def parts_of(request: dict[str, Any], message: int = -1) -> Any:
    return request["messages"][message]["content"]


def bytes_of(part: dict[str, Any]) -> bytes:
    """The file in a part of a message."""
    if part["type"] == "input_audio":
        return base64.b64decode(part["input_audio"]["data"])
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


OPEN = """
    const open = indexedDB.open(`llama-py ${location.pathname}`);
    const database = await new Promise((done) => (open.onsuccess = () => done(open.result)));
"""
LOSE = f"""async () => {{
    {OPEN}
    const change = database.transaction("media", "readwrite");
    change.objectStore("media").clear();
    await new Promise((done) => (change.oncomplete = done));
    database.close();
}}"""
KEPT = f"""async () => {{
    {OPEN}
    const all = database.transaction("media").objectStore("media").getAll();
    const media = await new Promise((done) => (all.onsuccess = () => done(all.result)));
    database.close();
    return Promise.all(media.map(async ({{ digest, blob }}) =>
        [digest, Array.from(new Uint8Array(await blob.arrayBuffer()))]));
}}"""


def kept(site: Site) -> dict[str, bytes]:
    """The pictures and sounds in the browser's database."""
    return {digest: bytes(data) for digest, data in site.page.evaluate(KEPT)}


@pytest.fixture
def seeing(visit: Open, told: Scripted) -> Site:
    """The page of a scripted server whose model sees and hears."""
    told.modalities = BOTH
    site = visit(told.url)
    expect(site.button("Attach pictures")).to_be_visible()
    return site


# ---- attaching -----------------------------------------------------------------------------------


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
    # What is as large as noise is no drawing, and not worth nine megabytes with every question.
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


# ---- in the thread -------------------------------------------------------------------------------


def test_a_picture_opens_large_and_closes(seeing: Site) -> None:
    attach(seeing, GRADIENT)
    seeing.say("What is this?")
    small = seeing.button("Enlarge gradient.png")
    small.focus()
    seeing.page.keyboard.press("Enter")
    large = seeing.page.get_by_role("dialog", name="gradient.png")
    expect(large.get_by_alt_text("gradient.png")).to_be_visible()
    expect(large).to_contain_text("96 × 64")
    seeing.close_dialog()
    expect(small).to_be_focused()


def test_again_edit_and_branches_keep_pictures(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC)
    seeing.say("What is this?")
    seeing.in_reply("Answer again").click()
    seeing.wait()
    seeing.asked.get_by_role("button", name="Edit", exact=True).click()
    is_drawn(seeing)
    editor = seeing.page.get_by_label("Edit the message")
    editor.fill("Which colour?")
    editor.press("Enter")
    seeing.wait()
    expect(seeing.asked.locator(".place")).to_have_text("2/2")
    is_drawn(seeing)
    for request in told.requests:
        assert bytes_of(parts_of(request, 0)[0]) == DISC["buffer"]
    assert parts_of(told.requests[2])[1]["text"] == "Which colour?"
    seeing.asked.get_by_role("button", name="Previous version").click()
    is_drawn(seeing)
    assert len(kept(seeing)) == 1


def test_what_nobody_has_any_more_is_not_kept(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC)
    seeing.say("First")
    attach(seeing, DISC, GRADIENT)
    seeing.say("Second")
    assert len(kept(seeing)) == 2
    seeing.asked.last.get_by_role("button", name="More").click()
    seeing.menu("Delete from here")
    eventually(lambda: list(kept(seeing).values()) == [DISC["buffer"]])
    seeing.button("Undo").click()
    is_drawn(seeing, 3)
    assert len(kept(seeing)) == 2

    row = seeing.page.locator(".entry").first
    row.hover()
    row.get_by_role("button", name="More").click()
    seeing.menu("Delete")
    expect(seeing.conversations).to_have_count(0)
    eventually(lambda: not kept(seeing))
    seeing.button("Undo").click()
    is_drawn(seeing, 3)
    seeing.reload()
    is_drawn(seeing, 3)
    seeing.say("Third")
    assert bytes_of(parts_of(told.requests[2], 2)[1]) == GRADIENT["buffer"]


def test_what_is_reused_says_how_many_pictures(seeing: Site, told: Scripted) -> None:
    gate = Gate()
    counts = [finish(), usage(2011, 1830, 2)]
    told.will([progress(2011, 0, 512), gate, text("A disc."), *counts], [text("Red."), *counts])
    attach(seeing, DISC)
    seeing.say("What is this?", wait=False)
    expect(seeing.page.get_by_role("progressbar")).to_contain_text("2,011 tokens (1 picture)")
    gate.open()
    seeing.wait()
    expect(seeing.reply).to_contain_text("reused 1,830 of 2,011 tokens (1 picture)")
    attach(seeing, GRADIENT, CHIRP)
    seeing.say("And these?")
    expect(seeing.reply).to_contain_text("reused 1,830 of 2,011 tokens (2 pictures, 1 sound)")
    seeing.reload()
    expect(seeing.reply).to_contain_text("(2 pictures, 1 sound)")


def test_a_picture_that_is_gone_is_not_left_out_silently(seeing: Site, told: Scripted) -> None:
    attach(seeing, DISC)
    seeing.say("What is this?")
    seeing.page.evaluate(LOSE)
    seeing.reload()
    expect(seeing.asked).to_contain_text("The picture disc.png is not in this browser any more.")
    seeing.say("And now?")
    expect(seeing.reply).to_contain_text("A picture or sound is gone")
    assert len(told.requests) == 1


OLD = """async (records) => {
    const name = `llama-py ${location.pathname.replace("page/icon.svg", "")}`;
    const done = (request) => new Promise((resolve) => (request.onsuccess = resolve));
    await done(indexedDB.deleteDatabase(name));
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => {
        opening.result.createObjectStore("conversations", { keyPath: "id" });
        const messages = opening.result.createObjectStore("messages", { keyPath: "id" });
        messages.createIndex("conversation", "conversation");
    };
    await done(opening);
    const change = opening.result.transaction(["conversations", "messages"], "readwrite");
    for (const { messages, ...record } of records) {
        change.objectStore("conversations").put(record);
        for (const message of messages) change.objectStore("messages").put(message);
    }
    await new Promise((resolve) => (change.oncomplete = resolve));
    opening.result.close();
}"""


def test_what_an_older_page_has_kept_is_still_there(seeing: Site) -> None:
    seeing.page.goto(f"{seeing.url}/page/icon.svg")
    seeing.page.evaluate(OLD, [conversation("old", 1_700_000_000_000, 2)])
    seeing.page.goto(f"{seeing.url}/#/old")
    expect(seeing.asked).to_have_count(2)
    expect(seeing.button("Attach pictures")).to_be_visible()
    attach(seeing, DISC)
    seeing.say("What is this?")
    seeing.reload()
    is_drawn(seeing)
    assert len(seeing.stored()["messages"]) == 6


def test_digests_are_right_whatever_the_length(chat: Site) -> None:
    script = """async (lengths) => {
        const { sha256 } = await import("/page/js/media/sha256.js");
        const bytes = (length) => Uint8Array.from({ length }, (_, at) => (at * 7 + length) & 255);
        return lengths.map((length) => sha256(bytes(length)));
    }"""
    lengths = [*range(70), 119, 120, 127, 128, 129, 100_000]
    known = [
        hashlib.sha256(bytes((at * 7 + length) & 255 for at in range(length))).hexdigest()
        for length in lengths
    ]
    assert chat.page.evaluate(script, lengths) == known


# ---- for everybody -------------------------------------------------------------------------------


def test_axe_finds_nothing_grave_about_media(visit: Open, told: Scripted) -> None:
    told.modalities = BOTH
    site = visit(told.url, bypass_csp=True)
    expect(site.button("Attach pictures")).to_be_visible()
    attach(site, DISC, GRADIENT, CHIRP)
    assert not problems(site), "attached"
    site.say("What are these?")
    site.button("Add to the message").click()
    assert not problems(site), "in the thread, with a menu"
    site.page.keyboard.press("Escape")
    site.button("Enlarge disc.png").click()
    assert not problems(site), "large"
    site.close_dialog()
    told.modalities = SEES
    site.reload()
    site.button("Add to the message").click()
    assert not problems(site), "with an entry that cannot be chosen"


def middle(element: Any) -> float:
    """How far down it is."""
    box = element.bounding_box()
    return float(box["y"] + box["height"] / 2)


@pytest.mark.parametrize("width", [390, 320])
def test_media_on_a_phone(visit: Open, told: Scripted, width: int) -> None:
    told.modalities = BOTH
    site = visit(told.url, viewport={"width": width, "height": 700})
    expect(site.button("Attach pictures")).to_be_visible()
    wide = file_of("a_very_long_name_" + "x" * 60 + ".png", png(gradient(1200, 300)))
    attach(site, DISC, wide, CHIRP)
    assert not overflows(site)
    expect(site.button("Send")).to_be_in_viewport()
    told.will([text("Two."), finish(), usage(2011, 1830, 20)])
    site.say("What are these?")
    is_drawn(site, 2)
    assert not overflows(site)
    expect(site.page.locator("#meter")).to_be_visible()
    if width == 390:  # all in one row
        assert middle(site.button("Send")) == pytest.approx(middle(site.button("Attach pictures")))
    site.button("Enlarge disc.png").click()
    assert not overflows(site)


# ---- kept elsewhere ------------------------------------------------------------------------------


def exported(site: Site, file: Path) -> dict[str, Any]:
    """Export everything; what is in the file."""
    with site.page.expect_download() as download:
        site.button("Export all conversations").click()
    download.value.save_as(file)
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_an_export_without_media_is_as_it_was(seeing: Site, tmp_path: Path) -> None:
    seeing.say("Words")
    file = exported(seeing, tmp_path / "all.json")
    assert file["version"] == 1
    assert "media" not in file


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda media: media.update(dict.fromkeys(media, "data:image/png;base64,AAAA")),
        lambda media: media.update(dict.fromkeys(media, "data:image/svg+xml;base64,AAAA")),
        lambda media: media.update(dict.fromkeys(media, "https://example.org/")),
        lambda media: media.update(dict.fromkeys(media, 7)),
    ],
    ids=["other", "svg", "address", "number"],
)
def test_pictures_that_are_not_what_they_say_are_refused(
    seeing: Site, tmp_path: Path, change: Change
) -> None:
    attach(seeing, DISC)
    seeing.say("What is this?")
    path = tmp_path / "all.json"
    file = exported(seeing, path)
    change(file["media"])
    path.write_text(json.dumps(file), encoding="utf-8")
    seeing.erase()
    seeing.reload()
    import_file(seeing, path)
    seeing.shows("Picture or sound 1 of the file cannot be read.")
    assert not seeing.stored()["conversations"]


# ---- with a model --------------------------------------------------------------------------------


def media_settings(kind: str) -> Settings:
    """Settings that serve a tiny model with a tiny projector."""
    options = {"n_ctx": 1024, "n_threads": 1, "verbose": False, "mmproj": str(tiny_projector(kind))}
    model = ModelSettings("tiny", str(media_model("full")), options=options)
    return Settings(models=(model,))


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    """A server whose model sees and hears."""
    with serving(media_settings("omni")) as server:
        yield server


REUSED = re.compile(r"reused ([\d,]+) of ([\d,]+) tokens( \(.*?\))?")


def reuse_of(site: Site) -> tuple[int, int, str]:
    """What the last reply says was reused, of how much, with how many pictures."""
    expect(site.reply).to_contain_text(REUSED)
    found = REUSED.search(site.reply.inner_text())
    assert found
    first, second = (int(number.replace(",", "")) for number in found.groups()[:2])
    return first, second, (found[3] or "").strip()


def short_replies(site: Site) -> None:
    """A model with random weights does not know when to end."""
    sheet = site.settings()
    sheet.get_by_label("Longest reply").fill("4")
    site.close_dialog()


def test_a_picture_is_asked_about_twice_and_goes_elsewhere(
    visit: Open, tiny: Server, told: Scripted, tmp_path: Path
) -> None:
    site = visit(tiny.url, viewport={"width": 390, "height": 800})
    expect(site.button("Attach pictures")).to_be_visible()
    short_replies(site)
    attach(site, DISC)
    site.say("What is this?")
    reused, whole, media = reuse_of(site)
    assert media == "(1 picture)"
    assert whole > 16
    site.say("Which colour?")
    reused, longer, media = reuse_of(site)
    assert media == "(1 picture)"
    assert whole <= reused + 1 < longer

    site.reload()
    is_drawn(site)
    site.say("And how large?")
    reused, whole, media = reuse_of(site)
    assert longer <= reused + 1 < whole
    site.asked.first.get_by_role("button", name="Edit", exact=True).click()
    site.page.get_by_label("Edit the message").fill("What else is this?")
    site.page.get_by_label("Edit the message").press("Enter")
    site.wait()
    reused, whole, media = reuse_of(site)
    assert reused >= 16  # the picture, which stands before the words
    assert media == "(1 picture)"
    assert not overflows(site)

    site.button("Conversations").click()
    path = tmp_path / "all.json"
    file = exported(site, path)
    assert list(file["media"].values()) == [
        "data:image/png;base64," + base64.b64encode(DISC["buffer"]).decode()
    ]
    told.modalities = SEES
    other = visit(told.url)
    import_file(other, path)
    other.shows("1 added.")
    other.conversations.click()
    is_drawn(other)
    assert kept(other) == kept(site)
    expect(other.asked.locator(".place").first).to_have_text("2/2")
    other.say("What was it?")
    assert bytes_of(parts_of(told.requests[0], 0)[0]) == DISC["buffer"]


def test_a_sound_is_heard(visit: Open, tiny: Server) -> None:
    site = visit(tiny.url)
    expect(site.button("Attach pictures")).to_be_visible()
    short_replies(site)
    attach(site, CHIRP, GRADIENT)
    site.say("What do you hear?")
    _, whole, media = reuse_of(site)
    assert media == "(1 picture, 1 sound)"
    site.say("And see?")
    reused, _, media = reuse_of(site)
    assert media == "(1 picture, 1 sound)"
    assert reused + 1 >= whole
