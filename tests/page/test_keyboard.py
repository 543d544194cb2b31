"""Everything without a mouse."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.page.scripted import Gate, Scripted, call, finish, text
from tests.page.site import Site


def press(chat: Site, *keys: str) -> None:
    for key in keys:
        chat.page.keyboard.press(key)


def tab_to(chat: Site, name: str, key: str = "Tab") -> None:
    """Go from control to control until one of this name has the focus."""
    wanted = """(name) => {
        const at = document.activeElement;
        return (at.getAttribute("aria-label") ?? at.textContent).trim() === name;
    }"""
    for _ in range(60):
        press(chat, key)
        if chat.page.evaluate(wanted, name):
            return
    raise AssertionError(f"{name} is not reached with {key}")


def test_lines_and_sending(chat: Site, told: Scripted) -> None:
    expect(chat.field).to_be_focused()
    chat.page.keyboard.type("One")
    press(chat, "Shift+Enter")
    chat.page.keyboard.type("two")
    press(chat, "Enter")
    chat.wait()
    assert told.requests[0]["messages"][0]["content"] == "One\ntwo"
    expect(chat.field).to_be_focused()
    press(chat, "Enter")
    assert len(told.requests) == 1, "nothing was written"


def test_enter_belongs_to_the_input_method_while_a_word_is_composed(
    chat: Site, told: Scripted
) -> None:
    client = chat.context.new_cdp_session(chat.page)
    chat.field.focus()
    client.send("Input.imeSetComposition", {"text": "にほ", "selectionStart": 2, "selectionEnd": 2})
    chat.page.evaluate(
        """() => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", isComposing: true, bubbles: true}))"""
    )
    client.send("Input.insertText", {"text": "日本"})
    expect(chat.field).to_have_value("日本")
    assert not told.requests
    press(chat, "Enter")
    chat.wait()
    assert told.requests[0]["messages"][0]["content"] == "日本"


def test_escape_stops(chat: Site, told: Scripted) -> None:
    told.will([text("One"), Gate()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One")
    press(chat, "Escape")
    chat.wait()
    expect(chat.reply).to_contain_text("stopped")


def test_up_edits_the_last_message(chat: Site, told: Scripted) -> None:
    chat.say("One")
    press(chat, "ArrowUp")
    editor = chat.page.get_by_label("Edit the message")
    expect(editor).to_be_focused()
    press(chat, "Escape")
    expect(editor).to_have_count(0)
    chat.field.focus()
    press(chat, "ArrowUp")
    expect(editor).to_be_focused()
    chat.page.keyboard.type(" more")
    press(chat, "Enter")
    chat.wait()
    assert told.requests[1]["messages"][0]["content"] == "One more"


def test_the_list(chat: Site) -> None:
    chat.say("First")
    press(chat, "Control+Shift+O")
    expect(chat.field).to_be_focused()
    chat.say("Second")
    press(chat, "Control+k")
    expect(chat.page.get_by_label("Search conversations")).to_be_focused()
    press(chat, "ArrowDown", "ArrowDown")
    expect(chat.conversations.filter(has_text="First")).to_be_focused()
    press(chat, "Enter")
    expect(chat.asked).to_contain_text("First")
    chat.conversations.filter(has_text="First").focus()
    press(chat, "Tab", "Enter", "ArrowDown", "ArrowDown", "Enter")  # More, then Delete
    expect(chat.conversations).to_have_text(["Second"])
    tab_to(chat, "Undo")
    press(chat, "Enter")
    expect(chat.conversations).to_have_count(2)


def test_a_menu(chat: Site) -> None:
    chat.say("First")
    tab_to(chat, "More", "Shift+Tab")
    press(chat, "Enter")
    items = chat.page.get_by_role("menuitem")
    expect(items.first).to_be_focused()
    press(chat, "End")
    expect(items.last).to_be_focused()
    press(chat, "ArrowDown")
    expect(items.first).to_be_focused()
    press(chat, "Escape")
    expect(items).to_have_count(0)
    assert chat.page.evaluate("() => document.activeElement.ariaLabel") == "More"


def test_again_and_the_branches(chat: Site, told: Scripted) -> None:
    told.will([text("First."), finish()], [text("Second."), finish()])
    chat.say("Question")
    tab_to(chat, "Answer again", "Shift+Tab")
    press(chat, "Enter")
    chat.wait()
    expect(chat.reply).to_contain_text("Second.")
    chat.field.focus()
    tab_to(chat, "Previous version", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.reply).to_contain_text("First.")


def test_settings(chat: Site, told: Scripted) -> None:
    press(chat, "Control+,")
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    press(chat, "Tab")
    expect(chat.page.get_by_label("System prompt")).to_be_focused()
    chat.page.keyboard.type("Be brief.")
    press(chat, "Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    expect(chat.field).to_be_focused()
    chat.say("Hello")
    assert told.requests[0]["messages"][0]["content"] == "Be brief."


def test_the_keys_are_listed(chat: Site) -> None:
    chat.page.locator("#scroller").focus()
    press(chat, "?")
    expect(chat.page.get_by_role("dialog")).to_contain_text("Search the conversations")


def test_a_tool_is_answered(chat: Site, told: Scripted) -> None:
    told.will([call("look", '{"at": "sky"}'), finish("tool_calls")])
    chat.say("Look")
    chat.page.get_by_label("Result of look").focus()
    chat.page.keyboard.type("blue")
    press(chat, "Enter")
    chat.wait()
    assert told.requests[1]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call_0",
        "content": "blue",
    }


def test_the_first_stop_leads_to_the_message(chat: Site) -> None:
    tab_to(chat, "Skip to the message", "Shift+Tab")
    link = chat.page.get_by_role("link", name="Skip to the message")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()


def test_certainty_with_the_arrows(chat: Site, told: Scripted) -> None:
    chunk = text("A b")
    entries: list[dict[str, Any]] = [
        {"token": each, "logprob": -0.1, "top_logprobs": []} for each in ("A", " b")
    ]
    chunk["choices"][0]["logprobs"] = {"content": entries}
    told.will([chunk, finish()])
    chat.say("Letters")
    tab_to(chat, "Colour by certainty", "Shift+Tab")
    press(chat, "Enter")
    chat.page.get_by_role("option").first.focus()
    press(chat, "ArrowRight")
    expect(chat.page.get_by_role("option").nth(1)).to_be_focused()
    expect(chat.page.locator(".alternatives")).to_contain_text("90.5 %")
