"""What goes wrong is said in words, nothing is lost, and there is a way on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import Break, Gate, Refusal, Scripted, finish, scripted, text
from tests.page.site import Site, eventually


def test_a_key_is_asked_for_and_the_message_is_sent_then(visit: Open, told: Scripted) -> None:
    told.key = "secret"
    chat = visit(told.url)
    dialog = chat.page.get_by_role("dialog")
    expect(dialog).to_contain_text("The server asks for a key")
    dialog.get_by_label("API key").fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    expect(chat.page.get_by_label("API key")).to_have_value("wrong")
    expect(dialog).to_contain_text("The server does not know this key")
    chat.close_dialog()
    chat.say("Hello")
    expect(chat.reply.get_by_role("alert")).to_contain_text("The server asks for a key")
    chat.button("Enter the key").click()
    chat.page.get_by_label("API key").fill("secret")
    chat.button("Use this key").click()
    chat.wait()
    expect(chat.reply).to_contain_text("OK.")
    chat.reload()
    chat.say("Again")
    expect(chat.reply).to_contain_text("OK.")
    assert "secret" not in str(chat.stored())


def test_a_key_is_remembered_only_if_asked_for(visit: Open, told: Scripted) -> None:
    told.key = "secret"
    chat = visit(told.url)
    chat.page.get_by_label("API key").fill("secret")
    chat.button("Use this key").click()
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    other = chat.open()
    expect(other.get_by_role("dialog")).to_be_visible()
    other.get_by_label("API key").fill("secret")
    other.get_by_label("Remember it in this browser").check()
    other.get_by_role("button", name="Use this key").click()
    expect(other.get_by_role("dialog")).to_have_count(0)
    third = chat.open()
    expect(third.locator("#model-name")).to_have_text("model")
    expect(third.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            Refusal(413, "request_too_large", "request body of 40 bytes is larger than the limit"),
            "Request body of 40 bytes is larger than the limit. Attach less",
        ),
        (Refusal(403, "permission_denied", "this key may not chat"), "This key may not chat."),
        (Refusal(400, "invalid_value", "temperature is 9"), "Temperature is 9."),
        (Refusal(504, "timeout", "it took longer than 5 s"), "It took longer than 5 s."),
        (Refusal(500, "server_error", "something broke"), "The log of the server says more."),
    ],
)
def test_a_refusal_is_said_and_can_be_tried_again(
    chat: Site, told: Scripted, refusal: Refusal, words: str
) -> None:
    told.will(refusal)
    chat.say("My long question")
    expect(chat.reply.get_by_role("alert")).to_contain_text(words)
    expect(chat.asked).to_contain_text("My long question")
    chat.in_reply("Try again").click()
    chat.wait()
    expect(chat.reply).to_contain_text("OK.")
    expect(chat.replies).to_have_count(1)


def test_a_busy_server_is_asked_again(chat: Site, told: Scripted) -> None:
    busy = Refusal(503, "server_is_overloaded", "the queue is full", {"Retry-After": "1"})
    told.will(busy, busy, [text("At last."), finish()])
    chat.say("Hello", wait=False)
    bar = chat.page.get_by_role("progressbar")
    expect(bar).to_contain_text(re.compile("The server is busy; trying again in 1 s"))
    chat.wait()
    expect(chat.reply).to_contain_text("At last.")
    assert len(told.requests) == 3


def test_a_busy_server_can_be_asked_at_once_or_left_alone(chat: Site, told: Scripted) -> None:
    busy = Refusal(503, "server_is_overloaded", "the queue is full", {"Retry-After": "600"})
    told.will(busy, busy)
    chat.say("Hello", wait=False)
    chat.button("Try now").click()
    expect(chat.button("Try now")).to_be_visible()
    chat.page.keyboard.press("Escape")
    chat.wait()
    assert len(told.requests) == 2
    expect(chat.reply).to_contain_text("stopped")
    chat.in_reply("Answer again").click()
    chat.wait()
    expect(chat.reply).to_contain_text("OK.")


@pytest.mark.parametrize(
    "end", [Break(), Refusal(500, "server_error", "it broke")], ids=["connection", "error event"]
)
def test_a_reply_that_breaks_is_kept_and_goes_on(chat: Site, told: Scripted, end: Any) -> None:
    told.will([text("One, two, "), end], [text("three."), finish()])
    chat.say("Count")
    expect(chat.reply.locator(".prose")).to_have_text("One, two,")
    expect(chat.reply.get_by_role("alert")).to_be_visible()
    chat.reload()
    chat.in_reply("Continue").click()
    chat.wait()
    expect(chat.reply.locator(".prose")).to_have_text("One, two, three.")
    expect(chat.page.get_by_role("alert")).to_have_count(0)


def test_a_reply_that_breaks_before_it_began(chat: Site, told: Scripted) -> None:
    told.will([Break()])
    chat.say("Count")
    expect(chat.reply.get_by_role("alert")).to_contain_text("Nothing had come by then.")
    chat.in_reply("Try again").click()
    chat.wait()
    expect(chat.reply).to_contain_text("OK.")


def test_a_server_that_restarts(visit: Open) -> None:
    gate = Gate()
    with scripted() as first:
        chat = visit(first.url)
        first.will([text("One, two, "), gate])
        chat.say("Count", wait=False)
        expect(chat.reply).to_contain_text("One, two,")
        port = int(first.url.rpartition(":")[2])
    chat.wait()
    expect(chat.page.locator("#banner")).to_contain_text("The server does not answer.")
    chat.say("Are you there?")
    expect(chat.reply.get_by_role("alert")).to_contain_text("The server does not answer")
    with scripted(port) as second:
        expect(chat.page.locator("#banner")).to_be_empty()
        chat.in_reply("Try again").click()
        chat.wait()
        expect(chat.reply).to_contain_text("OK.")
        said = [each["content"] for each in second.requests[0]["messages"]]
        assert said == ["Count", "One, two, ", "Are you there?"]


def test_a_server_that_is_starting(visit: Open, told: Scripted) -> None:
    told.away = True
    chat = visit(told.url)
    expect(chat.page.locator("#banner")).to_contain_text("The server is starting.")
    told.away = False
    expect(chat.page.locator("#banner")).to_be_empty()
    expect(chat.page.locator("#model-name")).to_have_text("model")


def test_a_draft_is_there_after_a_reload(chat: Site) -> None:
    chat.field.fill("Half a thou")
    chat.reload()
    expect(chat.field).to_have_value("Half a thou")
    chat.say("Whole")
    expect(chat.field).to_have_value("")
    chat.field.fill("Next")
    # It is written when nothing was typed for a moment.
    eventually(lambda: chat.stored()["conversations"][0]["draft"] == "Next")
    chat.reload()
    expect(chat.field).to_have_value("Next")
    chat.begin()
    expect(chat.field).to_have_value("")
