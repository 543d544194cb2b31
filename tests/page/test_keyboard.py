"""Everything without a mouse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import Gate, Refusal, Scripted, call, finish, text, thought
from tests.page.site import Site, eventually
from tests.page.test_context import FULL, fill_up

# Whether the control that has the focus is called so.
HAS_NAME = """(name) => {
    const at = document.activeElement;
    const own = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
    const is = own.trim().replace(/\\s+/g, " ");
    return name.endsWith("…") ? is.startsWith(name.slice(0, -1)) : is === name;
}"""

# Files are read when the test says so.
SLOW_FILES = """() => {
    const read = Blob.prototype.arrayBuffer;
    Blob.prototype.arrayBuffer = async function () {
        await new Promise((go) => { window.readNow = go; });
        return read.call(this);
    };
}"""


def press(chat: Site, *keys: str) -> None:
    for key in keys:
        chat.page.keyboard.press(key)


def tab_to(chat: Site, name: str, key: str = "Tab") -> None:
    """Go from control to control until one of this name has the focus.

    Args:
        name: of the control; one that ends with "…" is the beginning of it.
    """
    for _ in range(60):
        press(chat, key)
        if chat.page.evaluate(HAS_NAME, name):
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
    expect(chat.field).to_be_focused()
    press(chat, "ArrowUp")
    expect(editor).to_be_focused()
    chat.page.keyboard.type(" more")
    press(chat, "Enter")
    chat.wait()
    assert told.requests[1]["messages"][0]["content"] == "One more"


def test_the_list(chat: Site) -> None:
    chat.say("First")
    press(chat, "Control+Shift+O")
    expect(chat.page.locator("#start")).to_be_visible()
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


def test_a_conversation_is_renamed(chat: Site) -> None:
    chat.say("First words")
    press(chat, "Control+k", "ArrowDown", "Tab", "Enter", "Enter")  # More, then Rename
    expect(chat.page.get_by_label("Title")).to_be_focused()
    chat.page.keyboard.type("A better name")
    press(chat, "Enter")
    expect(chat.conversations).to_have_text(["A better name"])
    expect(chat.conversations).to_be_focused()


def test_searching(chat: Site, told: Scripted) -> None:
    told.will([text("The capital is Paris, on the Seine."), finish()])
    chat.say("Geography")
    press(chat, "Control+Shift+O")
    expect(chat.page.locator("#start")).to_be_visible()
    chat.say("Arithmetic")
    press(chat, "Control+k")
    chat.page.keyboard.type("seine")
    expect(chat.page.locator("#found")).to_have_text("1 conversation")
    press(chat, "Enter")
    expect(chat.reply).to_contain_text("Paris")
    expect(chat.field).to_be_focused()


def test_copying(chat: Site, told: Scripted) -> None:
    reply = "Use **this**:\n\n```python\nprint(1)\n```"
    told.will([text(reply), finish()])
    chat.say("How?")
    clipboard = "() => navigator.clipboard.readText()"
    tab_to(chat, "Copy the reply", "Shift+Tab")
    press(chat, "Enter")
    eventually(lambda: chat.page.evaluate(clipboard) == reply)
    tab_to(chat, "Copy", "Shift+Tab")
    press(chat, "Enter")
    eventually(lambda: chat.page.evaluate(clipboard) == "print(1)")


def test_thoughts_are_unfolded_and_ended(chat: Site, told: Scripted) -> None:
    told.will([thought("Let me **see**."), Gate()], [text("Five."), finish()])
    chat.say("How much?", wait=False)
    tab_to(chat, "Answer now", "Shift+Tab")
    press(chat, "Enter")
    chat.wait()
    expect(chat.reply.locator(".prose").last).to_have_text("Five.")
    chat.field.focus()
    tab_to(chat, "Thought for…", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.reply.locator("details strong")).to_have_text("see")


def test_a_failure_is_tried_again_and_a_reply_goes_on(chat: Site, told: Scripted) -> None:
    told.will(Refusal(500, "server_error", "something broke"))
    told.will([text("One, "), finish("length")], [text("two."), finish()])
    chat.say("Count")
    tab_to(chat, "Try again", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.reply).to_contain_text("The reply was cut off")
    tab_to(chat, "Continue", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.reply.locator(".prose")).to_have_text("One, two.")
    expect(chat.field).to_be_focused()


def test_again_and_the_branches(chat: Site, told: Scripted) -> None:
    told.will([text("First."), finish()], [text("Second."), finish()])
    chat.say("Question")
    tab_to(chat, "Answer again", "Shift+Tab")
    press(chat, "Enter")
    chat.wait()
    expect(chat.reply).to_contain_text("Second.")
    expect(chat.field).to_be_focused()
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


def test_parameters_colours_and_the_markdown_switch(chat: Site, told: Scripted) -> None:
    chat.say("Some *words*")
    press(chat, "Control+,")
    tab_to(chat, "Temperature")
    chat.page.keyboard.type("0.7")
    tab_to(chat, "Like the system")
    press(chat, "ArrowRight", "ArrowRight")
    expect(chat.page.locator("html")).to_have_attribute("data-theme", "dark")
    tab_to(chat, "Show my own messages as markdown")
    press(chat, "Space", "Escape")
    expect(chat.asked.locator("em")).to_have_text("words")
    chat.say("On")
    assert told.requests[1]["temperature"] == 0.7


def test_the_model_is_chosen(visit: Open, told: Scripted) -> None:
    told.models = ["small", "large"]
    chat = visit(told.url)
    expect(chat.field).to_be_focused()
    tab_to(chat, "Model")
    press(chat, "ArrowDown")
    chat.say("Hello")
    assert told.requests[0]["model"] == "large"


def test_a_key_is_entered(visit: Open, told: Scripted) -> None:
    told.key = "secret"
    chat = visit(told.url)
    expect(chat.page.get_by_label("API key")).to_be_focused()
    press(chat, "Escape")
    chat.say("Hello")
    tab_to(chat, "Enter the key", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.page.get_by_label("API key")).to_be_focused()
    chat.page.keyboard.type("secret")
    tab_to(chat, "Remember it in this browser")
    press(chat, "Space", "Enter")
    expect(chat.reply).to_contain_text("OK.")
    expect(chat.field).to_be_focused()
    expect(chat.open().locator("#model-name")).to_have_text("model")


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
    second = chat.page.get_by_role("option").nth(1)
    expect(second).to_be_focused()
    expect(second).to_have_attribute("aria-selected", "true")
    expect(chat.page.get_by_role("option").first).to_have_attribute("aria-selected", "false")
    expect(chat.page.locator(".alternatives")).to_contain_text("90.5 %")


# ---- files ---------------------------------------------------------------------------------------


def choose_file(chat: Site, key: str, *files: Path) -> None:
    """Press a key that opens the system's window for files, and choose there."""
    with chat.page.expect_file_chooser() as chooser:
        press(chat, key)
    chooser.value.set_files(list(files))


