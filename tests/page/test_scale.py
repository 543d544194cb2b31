"""Long conversations, many of them, and long replies stay fluid."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import fmean
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


#: What the browser measures, by what it is for.
KINDS = {
    "scripts": ["ScriptDuration"],
    "all": ["ScriptDuration", "RecalcStyleDuration", "LayoutDuration"],
    "frames": ["LayoutCount"],
}
#: Pixels between what is seen and the end.
AWAY = "((s) => s.scrollHeight - s.clientHeight - s.scrollTop)(document.getElementById('scroller'))"


def work_of(site: Site) -> Callable[[], dict[str, float]]:
    """A function that says how long the page has worked, in seconds, and in how many frames.

    Painting is left out: without a graphics card it depends on the frames, not on the tokens.
    """
    client = site.context.new_cdp_session(site.page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> dict[str, float]:
        metrics = client.send("Performance.getMetrics")["metrics"]
        values = {each["name"]: float(each["value"]) for each in metrics}
        return {kind: sum(values[name] for name in names) for kind, names in KINDS.items()}

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
    work = work_of(chat)
    told.will([*words(300), finish(), usage(9000, 8990, 300)])
    before = work()["all"]
    chat.say("Go on")
    assert (work()["all"] - before) / 300 < GENEROUS
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
    chat: Site, told: Scripted, tokens: int, part: int, pause: float = 0
) -> list[dict[str, float]]:
    """Work for the second and for the last part of a reply; the first one warms up.

    Args:
        tokens: of the whole reply.
        part: how many of them are a part.
        pause: seconds between two of those.
    """
    gates = [Gate() for _ in range(4)]
    pieces = words(tokens)
    first, last = (spaced(some, pause) for some in (pieces[part : 2 * part], pieces[-part:]))
    parts = [pieces[:part], first, pieces[2 * part : -part], last]
    reply: list[Any] = []
    for number, (some, gate) in enumerate(zip(parts, gates, strict=True)):
        reply += [*some, text(f"mark-{number} "), gate]
    told.will([*reply, finish()])
    work = work_of(chat)
    marks = []
    chat.say("Write a long text", wait=False)
    for number, gate in enumerate(gates):
        expect(chat.reply).to_contain_text(f"mark-{number}")
        marks.append(work())
        gate.open()
    chat.wait()
    return [{kind: marks[at][kind] - marks[at - 1][kind] for kind in KINDS} for at in (1, 3)]


def test_the_last_token_of_five_thousand_costs_what_the_first_did(
    chat: Site, told: Scripted
) -> None:
    first, last = (each["all"] / 800 for each in streamed(chat, told, 5600, 800))
    assert last < 3 * first + 0.002
    assert last < GENEROUS


def visited(chat: Site) -> Callable[[], dict[str, float]]:
    """Begins to count; returns what ends it: elements styled and laid out for a frame."""
    browser = chat.context.browser
    browser.start_tracing(page=chat.page, categories=["devtools.timeline"])

    def end() -> dict[str, float]:
        events = json.loads(browser.stop_tracing())["traceEvents"]
        styled = counts(events, "UpdateLayoutTree", lambda args: args.get("elementCount"))
        begun = counts(events, "Layout", lambda args: args.get("beginData", {}).get("dirtyObjects"))
        assert begun, "nothing was laid out"
        return {"styled": fmean(styled), "laid out": fmean(begun)}

    return end


def counts(events: list[Any], name: str, count: Callable[[Any], int | None]) -> list[int]:
    """Counts of the events of this name that have one."""
    found = (count(event.get("args", {})) for event in events if event["name"] == name)
    return [each for each in found if each is not None]


def test_a_token_at_the_end_of_a_long_reply_touches_only_the_end(
    chat: Site, told: Scripted
) -> None:
    gates = [Gate(), Gate()]
    pieces = words(1500)
    last = spaced(pieces[-20:], 0.02)
    told.will([*pieces[:-20], text(" begun"), gates[0], *last, text(" ended"), gates[1], finish()])
    chat.say("Write a long text", wait=False)
    expect(chat.reply).to_contain_text("begun")
    end = visited(chat)
    gates[0].open()
    expect(chat.reply).to_contain_text("ended")
    # If all of it were styled and laid out again, there would be more than a thousand.
    assert max(end().values()) < 60


@pytest.mark.long
def test_figures(chat: Site, told: Scripted, record_property: Any) -> None:
    """What is promised: work for a frame, at the beginning and at the end of a long reply.

    Tokens come one by one there, so that nearly every one is a frame of its own.
    """
    open_long(chat)
    first, last = streamed(chat, told, 5600, 400, 0.02)
    for kind in ("scripts", "all"):
        for part, name in ((first, "first"), (last, "last")):
            part[kind] *= 1e3 / part["frames"]
            record_property(f"{kind}_ms_per_frame_{name}", round(part[kind], 3))
        print(f"{kind}: {first[kind]:.2f} ms for a frame at first, {last[kind]:.2f} ms at last")
    assert last["scripts"] <= 4
    assert last["all"] <= 1.3 * first["all"]
