"""What tests of pictures and sounds on the page do: files, what is attached, sent and kept."""

from __future__ import annotations

import base64
from typing import Any

from playwright.sync_api import expect

from tests.media.pictures import chirp, disc, gradient, png, wav
from tests.page.site import Site

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
