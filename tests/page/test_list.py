"""The list of conversations."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import Gate, Scripted, finish, text
from tests.page.site import Site, eventually


def test_conversations_are_renamed(chat: Site) -> None:
    chat.say("First words")
    menu(chat, "First words", "Rename")
    title = chat.page.get_by_label("Title")
    expect(title).to_be_focused()
    title.fill("A better name")
    title.press("Enter")
    expect(chat.conversations).to_have_text(["A better name"])
    expect(chat.page.locator("#title")).to_have_text("A better name")
    menu(chat, "A better name", "Rename")
    title.fill("Never mind")
    title.press("Escape")
    chat.reload()
    expect(chat.conversations).to_have_text(["A better name"])


def test_a_deleted_conversation_can_be_brought_back(chat: Site, told: Scripted) -> None:
    chat.say("Keep me")
    chat.say("And me")
    before = chat.stored()
    menu(chat, "Keep me", "Delete")
    expect(chat.conversations).to_have_count(0)
    expect(chat.page.locator("#start")).to_be_visible()
    assert chat.stored() == {"conversations": [], "messages": []}
    chat.button("Undo").click()
    expect(chat.asked).to_have_count(2)
    assert chat.stored()["messages"] == before["messages"]
    eventually(lambda: told.forgotten == [before["conversations"][0]["id"]])


def test_deleting_a_conversation_ends_its_reply(chat: Site, told: Scripted) -> None:
    told.will([text("One"), Gate()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One")
    menu(chat, "Count", "Delete")
    expect(chat.conversations).to_have_count(0)
    eventually(lambda: told.cancelled == 1)
    assert chat.stored() == {"conversations": [], "messages": []}


def test_what_one_tab_renames_or_deletes_is_so_in_the_others(chat: Site) -> None:
    chat.say("First")
    other = chat.open(chat.page.url[len(chat.url) :])
    expect(other.locator("article")).to_have_count(2)
    listed = other.locator("#conversations a")
    menu(chat, "First", "Rename")
    chat.page.get_by_label("Title").fill("A better name")
    chat.page.keyboard.press("Enter")
    expect(listed).to_have_text(["A better name"])
    menu(chat, "A better name", "Delete")
    expect(listed).to_have_count(0)
    expect(other.locator("article")).to_have_count(0)
    expect(other.get_by_text("was deleted in another tab")).to_be_visible()
    chat.button("Undo").click()
    expect(listed).to_have_text(["A better name"])
    listed.click()
    expect(other.locator("article")).to_have_count(2)


def test_what_is_deleted_in_another_tab_does_not_come_back(chat: Site, told: Scripted) -> None:
    """Its reply ends in the tab that writes it, and nothing of it is kept."""
    told.will([text("One"), Gate()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One")
    other = chat.open("#/")
    row = other.locator(".entry", has_text="Count")
    row.hover()
    row.get_by_role("button", name="More").click()
    other.get_by_role("menuitem", name="Delete", exact=True).click()
    expect(chat.conversations).to_have_count(0)
    expect(chat.page.locator("#start")).to_be_visible()
    eventually(lambda: told.cancelled == 1)
    chat.page.wait_for_timeout(300)  # in which what had come would be written once more
    assert chat.stored() == {"conversations": [], "messages": []}


def test_a_reply_is_not_written_into_what_is_deleted(chat: Site, told: Scripted) -> None:
    """Another tab has deleted its conversation, and this one has not heard of that yet."""
    gate = Gate()
    told.will([text("One"), gate, text(" two"), finish()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One")
    chat.erase()
    chat.page.wait_for_timeout(1200)  # in which a growing reply is written at least once
    assert chat.stored() == {"conversations": [], "messages": []}
    gate.open()
    chat.wait()
    expect(chat.reply).to_contain_text("One two")
    assert chat.stored() == {"conversations": [], "messages": []}


def test_a_message_is_deleted_with_what_follows(chat: Site) -> None:
    chat.say("First")
    chat.say("Second")
    chat.asked.last.get_by_role("button", name="More").click()
    chat.menu("Delete from here")
    expect(chat.asked).to_have_count(1)
    assert len(chat.stored()["messages"]) == 2
    chat.button("Undo").click()
    expect(chat.asked).to_have_count(2)
    assert len(chat.stored()["messages"]) == 4


def test_titles_and_messages_are_searched(chat: Site, told: Scripted) -> None:
    told.will([text("The capital is Paris, on the Seine."), finish()])
    chat.say("Geography")
    chat.begin()
    chat.say("Arithmetic")
    search = chat.page.get_by_label("Search conversations")
    search.fill("seine")
    expect(chat.conversations).to_have_count(1)
    expect(chat.conversations).to_contain_text("Geography")
    expect(chat.conversations).to_contain_text("on the Seine.")
    expect(chat.page.locator("#found")).to_have_text("1 conversation")
    search.fill("arithm")
    expect(chat.conversations).to_have_text(["Arithmetic"])
    search.fill("nowhere")
    expect(chat.page.locator("#found")).to_have_text("Nothing found")
    search.press("Escape")
    expect(chat.conversations).to_have_count(2)


def test_the_address_names_the_conversation(chat: Site) -> None:
    chat.say("First")
    address = chat.page.url
    chat.begin()
    chat.page.go_back()
    expect(chat.asked).to_contain_text("First")
    assert chat.page.url == address
    chat.page.goto(f"{chat.url}/#/nowhere")
    expect(chat.page.locator("#start")).to_be_visible()


@pytest.mark.parametrize("name", ["%", "%E0%A4%A", "%zz"])
def test_an_address_that_cannot_be_read_names_none(visit: Open, told: Scripted, name: str) -> None:
    chat = visit(told.url)
    chat.page.goto("about:blank")
    chat.page.goto(f"{told.url}/#/{name}")
    expect(chat.page.locator("#start")).to_be_visible()
    chat.say("Hello")
    expect(chat.asked).to_contain_text("Hello")


def test_older_conversations_are_grouped_by_day(chat: Site) -> None:
    day = 24 * 60 * 60 * 1000
    now = chat.page.evaluate("() => Date.now()")
    chat.put([conversation(str(age), now - age * day) for age in (0, 1, 4, 60)])
    headings = chat.page.locator("#conversations h2")
    expect(headings).to_have_count(4)
    expect(headings.nth(0)).to_have_text("Today")
    expect(headings.nth(1)).to_have_text("Yesterday")
    expect(headings.nth(2)).to_have_text("Last seven days")
    expect(headings.nth(3)).to_have_text(re.compile(r"\w+ \d{4}"))


def test_what_the_server_has_in_memory(chat: Site, told: Scripted) -> None:
    chat.say("Hello")
    name = chat.stored()["conversations"][0]["id"]
    told.sessions = [{"id": name, "tokens_in_memory": 1200}, {"id": "other", "tokens_in_memory": 5}]
    sheet = chat.settings()
    expect(sheet).to_contain_text("1,200 tokens of this conversation in memory, and 2")
    told.sessions.pop(0)
    sheet.get_by_role("button", name="Forget this conversation there").click()
    expect(sheet).to_contain_text("Nothing of this conversation in memory, and 1 conversation in")
    assert told.forgotten == [name]


def conversation(name: str, when: int, turns: int = 0) -> dict[str, Any]:
    """A conversation as the page keeps it."""
    messages: list[dict[str, Any]] = []
    for number in range(2 * turns):
        parent = messages[-1]["id"] if messages else None
        role = "assistant" if number % 2 else "user"
        words = (
            f"Reply {number} with **words** and `code`.\n\n- one\n- two" if number % 2 else "Why?"
        )
        messages.append(
            {
                "id": f"{name}-{number}",
                "conversation": name,
                "parent": parent,
                "role": role,
                "content": words,
                "created": when + number,
                **({"status": "done"} if number % 2 else {}),
            }
        )
    record = {"title": f"Conversation {name}", "created": when, "updated": when, "options": {}}
    leaf = messages[-1]["id"] if messages else None
    kept = {"leaf": leaf, "firstSeen": None, "system": "", "draft": "", "renamed": False}
    return {"id": name, **record, **kept, "messages": messages}


def menu(chat: Site, title: str, entry: str) -> None:
    """Choose from the menu of a conversation."""
    row = chat.page.locator(".entry", has_text=title)
    row.hover()
    row.get_by_role("button", name="More").click()
    chat.menu(entry)
