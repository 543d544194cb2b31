"""For everybody: assistive technology, both themes, large text, small screens, paper."""

from __future__ import annotations

import math
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import (
    Gate,
    Refusal,
    Scripted,
    call,
    finish,
    progress,
    text,
    thought,
    usage,
)
from tests.page.site import Site

RICH = """# Title

Some **strong** and `coded` words, [a link](https://example.org/), and

1. a list
   - in a list

> a quote

| a | b |
| - | -: |
| 1 | 2 |

```python
print("a line that is much too long for a small screen, and so has to be scrolled by itself")
```
"""


def problems(site: Site) -> list[str]:
    """What axe finds in either theme that is serious or critical."""
    found = []
    for theme in ("light", "dark"):
        site.page.emulate_media(color_scheme=theme)
        violations = Axe().run(site.page).response["violations"]
        grave = [each for each in violations if each["impact"] in ("serious", "critical")]
        nodes = [(each["id"], node["html"][:120]) for each in grave for node in each["nodes"]]
        found += [f"{theme}: {name}: {html}" for name, html in nodes]
    return found


def test_axe_finds_nothing_grave(visit: Open, told: Scripted) -> None:
    # The policy of the page forbids to load axe into it.
    chat = visit(told.url, bypass_csp=True)
    assert not problems(chat), "at the beginning"

    told.will([thought("Hm."), text(RICH), finish(), usage(2011, 1830, 90)])
    chat.say("Show everything")
    chat.page.locator("summary").click()
    assert not problems(chat), "with a reply"

    with_tokens = text("It is blue, mostly.")
    shares = [("It", 0.95), (" is", 0.7), (" blue", 0.4), (", mostly.", 0.1)]
    entries = [{"token": each, "logprob": math.log(p), "top_logprobs": []} for each, p in shares]
    with_tokens["choices"][0]["logprobs"] = {"content": entries}
    told.will([with_tokens, finish()])
    chat.say("And the sky?")
    chat.in_reply("Colour by certainty").click()
    chat.page.get_by_role("option").first.hover()
    assert not problems(chat), "coloured by certainty"

    told.will(Refusal(413, "context_length_exceeded", "too long"))
    chat.say("On")
    chat.in_reply("Start a new conversation with a summary of this one").hover()
    assert not problems(chat), "when the context is full"

    chat.settings()
    assert not problems(chat), "in the settings"
    chat.close_dialog()

    told.will([call("look", '{"at": "sky", "far": true, "n": 1}'), finish("tool_calls")])
    chat.begin()
    chat.say("Look")
    chat.button("Add to the message").click()
    assert not problems(chat), "with a tool and a menu"
    chat.page.keyboard.press("Escape")

    gate = Gate()
    told.will([progress(2011, 1830, 1893), gate])
    chat.say("Read", wait=False)
    expect(chat.page.get_by_role("progressbar")).to_contain_text("94 %")
    assert not problems(chat), "while the prompt is read"
    gate.open()


def test_what_is_heard_is_that_something_happens_not_every_word(chat: Site, told: Scripted) -> None:
    status = chat.page.locator("#status")
    gates = [Gate(), Gate()]
    told.will([progress(100, 0, 50), gates[0], text("One "), gates[1], text("two."), finish()])
    chat.say("Count", wait=False)
    expect(status).to_have_text("Processing the prompt")
    gates[0].open()
    expect(status).to_have_text("Generating")
    expect(chat.reply).to_have_attribute("aria-busy", "true")
    live = "all => all.filter((each) => each.closest('[aria-live], [role=log], [role=status]'))"
    assert chat.page.locator("article *").evaluate_all(f"all => ({live})(all).length") == 0
    gates[1].open()
    expect(status).to_have_text("Reply complete")
    expect(chat.reply).to_have_attribute("aria-busy", "false")


def test_every_control_has_a_name(chat: Site) -> None:
    chat.say("Hello")
    for control in chat.page.locator("button, a, input, select, textarea").all():
        if control.is_visible():
            expect(control).to_have_accessible_name(re.compile(r"\S"))


def overflows(site: Site) -> list[str]:
    """Elements that reach beyond the right edge and cannot be scrolled into view."""
    return site.page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll("body *")].filter((each) => {
            const box = each.getBoundingClientRect();
            const own = each.closest("pre, .table, .sidebar, .unseen, .skip");
            return box.width && box.right > innerWidth + 1 && !own;
        }).map((each) => each.outerHTML.slice(0, 100))"""
    )


# 1,280 by 800 pixels at 200 % are 640 by 400 for the page.
@pytest.mark.parametrize("size", [(360, 640), (640, 400), (320, 480)], ids=str)
def test_small_screens_and_large_text(visit: Open, told: Scripted, size: tuple[int, int]) -> None:
    chat = visit(told.url, viewport={"width": size[0], "height": size[1]})
    assert not overflows(chat)
    told.will([text(RICH), finish(), usage(2011, 1830, 90)])
    chat.say("Show everything, and also a_very_long_word_" + "x" * 80)
    assert not overflows(chat)
    expect(chat.field).to_be_in_viewport()
    told.will(Refusal(413, "context_length_exceeded", "too long"))
    chat.say("On")
    assert not overflows(chat)
    chat.settings()
    assert not overflows(chat)
    chat.close_dialog()
    chat.button("Conversations").click()
    entry = chat.conversations.first
    expect(entry).to_be_in_viewport()
    expect(chat.page.locator("#new")).to_be_focused()  # no keyboard comes up
    chat.page.keyboard.press("Escape")
    expect(entry).not_to_be_in_viewport()
    expect(chat.button("Conversations")).to_be_focused()


def test_text_of_twice_the_size(visit: Open, told: Scripted) -> None:
    chat = visit(told.url)
    chat.page.evaluate("() => (document.documentElement.style.fontSize = '200%')")
    told.will([text(RICH), finish(), usage(2011, 1830, 90)])
    chat.say("Show everything")
    assert not overflows(chat)
    expect(chat.button("Send")).to_be_in_viewport()


def test_nothing_moves_for_those_who_asked_for_that(visit: Open, told: Scripted) -> None:
    chat = visit(told.url, reduced_motion="reduce")
    told.will([text("One"), Gate()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One")
    assert chat.page.evaluate("() => document.getAnimations().length") == 0
    chat.button("Stop").click()


def test_the_theme_is_the_systems_or_chosen(visit: Open, told: Scripted) -> None:
    chat = visit(told.url, color_scheme="dark")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    dark = chat.page.evaluate(colour)
    chat.settings().get_by_text("Light", exact=True).click()
    light = chat.page.evaluate(colour)
    assert brightness(dark) < 60 < 200 < brightness(light)
    chat.reload()
    assert chat.page.evaluate(colour) == light


def brightness(colour: str) -> float:
    """Mean of the parts of ``rgb(r, g, b)``."""
    return sum(map(int, colour[4:-1].split(", "))) / 3


def test_paper_has_the_whole_conversation_and_nothing_else(chat: Site, told: Scripted) -> None:
    told.will([text(RICH * 4), finish()])
    chat.say("Show everything")
    chat.page.emulate_media(media="print")
    for gone in ("#sidebar", "#composer", ".actions", "#settings-button"):
        expect(chat.page.locator(gone).first).to_be_hidden()
    height = chat.page.evaluate("() => document.documentElement.scrollHeight")
    assert height > chat.reply.bounding_box()["height"] > 1000
