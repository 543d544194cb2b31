"""The page as a person uses it: by what it says and the names of its controls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.patience import PATIENCE

__all__ = ["PATIENCE", "Site", "eventually"]


expect.set_options(timeout=1000 * PATIENCE)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds that the page does not show."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Site:
    """One window with the page.

    Attributes:
        page: Playwright's page, for what has no method here.
        errors: what the scripts of the page have thrown.
        strangers: addresses elsewhere that were asked for something.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self.url = ""
        self.errors: list[str] = []
        self.strangers: list[str] = []
        context.set_default_timeout(1000 * PATIENCE)
        context.on("request", self._note_request)
        self.page = self._tab()

    def visit(self, url: str) -> Site:
        """Go to the page of a server as one who was never there before."""
        for tab in self.context.pages[1:]:
            tab.close()
        self.url = url
        # A file of the same origin: what clears its storage is then not what uses it.
        self.page.goto(f"{url}/page/icon.svg")
        self.page.evaluate(_FORGET)
        self.page.emulate_media(media="null")
        self.page.mouse.move(0, 0)
        self.errors.clear()
        self.strangers.clear()
        self._go(self.page, "/")
        return self

    def open(self, path: str = "/") -> Any:
        """Another tab of the same browser."""
        return self._go(self._tab(), path)

    def reload(self) -> None:
        """Load the page again."""
        self.page.reload()
        self.page.wait_for_selector(_READY)

    def begin(self) -> None:
        """A new conversation."""
        self.page.get_by_role("link", name="New conversation").click()
        expect(self.page.locator("#start")).to_be_visible()

    def _tab(self) -> Any:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note_console)
        # The window for files must not open in the moment before a test waits for it, either.
        page.on("filechooser", lambda _: None)
        return page

    def _go(self, page: Any, path: str) -> Any:
        page.goto(self.url + path)
        page.wait_for_selector(_READY)
        return page

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.strangers.append(request.url)

    def _note_console(self, message: Any) -> None:
        # A status that is an error is one of the things that are tested.
        refused = "Failed to load resource" in message.text
        if message.type == "error" and not refused:
            self.errors.append(message.text)

    # -- writing --------------------------------------------------------------------------------

    @property
    def field(self) -> Any:
        """Where a message is written."""
        return self.page.get_by_label("Message", exact=True)

    def say(self, text: str, *, wait: bool = True) -> None:
        """Write and send a message.

        Args:
            wait: until the reply has ended.
        """
        self.field.fill(text)
        self.field.press("Enter")
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until no reply is running."""
        expect(self.page.locator("article[aria-busy=true]")).to_have_count(0)
        expect(self.button("Send")).to_be_visible()

    # -- what is there --------------------------------------------------------------------------

    def button(self, name: str) -> Any:
        """A button by its name, wherever it is."""
        return self.page.get_by_role("button", name=name, exact=True)

    def menu(self, name: str) -> None:
        """Choose an entry of the menu that is open."""
        self.page.get_by_role("menuitem", name=name, exact=True).click()

    @property
    def replies(self) -> Any:
        """The replies that are shown."""
        return self.page.locator("article.reply")

    @property
    def reply(self) -> Any:
        """The last reply."""
        return self.replies.last

    @property
    def asked(self) -> Any:
        """The messages of the user that are shown."""
        return self.page.locator("article.user")

    @property
    def conversations(self) -> Any:
        """The entries of the list."""
        return self.page.locator("#conversations a")

    def in_reply(self, name: str) -> Any:
        """A button at the last reply."""
        return self.reply.get_by_role("button", name=name, exact=True)

    def settings(self) -> Any:
        """Open the settings."""
        self.button("Settings").click()
        return self.page.get_by_role("dialog")

    def close_dialog(self) -> None:
        """Close the dialog that is open."""
        self.page.keyboard.press("Escape")
        expect(self.page.get_by_role("dialog")).to_have_count(0)

    def shows(self, text: str | re.Pattern[str]) -> None:
        """Something on the page says this."""
        expect(self.page.get_by_text(text).first).to_be_visible()

    def stored(self) -> dict[str, Any]:
        """Everything in the browser's database."""
        return self.page.evaluate(_STORED)  # type: ignore[no-any-return]

    def put(self, conversations: list[dict[str, Any]]) -> None:
        """Write conversations into the browser's database, and load the page again."""
        self.page.evaluate(_PUT, conversations)
        self.reload()

    def erase(self) -> None:
        """Take everything out of the browser's database, as another tab does that says so later."""
        self.page.evaluate(_ERASE)


#: It shows a conversation: a new one, or messages.
_READY = "#start:not([hidden]), article"

_FORGET = """async () => {
    localStorage.clear();
    sessionStorage.clear();
    const gone = ({name}) => new Promise((resolve, reject) => {
        const request = indexedDB.deleteDatabase(name);
        request.onsuccess = resolve;
        request.onerror = reject;
    });
    await Promise.all((await indexedDB.databases()).map(gone));
}"""
_OPEN = """const open = () => new Promise((resolve) => {
    const request = indexedDB.open(`llama-py ${location.pathname}`);
    request.onsuccess = () => resolve(request.result);
});"""
_STORED = f"""async () => {{
    {_OPEN}
    const database = await open();
    const all = (name) => new Promise((resolve) => {{
        const request = database.transaction(name).objectStore(name).getAll();
        request.onsuccess = () => resolve(request.result);
    }});
    const stored = {{conversations: await all("conversations"), messages: await all("messages")}};
    database.close();
    return stored;
}}"""
_PUT = f"""async (conversations) => {{
    {_OPEN}
    const database = await open();
    const change = database.transaction(["conversations", "messages"], "readwrite");
    for (const {{messages, ...record}} of conversations) {{
        change.objectStore("conversations").put(record);
        for (const message of messages) change.objectStore("messages").put(message);
    }}
    await new Promise((resolve) => (change.oncomplete = resolve));
    database.close();
}}"""
_ERASE = f"""async () => {{
    {_OPEN}
    const database = await open();
    const change = database.transaction(["conversations", "messages"], "readwrite");
    change.objectStore("conversations").clear();
    change.objectStore("messages").clear();
    await new Promise((resolve) => (change.oncomplete = resolve));
    database.close();
}}"""