def test_everything_is_exported_and_imported(chat: Site, tmp_path: Path) -> None:
    chat.say("Keep this")
    before = chat.stored()
    file = tmp_path / "all.json"
    tab_to(chat, "Export all conversations", "Shift+Tab")
    with chat.page.expect_download() as download:
        press(chat, "Enter")
    download.value.save_as(file)
    assert json.loads(file.read_text(encoding="utf-8"))["format"] == "llama-py-chat"
    press(chat, "Control+k", "ArrowDown", "Tab", "Enter", "End", "Enter")  # More, then Delete
    expect(chat.conversations).to_have_count(0)
    tab_to(chat, "Import conversations", "Shift+Tab")
    choose_file(chat, "Enter", file)
    expect(chat.conversations).to_have_text(["Keep this"])
    assert chat.stored() == before


def test_files_are_attached_and_taken_away(chat: Site, told: Scripted, tmp_path: Path) -> None:
    good, other = tmp_path / "notes.md", tmp_path / "other.md"
    good.write_text("Words.\n", encoding="utf-8")
    other.write_text("None of these.\n", encoding="utf-8")
    tab_to(chat, "Add to the message")
    press(chat, "Enter")
    choose_file(chat, "Enter", good, other)
    expect(chat.field).to_be_focused()
    tab_to(chat, "Remove other.md", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.field).to_be_focused()
    chat.page.keyboard.type("What is this?")
    press(chat, "Enter")
    content = told.requests[0]["messages"][0]["content"]
    assert content == "File notes.md:\n```\nWords.\n```\n\nWhat is this?"


