"""The prompt that is read, and the context that is full: in words and numbers."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import Gate, Refusal, Scripted, finish, progress, text, usage
from tests.page.site import Site
from tests.server.serving import demo_settings, serving

FULL = Refusal(
    413,
    "context_length_exceeded",
    "prompt is too long: 130 tokens > 100 maximum",
    details={"n_prompt_tokens": 130, "n_ctx": 100},
)


def test_the_prompt_is_counted_from_the_first_moment(chat: Site, told: Scripted) -> None:
    gates = [Gate() for _ in range(3)]
    told.will(
        [
            gates[0],
            progress(2011, 1830, 1830),
            gates[1],
            progress(2011, 1830, 1893),
            gates[2],
            text("Yes."),
            finish(),
            usage(2011, 1830, 2),
        ]
    )
    chat.say("A long question", wait=False)
    bar = chat.page.get_by_role("progressbar")
    expect(bar).to_have_accessible_name("Waiting for the model")
    gates[0].open()
    expect(bar).to_have_accessible_name("Processing the prompt")
    expect(bar).to_contain_text("90 %")
    expect(bar).to_contain_text("reused 1,830 of 2,011 tokens · 181 to go")
    gates[1].open()
    expect(bar).to_contain_text("94 %")
    expect(bar).to_have_attribute("aria-valuenow", "94")
    expect(bar).to_contain_text("118 to go")
    gates[2].open()
    chat.wait()
    expect(bar).to_have_count(0)
    expect(chat.reply).to_contain_text("reused 1,830 of 2,011 tokens")


def test_a_first_prompt_has_nothing_to_reuse(chat: Site, told: Scripted) -> None:
    gate = Gate()
    told.will([progress(2011, 0, 512), gate, text("Yes."), finish()])
    chat.say("A long question", wait=False)
    bar = chat.page.get_by_role("progressbar")
    expect(bar).to_contain_text("25 %")
    expect(bar).to_contain_text("2,011 tokens · 1,499 to go")
    gate.open()


def test_the_meter_says_how_full_the_context_is(chat: Site, told: Scripted) -> None:
    told.n_ctx = 100
    chat.reload()
    told.will([text("Yes."), finish(), usage(80, 0, 4)])
    chat.say("Question")
    expect(chat.page.locator("#meter")).to_have_text("84 / 100")
    expect(chat.page.locator("#meter")).to_have_attribute("data-level", "high")


def fill_up(chat: Site, told: Scripted, turns: int = 6) -> None:
    """A conversation of some turns, whose next one no longer fits."""
    for number in range(turns):
        chat.say(f"Question {number}")
    told.will(FULL)
    chat.say("One too many")


def test_an_overflow_is_said_with_its_numbers_and_nothing_is_lost(
    chat: Site, told: Scripted
) -> None:
    fill_up(chat, told, 1)
    notice = chat.page.get_by_role("alert")
    expect(notice).to_contain_text("It has 130 tokens, and the context of this model holds 100.")
    expect(notice).to_contain_text("Nothing was cut off, and nothing is lost.")
    expect(notice.get_by_role("button")).to_have_count(3)
    chat.reload()
    expect(chat.asked.last).to_contain_text("One too many")
    expect(chat.page.get_by_role("alert")).to_be_visible()


def test_a_bound_is_not_said_to_be_the_number(chat: Site, told: Scripted) -> None:
    chat.say("Question")
    told.will(replace(FULL, details={**FULL.details, "at_least": True}))
    chat.say("One too many")
    notice = chat.page.get_by_role("alert")
    expect(notice).to_contain_text("It has at least 130 tokens, and the context of this model")


def test_the_oldest_turns_are_left_out(chat: Site, told: Scripted) -> None:
    fill_up(chat, told)
    told.requests.clear()
    chat.page.get_by_role("button", name="Leave out the oldest turns").click()
    chat.wait()
    expect(chat.reply).to_contain_text("OK.")
    # Ten tokens a message: half of the context is five messages.
    said = [each["content"] for each in told.requests[0]["messages"]]
    assert said == ["Question 4", "OK.", "Question 5", "OK.", "One too many"]
    line = chat.page.get_by_role("separator")
    expect(line).to_contain_text("8 messages above were left out")
    expect(chat.page.locator(".left-out")).to_have_count(8)
    chat.say("And on")
    assert told.requests[1]["messages"][0]["content"] == "Question 4"
    line.get_by_role("button").click()
    expect(chat.page.locator(".left-out")).to_have_count(0)


def test_a_new_conversation_goes_on_with_a_summary(chat: Site, told: Scripted) -> None:
    fill_up(chat, told)
    told.will([text("They counted "), text("questions."), finish()])
    told.requests.clear()
    chat.page.get_by_role("button", name="Start a new conversation").click()
    summary = chat.page.get_by_role("dialog").locator("textarea")
    expect(summary).to_have_value("They counted questions.")
    asked = told.requests[0]["messages"]
    assert "Summarise" in asked[-1]["content"]
    assert asked[0]["content"] == "Question 4"
    expect(summary).to_be_editable()
    summary.fill("They counted six questions.")
    chat.button("Start the new conversation").click()
    chat.wait()
    system, question = told.requests[1]["messages"]
    assert "They counted six questions." in system["content"]
    assert question == {"role": "user", "content": "One too many"}
    expect(chat.conversations).to_have_count(2)
    expect(chat.page.locator("#title")).to_have_text("Question 0 (continued)")


def test_the_setting_leaves_out_turns_without_asking(chat: Site, told: Scripted) -> None:
    fill_up(chat, told)
    chat.page.get_by_role("button", name="Change the setting").click()
    setting = chat.page.get_by_label("When the context is full")
    expect(setting).to_be_focused()
    setting.select_option("Leave out the oldest turns")
    chat.close_dialog()
    told.will(FULL)
    told.requests.clear()
    chat.say("And another")
    expect(chat.reply).to_contain_text("OK.")
    full, shorter = ([each["content"] for each in body["messages"]] for body in told.requests)
    assert len(shorter) < len(full)
    assert shorter[-1] == "And another"


def test_a_message_that_is_too_long_alone_can_only_be_shortened(chat: Site, told: Scripted) -> None:
    told.per_message = 200
    told.will(FULL)
    chat.say("Far too long")
    expect(chat.page.get_by_role("alert")).to_contain_text(
        "Even the last message alone is too long"
    )
    chat.button("Edit the message").click()
    expect(chat.page.get_by_label("Edit the message")).to_be_focused()


def test_a_context_that_fills_up_in_a_reply(chat: Site, told: Scripted) -> None:
    told.n_ctx, told.per_message = 100, 25
    chat.reload()
    chat.say("First")
    told.will(
        [text("It begins "), finish("length"), usage(60, 0, 40)], [text("and ends."), finish()]
    )
    chat.say("Question")
    expect(chat.reply).to_contain_text("The conversation has reached the 100 tokens")
    chat.page.get_by_role("button", name="Leave out the oldest turns").click()
    chat.wait()
    expect(chat.reply.locator(".prose")).to_have_text("It begins and ends.")
    assert [each["content"] for each in told.requests[-1]["messages"]] == ["Question", "It begins "]


def test_the_real_server_is_made_room_in(visit: Open) -> None:
    with serving(demo_settings(n_ctx=256)) as server:
        chat = visit(server.url)
        for number in range(1, 7):
            chat.say(f"My number is {number}. " + "I like the colour blue. " * 5)
            if chat.page.get_by_role("alert").count():
                break
        expect(chat.page.get_by_role("alert")).to_contain_text(re.compile(r"It has \d{3} tokens"))
        chat.page.get_by_role("button", name="Leave out the oldest turns").click()
        chat.wait()
        expect(chat.page.get_by_role("alert")).to_have_count(0)
        expect(chat.page.get_by_role("separator")).to_be_visible()
        expect(chat.reply).to_contain_text("reused")
