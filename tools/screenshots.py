"""Takes the pictures of the chat page that the docs show: ``python -m tools.screenshots``.

Needs Chromium and Playwright, like the tests of the page. Most pictures show the server with the
bundled model. What that does not do on demand comes from the scripted server of the tests: a long
prompt, and a reply with everything that markdown has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from tests.media.meaning import PROJECTOR, shapes
from tests.media.pictures import png
from tests.page.browsers import ARGUMENTS, chromium
from tests.page.media_site import attach, file_of
from tests.page.scripted import Gate, finish, progress, scripted, text, thought, usage
from tests.page.site import Site
from tests.server.serving import demo_settings, serving

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDE = {"width": 1200, "height": 760}
PHONE = {"width": 390, "height": 780}

MARKDOWN = """\
A prompt is compared with what is in memory, and **only what is new is evaluated**. In short:

1. The text is matched against the sequences that are there.
2. What is the same stays: the system message, the turns so far, even an unfinished reply.
3. The rest is evaluated, in batches with everybody else's.

| turn | tokens | reused | to the first token |
| :-- | --: | --: | --: |
| first | 212 | 0 | 1.9 s |
| second | 640 | 508 | 0.7 s |
| tenth | 2,011 | 1,830 | 0.8 s |

```python
chat = llm.chat_session("You are kind.")
chat.send("My name is Anna.")
print(llm.cache_info["reused"])
```

> Whatever was reused, the logits are those of a fresh context.
"""
#: How much of it is there in the picture of a reply that is written.
CUT = MARKDOWN.index("finished reply.")

Window = Callable[..., Site]


@contextmanager
def windows() -> Iterator[Window]:
    """A function that opens the page of a server in a new window."""
    path = chromium()
    if path is None:
        raise SystemExit("needs Chromium: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)

        def window(url: str, theme: str = "light", **options: Any) -> Site:
            look = {"viewport": WIDE, "device_scale_factor": 2, "color_scheme": theme}
            return Site(browser.new_context(**{**look, **options})).visit(url)

        yield window
        browser.close()


def take(site: Site, name: str) -> None:
    """Write a picture of what is seen."""
    site.page.mouse.move(0, 0)
    site.page.wait_for_timeout(400)
    path = IMAGES / f"{name}.png"
    site.page.screenshot(path=path, animations="disabled")
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def ask(site: Site, *messages: str) -> None:
    """A new conversation."""
    site.begin()
    for message in messages:
        site.say(message)


def converse(site: Site) -> None:
    """Some conversations with the bundled model; the last one is shown."""
    ask(site, "Count down from 8.")
    ask(site, "What can you do?")
    ask(site, "Reverse: apple, lamp, river, stone")
    ask(site, "What is 7 + 8?", "What is 19 - 4?")
    ask(
        site,
        "My name is Anna.",
        "My favourite colour is green.",
        "What is my name?",
        "Give me a JSON object with name Anna and colour green.",
    )


def with_the_bundled_model(window: Window) -> None:
    """A conversation in both themes and on a phone, a tool, certainty."""
    with serving(demo_settings()) as server:
        for theme in ("light", "dark"):
            site = window(server.url, theme)
            converse(site)
            take(site, f"chat-{theme}")
            site.context.close()
        site = window(server.url, viewport=PHONE, is_mobile=True, has_touch=True)
        site.say("My name is Anna.")
        site.say("What is my name?")
        site.say("Count from 3 to 12.")
        take(site, "phone")
        tool(window(server.url))
        certainty(window(server.url))
        settings(window(server.url))


def tool(site: Site) -> None:
    """A call, its result, and the answer."""
    site.page.locator(".starter", has_text="Paris").click()
    site.wait()
    result = '{"temperature": 21, "condition": "sunny"}'
    site.page.get_by_label("Result of get_weather").fill(result)
    site.button("Send results").click()
    site.wait()
    take(site, "tools")


def certainty(site: Site) -> None:
    """A reply coloured by certainty."""
    sheet = site.settings()
    sheet.get_by_label("Record how certain the model is of each token").check()
    sheet.get_by_label("Temperature").fill("1.4")
    sheet.get_by_label("Seed").fill("4")
    site.close_dialog()
    site.say("What is 17 - 18?")
    site.in_reply("Colour by certainty").click()
    site.page.get_by_role("option").nth(4).focus()
    take(site, "certainty")


def settings(site: Site) -> None:
    """The settings."""
    site.settings()
    take(site, "settings")


def with_pictures(window: Window) -> None:
    """A picture is asked about on a phone, with the projector of the tests."""
    options: dict[str, Any] = {"mmproj": str(PROJECTOR), "n_ctx": 2048}
    with serving(demo_settings(**options)) as server:
        site = window(server.url, viewport=PHONE, is_mobile=True, has_touch=True)
        for name, question in (
            ("red circle", "What is this?"),
            ("blue triangle", "Describe the picture."),
        ):
            shape = next(each for each in shapes(60) if each.name == name)
            pixels = np.kron(shape.picture, np.ones((8, 8, 1), np.uint8))
            attach(site, file_of(f"{name}.png", png(pixels)))
            site.say(question)
        take(site, "picture")


def when_the_context_is_full(window: Window) -> None:
    """What is offered, and what was left out."""
    with serving(demo_settings(n_ctx=256)) as server:
        site = window(server.url)
        number = 1
        while not site.page.get_by_role("alert").count():
            site.say(f"Count from {number} to {number + 20}.")
            number += 1
        take(site, "overflow")
        site.page.get_by_role("button", name="Leave out the oldest turns").click()
        site.wait()
        site.page.locator(".cut-line").scroll_into_view_if_needed()
        take(site, "left-out")


def with_a_script(window: Window) -> None:
    """What the bundled model does not do."""
    with scripted() as server:
        server.models = ["Qwen3-4B-Instruct"]
        site = window(server.url)
        begun, rest = MARKDOWN[:CUT], MARKDOWN[CUT:]
        gate = Gate()
        reply: list[Any] = [thought("How does reuse work?"), 1.4, text(begun), gate, text(rest)]
        server.will([*reply, finish(), usage(212, 0, 190)], [progress(2011, 1830, 1893), Gate()])
        site.say("How is a prompt reused?", wait=False)
        site.page.get_by_text("even an un").wait_for()
        take(site, "streaming")
        gate.open()
        site.wait()
        site.say("And if I edit an earlier message?", wait=False)
        site.page.get_by_role("progressbar").wait_for()
        take(site, "processing")
        server.reset()


def main() -> None:
    """Take all of them."""
    argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__).parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with windows() as window:
        with_the_bundled_model(window)
        with_pictures(window)
        when_the_context_is_full(window)
        with_a_script(window)


if __name__ == "__main__":
    main()
