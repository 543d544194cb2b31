"""Long conversations, many of them, and long replies stay fluid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.scripted import Gate, Scripted, finish, text, usage
from tests.page.site import Site
from tests.page.test_list import conversation

HOUR = 60 * 60 * 1000
#: Seconds of work for a token at the end of a long conversation: what a person must not notice is
#: 0.004; machines that run tests are slow and busy.
GENEROUS = 0.03


#: Metrics of the browser, in seconds.
SCRIPTS = ("ScriptDuration",)
WORK = (*SCRIPTS, "RecalcStyleDuration", "LayoutDuration")
#: Pixels between what is seen and the end.
AWAY = "((s) => s.scrollHeight - s.clientHeight - s.scrollTop)(document.getElementById('scroller'))"


def busy_seconds(site: Site, kinds: Sequence[str] = WORK) -> Callable[[], float]:
    """A function that says how long the page has worked: scripts, styles and layout, or some.

    Painting is left out: without a graphics card it depends on the frames, not on the tokens.
    """
    client = site.context.new_cdp_session(site.page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> float:
        metrics = client.send("Performance.getMetrics")["metrics"]
        return sum(float(each["value"]) for each in metrics if each["name"] in kinds)

    return read


def many(now: int) -> list[dict[str, Any]]:
    """Two hundred conversations; the newest has four hundred messages."""
    others = [conversation(f"{number:03}", now - number * HOUR, 2) for number in range(1, 200)]
    return [*others, conversation("long", now, 200)]


def words(count: int) -> list[Any]:
    """A reply of so many tokens: paragraphs, headings, lists, code."""
    pieces = []
    for number in range(count):
        place = number % 400
        piece = {
            0: "\n\n## Title\n\n",
            100: "\n\n- ",
            150: "\n- ",
            200: "\n\n```py\n",
            300: "\n```\n\n",
        }
        pieces.append(piece.get(place, ["the ", "**best** ", "of ", "`it` ", "all "][number % 5]))
    return [text(piece) for piece in pieces]


def spaced(pieces: list[Any], pause: float) -> list[Any]:
    """Pieces of a reply with a pause after each."""
    return [step for piece in pieces for step in ((piece, pause) if pause else (piece,))]


def open_long(chat: Site) -> None:
    """Put two hundred conversations into the browser, and open the long one."""
    chat.put(many(chat.page.evaluate("() => Date.now()")))
    chat.page.goto(f"{chat.url}/#/long")
    expect(chat.page.locator("article")).to_have_count(400)


def test_many_conversations_and_a_long_one(chat: Site, told: Scripted) -> None:
    open_long(chat)
    assert 50 < chat.conversations.count() < 200, "the list is made as it is needed"
    chat.page.locator("#conversations").evaluate("(list) => list.scrollTo(0, list.scrollHeight)")
    chat.page.wait_for_function("() => document.querySelectorAll('#conversations a').length > 100")
    first = chat.page.locator("article").first
    expect(first).not_to_be_in_viewport()
    expect(chat.reply).to_be_in_viewport()
    seconds = busy_seconds(chat)
    told.will([*words(300), finish(), usage(9000, 8990, 300)])
    before = seconds()
    chat.say("Go on")
    assert (seconds() - before) / 300 < GENEROUS
    expect(chat.page.locator("article")).to_have_count(402)


def test_the_view_follows_the_end_only_while_the_reader_is_there(
    chat: Site, told: Scripted
) -> None:
    chat.put([conversation("long", chat.page.evaluate("() => Date.now()"), 20)])
    chat.page.goto(f"{chat.url}/#/long")
    expect(chat.page.locator("article")).to_have_count(40)
    gates = [Gate(), Gate()]
    first = [*words(200), text("Half of it."), gates[0]]
    told.will([*first, *words(200), text("Nearly all."), gates[1], text("The end."), finish()])
    chat.say("Go on", wait=False)
    expect(chat.reply).to_contain_text("Half of it.")
    chat.page.wait_for_function(f"() => {AWAY} < 5")
    chat.page.locator("#scroller").hover()
    chat.page.mouse.wheel(0, -3000)
    expect(chat.page.locator("#to-end")).to_be_visible()
    place = chat.page.locator("#scroller").evaluate("(s) => s.scrollTop")
    gates[0].open()
    expect(chat.reply).to_contain_text("Nearly all.")
    assert abs(chat.page.locator("#scroller").evaluate("(s) => s.scrollTop") - place) < 300
    expect(chat.reply).not_to_be_in_viewport()
    chat.button("To the latest").click()
    gates[1].open()
    expect(chat.reply).to_contain_text("The end.")
    chat.page.wait_for_function(f"() => {AWAY} < 5")


def streamed(
    chat: Site,
    told: Scripted,
    tokens: int,
    part: int,
    pause: float = 0,
    kinds: Sequence[str] = WORK,
) -> tuple[float, float]:
    """Seconds of work for a token among the first and among the last of a reply.

    Args:
        tokens: of the whole reply.
        part: how many of them are the first, and the last.
        pause: seconds between two of those.
        kinds: the work that counts.
    """
    gates = [Gate(), Gate(), Gate()]
    pieces = words(tokens)
    first = spaced(pieces[:part], pause)
    last = spaced(pieces[-part:], pause)
    reply = [*first, text("first-mark "), gates[0], *pieces[part:-part], text("middle-mark ")]
    told.will([*reply, gates[1], *last, text("last-mark "), finish()])
    seconds = busy_seconds(chat, kinds)
    marks = [seconds()]
    chat.say("Write a long text", wait=False)
    for mark, gate in zip(("first", "middle", "last"), gates, strict=True):
        expect(chat.reply).to_contain_text(f"{mark}-mark", timeout=60_000)
        marks.append(seconds())
        gate.open()
    chat.wait()
    return (marks[1] - marks[0]) / part, (marks[3] - marks[2]) / part


def test_the_last_token_of_five_thousand_costs_what_the_first_did(
    chat: Site, told: Scripted
) -> None:
    first, last = streamed(chat, told, 5000, 1000)
    assert last < 3 * first + 0.002
    assert last < GENEROUS


@pytest.mark.long
def test_figures(chat: Site, told: Scripted, record_property: Any) -> None:
    """What is promised, on a machine with nothing else to do.

    Tokens come one by one there, so that nearly every one is a frame of its own.
    """
    open_long(chat)
    for name, kinds in (("all", WORK), ("scripts", SCRIPTS)):
        first, last = streamed(chat, told, 5000, 150, 0.02, kinds)
        record_property(f"{name}_ms_per_token_first", round(first * 1e3, 3))
        record_property(f"{name}_ms_per_token_last", round(last * 1e3, 3))
        print(f"{name}: {first * 1e3:.2f} ms per token at first, {last * 1e3:.2f} ms at last")
    assert last <= 0.004
