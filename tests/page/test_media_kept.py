"""Pictures and sounds in a conversation: shown, kept, exported, and found again."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from llama_py.server.config.settings import ModelSettings, Settings
from tests.media.pictures import gradient, png
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.page.conftest import Open
from tests.page.media_site import (
    BOTH,
    CHIRP,
    DISC,
    GRADIENT,
    LOSE,
    SEES,
    attach,
    bytes_of,
    file_of,
    is_drawn,
    kept,
    parts_of,
)
from tests.page.scripted import Gate, Scripted, finish, progress, text, usage
from tests.page.site import Site, eventually
from tests.page.test_access import overflows, problems
from tests.page.test_list import conversation
from tests.page.test_talking import import_file
from tests.server.serving import Server, serving

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