def test_the_focus_stays_where_a_file_is_read(chat: Site, told: Scripted, tmp_path: Path) -> None:
    good, bad = tmp_path / "notes.md", tmp_path / "bad.md"
    good.write_text("Words.\n", encoding="utf-8")
    bad.write_bytes(b"\xff\xfe\0")
    chat.page.evaluate(SLOW_FILES)
    for file in (good, bad):
        tab_to(chat, "Add to the message", "Shift+Tab")
        press(chat, "Enter")
        choose_file(chat, "Enter", file)
        expect(chat.page.get_by_text("is read …")).to_be_visible()
        tab_to(chat, f"Remove {file.name}", "Shift+Tab")
        chat.page.evaluate("readNow()")
        expect(chat.page.get_by_text("is read …")).to_have_count(0)
        if file == good:
            assert chat.page.evaluate(HAS_NAME, "Remove notes.md")
    expect(chat.field).to_be_focused()
    chat.page.keyboard.type("What is this?")
    press(chat, "Enter")
    chat.wait()
    assert "Words." in told.requests[0]["messages"][0]["content"]


def test_the_reply_is_begun(chat: Site, told: Scripted) -> None:
    told.will([text(" two."), finish()])
    tab_to(chat, "Add to the message")
    press(chat, "Enter", "End", "Enter")
    chat.page.keyboard.type("One,")
    press(chat, "Tab", "Tab")
    expect(chat.field).to_be_focused()
    chat.page.keyboard.type("Count")
    press(chat, "Enter")
    expect(chat.reply.locator(".prose")).to_have_text("One, two.")
    assert told.requests[0]["messages"][-1] == {"role": "assistant", "content": "One,"}


# ---- when the context is full --------------------------------------------------------------------


def test_the_oldest_turns_are_left_out_and_brought_back(chat: Site, told: Scripted) -> None:
    fill_up(chat, told, 3)
    tab_to(chat, "Leave out the oldest turns…", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.reply).to_contain_text("OK.")
    expect(chat.page.get_by_role("separator")).to_be_visible()
    expect(chat.field).to_be_focused()
    tab_to(chat, "Bring them back", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.page.get_by_role("separator")).to_have_count(0)


def test_it_goes_on_with_a_summary(chat: Site, told: Scripted) -> None:
    fill_up(chat, told, 2)
    told.will([text("They counted."), finish()])
    tab_to(chat, "Start a new conversation…", "Shift+Tab")
    press(chat, "Enter")
    summary = chat.page.get_by_role("dialog").locator("textarea")
    expect(summary).to_be_editable()
    tab_to(chat, "The new conversation begins with this…")
    press(chat, "Control+End")
    chat.page.keyboard.type(" To two.")
    tab_to(chat, "Start the new conversation")
    press(chat, "Enter")
    expect(chat.conversations).to_have_count(2)
    # After two questions, the one that was too much, and the summary.
    assert "They counted. To two." in told.requests[4]["messages"][0]["content"]


def test_the_setting_is_changed(chat: Site, told: Scripted) -> None:
    fill_up(chat, told, 2)
    tab_to(chat, "Change the setting…", "Shift+Tab")
    press(chat, "Enter")
    expect(chat.page.get_by_label("When the context is full")).to_be_focused()
    press(chat, "ArrowDown", "Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    told.will(FULL)
    chat.say("And another")
    expect(chat.reply).to_contain_text("OK.")
