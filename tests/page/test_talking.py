"""A conversation with the bundled model, from the first message on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open
from tests.page.scripted import Gate, Scripted, finish, text, thought, usage
from tests.page.site import Site, eventually
from tests.server.serving import Server


@pytest.fixture
def demo(visit: Open, real: Server) -> Site:
    """The page of the real server."""
    return visit(real.url)


def test_a_question_is_answered(demo: Site) -> None:
    demo.say("What is 7 + 8?")
    expect(demo.reply).to_contain_text("7 + 8 = 15.")
    expect(demo.conversations).to_have_text(["What is 7 + 8?"])
    assert demo.page.title() == "What is 7 + 8? · llama_py"


def test_every_starter_is_answered_well(demo: Site) -> None:
    answers = {
        "What is 7": "7 + 8 = 15.",
        "My name is": "Anna",
        "JSON": '"Alice"',
        "Paris": "Paris",
    }
    for label, answer in answers.items():
        demo.page.locator(".starter", has_text=label).click()
        demo.wait()
        expect(demo.reply).to_contain_text(answer)
        demo.begin()


def test_a_later_turn_says_what_was_reused(demo: Site) -> None:
    demo.say("My name is Anna.")
    demo.say("What is my name?")
    expect(demo.reply).to_contain_text("Your name is Anna.")
    found = re.search(r"reused (\d+) of (\d+) tokens", demo.reply.inner_text())
    assert found
    assert 0 < int(found[1]) < int(found[2])
    expect(demo.reply).to_contain_text(re.compile(r"first token [\d.]+ m?s"))
    expect(demo.reply).to_contain_text(re.compile(r"[\d,.]+ tokens/s"))


def test_a_tool_is_called_and_its_result_is_used(demo: Site) -> None:
    demo.page.locator(".starter", has_text="Paris").click()
    demo.wait()
    expect(demo.page.get_by_label("Call of a tool")).to_contain_text("get_weather")
    expect(demo.page.get_by_label("Arguments of get_weather")).to_contain_text('"city": "Paris"')
    result = json.dumps({"temperature": 21, "condition": "sunny"})
    demo.page.get_by_label("Result of get_weather").fill(result)
    demo.button("Send results").click()
    demo.wait()
    expect(demo.reply).to_contain_text("21")
    expect(demo.page.get_by_role("region", name="Result of get_weather")).to_contain_text("sunny")


def test_json_is_laid_out(demo: Site) -> None:
    demo.say("Give me a JSON object with name Alice and age 30.")
    shown = demo.reply.get_by_role("region", name="Reply in JSON")
    assert json.loads(shown.inner_text()) == {"name": "Alice", "age": 30}
    assert shown.inner_text().count("\n") == 3
    expect(shown.locator(".json-key").first).to_have_text('"name":')


def test_the_conversation_is_there_after_a_reload(demo: Site) -> None:
    demo.say("My name is Anna.")
    demo.reload()
    expect(demo.reply).to_contain_text("Nice to meet you, Anna.")
    demo.say("What is my name?")
    expect(demo.reply).to_contain_text("Your name is Anna.")


def test_again_and_edit_make_branches(demo: Site) -> None:
    demo.say("Count to 5.")
    demo.in_reply("Answer again").click()
    demo.wait()
    expect(demo.reply.locator(".place")).to_have_text("2/2")
    demo.in_reply("Previous version").click()
    expect(demo.reply.locator(".place")).to_have_text("1/2")

    demo.asked.get_by_role("button", name="Edit", exact=True).click()
    editor = demo.page.get_by_label("Edit the message")
    assert editor.input_value() == "Count to 5."
    editor.fill("Count to 3.")
    editor.press("Enter")
    demo.wait()
    expect(demo.reply).to_contain_text("1, 2, 3.")
    expect(demo.asked.locator(".place")).to_have_text("2/2")
    demo.asked.get_by_role("button", name="Previous version").click()
    expect(demo.reply).to_contain_text("1, 2, 3, 4, 5.")
    expect(demo.reply.locator(".place")).to_have_text("2/2")


def test_the_chosen_branch_is_there_after_a_reload(demo: Site) -> None:
    demo.say("Count to 5.")
    demo.in_reply("Answer again").click()
    demo.wait()
    demo.in_reply("Previous version").click()
    replies = [each for each in demo.stored()["messages"] if each["role"] == "assistant"]
    first = min(replies, key=lambda reply: reply["created"])
    eventually(lambda: demo.stored()["conversations"][0]["leaf"] == first["id"])
    demo.reload()
    expect(demo.reply.locator(".place")).to_have_text("1/2")


def test_the_beginning_of_a_reply_is_continued(demo: Site) -> None:
    demo.button("Add to the message").click()
    demo.menu("Begin the reply")
    demo.page.get_by_label("The reply begins with").fill("1, 2,")
    demo.say("Count to 5.")
    expect(demo.reply).to_contain_text("1, 2, 3, 4, 5.")


def test_a_reply_is_edited_and_goes_on(demo: Site) -> None:
    demo.say("Count to 5.")
    demo.in_reply("More").click()
    demo.menu("Edit")
    demo.page.get_by_label("Edit the reply").fill("1, 2, 3,")
    demo.button("Save and continue").click()
    demo.wait()
    expect(demo.reply).to_contain_text("1, 2, 3, 4, 5.")
    expect(demo.reply.locator(".place")).to_have_text("2/2")


def test_certainty_is_shown_on_demand(demo: Site) -> None:
    demo.say("What is 2 + 3?")
    demo.in_reply("More").click()
    demo.menu("Answer again with certainty")
    demo.wait()
    demo.settings()
    expect(demo.page.get_by_label("Record how certain the model is")).not_to_be_checked()
    demo.close_dialog()
    demo.in_reply("Colour by certainty").click()
    tokens = demo.reply.get_by_role("option")
    assert "".join(tokens.all_inner_texts()).strip().startswith("2 + 3 = 5")
    tokens.nth(2).hover()
    expect(demo.reply.get_by_text("What could have stood here")).to_be_visible()
    expect(demo.reply.locator(".alternatives .chosen")).to_contain_text("%")
    demo.in_reply("Colour by certainty").click()
    expect(demo.reply.locator(".prose")).to_contain_text("2 + 3 = 5.")


def test_a_schema_binds_the_reply(demo: Site) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    demo.settings().get_by_label("JSON schema of the replies").fill(json.dumps(schema))
    demo.close_dialog()
    demo.say("Hello!")
    assert json.loads(demo.reply.locator("pre").inner_text()) == {"n": 7}


# ---- what is sent --------------------------------------------------------------------------------


def test_only_what_was_set_is_sent(chat: Site, told: Scripted) -> None:
    chat.say("One")
    sheet = chat.settings()
    sheet.get_by_label("System prompt").fill("Be brief.")
    sheet.get_by_label("Temperature").fill("0.7")
    sheet.get_by_label("Longest reply").fill("50")
    sheet.get_by_label("Stop texts").fill("END")
    sheet.get_by_label("Reason before the answer").select_option("No")
    chat.close_dialog()
    chat.say("Two")
    plain, full = told.requests
    record = chat.stored()["conversations"][0]
    assert plain == {
        "model": "model",
        "messages": [{"role": "user", "content": "One"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "session_id": record["id"],
    }
    added = {"temperature": 0.7, "max_tokens": 50, "stop": ["END"], "enable_thinking": False}
    assert {key: value for key, value in full.items() if key not in plain} == added
    assert [each["role"] for each in full["messages"]] == ["system", "user", "assistant", "user"]
    chat.begin()
    chat.say("Three")
    assert set(told.requests[2]) == set(plain), "they are those of one conversation"
    assert told.requests[2]["messages"] == [{"role": "user", "content": "Three"}]


def test_a_value_out_of_range_is_refused_in_words(chat: Site, told: Scripted) -> None:
    sheet = chat.settings()
    sheet.get_by_label("Top-p").fill("1.5")
    expect(sheet.get_by_role("alert").filter(visible=True)).to_have_text("At most 1.")
    sheet.get_by_label("Tools").fill("{")
    expect(sheet.get_by_text("Not JSON yet")).to_be_visible()
    chat.close_dialog()
    chat.say("Hello")
    assert "top_p" not in told.requests[0]
    assert "tools" not in told.requests[0]


def test_files_go_before_the_question(chat: Site, told: Scripted, tmp_path: Path) -> None:
    good, bad = tmp_path / "notes.md", tmp_path / "program.bin"
    good.write_text("Use ```fences``` here.\n", encoding="utf-8")
    bad.write_bytes(b"\x89PNG\0\xff")
    chat.page.set_input_files("input[type=file][multiple]", [good, bad])
    chat.shows("program.bin is not a text file")
    chat.say("What is this?")
    content = told.requests[0]["messages"][0]["content"]
    assert content == "File notes.md:\n````\nUse ```fences``` here.\n````\n\nWhat is this?"
    expect(chat.asked).to_contain_text("notes.md")


def test_the_model_that_answers_is_chosen(visit: Open, told: Scripted) -> None:
    told.models = ["small", "large"]
    chat = visit(told.url)
    chat.page.get_by_label("Model", exact=True).select_option("large")
    chat.say("Hello")
    chat.reload()
    chat.say("Again")
    assert [each["model"] for each in told.requests] == ["large", "large"]


def test_with_several_models_a_reply_says_which_one_wrote_it(visit: Open, told: Scripted) -> None:
    chat = visit(told.url)
    chat.say("Hello")
    expect(chat.reply.locator(".author")).to_have_count(0)
    told.models = ["model", "large"]
    chat.reload()
    expect(chat.reply.locator(".author")).to_have_text("model")


def test_the_title_follows_the_first_question(chat: Site, told: Scripted) -> None:
    chat.say("One")
    chat.say("Two")
    first = chat.page.locator(".message.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    chat.page.get_by_label("Edit the message").fill("Three")
    chat.button("Send").first.click()
    chat.wait()
    expect(chat.conversations).to_have_text(["Three"])


def test_the_start_names_the_model_and_waiting_counts_the_seconds(
    chat: Site, told: Scripted
) -> None:
    expect(chat.page.locator("#start")).to_contain_text("The model model runs in this server.")
    gate = Gate()
    told.will([gate, text("Yes")])
    chat.say("Hello", wait=False)
    expect(chat.reply).to_contain_text(re.compile(r"\w · \d+(\.\d)? s"), timeout=30_000)
    gate.open()
    expect(chat.reply).to_contain_text("Yes")


def test_a_gpu_that_is_not_used_is_mentioned(visit: Open, told: Scripted) -> None:
    assert visit(told.url).page.locator("#start .hint").count() == 0
    told.device_hint = "the AMD GPU is not used: build a backend for it"
    expect(visit(told.url).page.locator("#start")).to_contain_text("the AMD GPU is not used")


def test_settings_hold_for_new_conversations_if_wanted(chat: Site, told: Scripted) -> None:
    sheet = chat.settings()
    sheet.get_by_label("System prompt").fill("Be brief.")
    sheet.get_by_role("button", name="Use all this for new conversations").click()
    assert chat.page.locator("#toasts").evaluate("place => place.matches(':popover-open')")
    chat.close_dialog()
    chat.say("One")
    chat.begin()
    chat.say("Two")
    assert told.requests[1]["messages"][0] == {"role": "system", "content": "Be brief."}


# ---- while it comes ------------------------------------------------------------------------------


def test_stopping_keeps_what_has_come(chat: Site, told: Scripted) -> None:
    told.will([text("One, two"), Gate()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One, two")
    chat.button("Stop").click()
    chat.wait()
    expect(chat.reply).to_contain_text("One, two")
    expect(chat.reply).to_contain_text("stopped")
    chat.say("Go on")
    assert told.requests[1]["messages"][1] == {"role": "assistant", "content": "One, two"}
    eventually(lambda: told.cancelled == 1)


def test_what_is_there_is_left_alone_while_a_reply_grows(chat: Site, told: Scripted) -> None:
    gate = Gate()
    begun = "A **first** paragraph.\n\n```py\nx = 1\n"
    told.will([text(begun), gate, text("```\n\nAnd"), 0.1, text(" more"), 0.1, text("."), finish()])
    chat.say("Go on", wait=False)
    expect(chat.reply).to_contain_text("x = 1")
    copy = chat.in_reply("Copy")
    copy.focus()
    chat.reply.locator("p").first.evaluate("(p) => getSelection().selectAllChildren(p)")
    gate.open()
    expect(chat.reply).to_contain_text("And more.")
    chat.wait()
    assert chat.page.evaluate("() => String(getSelection())") == "A first paragraph."
    expect(copy).to_be_focused()


def test_reasoning_is_folded(chat: Site, told: Scripted) -> None:
    gate = Gate()
    told.will([thought("Let me **see**."), gate, text("It is five."), finish()])
    chat.say("How much?", wait=False)
    expect(chat.reply.locator("summary")).to_have_text("Thinking")
    gate.open()
    chat.wait()
    expect(chat.reply.locator("summary")).to_have_text(re.compile("Thought for"))
    expect(chat.reply.get_by_text("Let me")).to_be_hidden()
    chat.reply.locator("summary").click()
    expect(chat.reply.locator("details strong")).to_have_text("see")
    chat.say("Why?")
    assert told.requests[1]["messages"][1]["reasoning_content"] == "Let me **see**."


def test_reasoning_can_be_ended(chat: Site, told: Scripted) -> None:
    told.will([thought("Let me see."), Gate()], [text("Five."), finish()])
    chat.say("How much?", wait=False)
    chat.button("Answer now").click()
    expect(chat.reply.locator(".prose").last).to_have_text("Five.")
    chat.wait()
    assert told.requests[1]["continue_final_message"] == "content"
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me see."}
    assert told.requests[1]["messages"][-1] == begun
    eventually(lambda: told.cancelled == 1)


def test_two_conversations_are_answered_side_by_side(chat: Site, told: Scripted) -> None:
    gate = Gate()
    told.will([text("slow "), gate, text("reply"), finish()], [text("quick reply"), finish()])
    chat.say("First", wait=False)
    expect(chat.reply).to_contain_text("slow")
    chat.begin()
    chat.say("Second")
    expect(chat.reply).to_contain_text("quick reply")
    expect(chat.page.locator(".entry.running")).to_have_text("First")
    gate.open()
    expect(chat.page.locator(".entry.running")).to_have_count(0)
    chat.conversations.filter(has_text="First").click()
    expect(chat.reply).to_contain_text("slow reply")


def test_a_reply_that_was_cut_off_can_go_on(chat: Site, told: Scripted) -> None:
    told.will([text("One, "), finish("length"), usage(10, 0, 2)], [text("two."), finish()])
    chat.say("Count")
    expect(chat.reply).to_contain_text("The reply was cut off")
    expect(chat.reply).to_contain_text("It has 2 tokens, as many as it may have.")
    chat.in_reply("Continue").click()
    chat.wait()
    expect(chat.reply.locator(".prose")).to_have_text("One, two.")
    assert told.requests[1]["continue_final_message"] is True
    assert told.requests[1]["messages"][-1] == {"role": "assistant", "content": "One, "}


def is_kept(chat: Site, reply: str) -> bool:
    """Whether the browser's database has a reply as far as it has come."""
    return any(each["content"] == reply for each in chat.stored()["messages"])


def test_a_reload_in_the_middle_goes_on_with_the_reply(chat: Site, told: Scripted) -> None:
    gate = Gate()
    told.will([text("One, two, "), gate], [text("three."), finish()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One, two,")
    eventually(lambda: is_kept(chat, "One, two, "))
    chat.reload()
    expect(chat.reply.locator(".prose")).to_have_text("One, two, three.")
    assert told.requests[1]["messages"][-1] == {"role": "assistant", "content": "One, two, "}


# Pages that came over plain HTTP from another machine have no locks.
@pytest.mark.parametrize("script", ["", "delete Navigator.prototype.locks"], ids=["locks", "none"])
def test_another_tab_leaves_a_running_reply_alone(visit: Open, told: Scripted, script: str) -> None:
    chat = visit(told.url, script=script) if script else visit(told.url)
    assert chat.page.evaluate("() => 'locks' in navigator") == (not script)
    gate = Gate()
    told.will([text("One, "), gate, text("two."), finish()])
    chat.say("Count", wait=False)
    expect(chat.reply).to_contain_text("One,")
    eventually(lambda: is_kept(chat, "One, "))
    address = chat.page.url.removeprefix(chat.url)
    other = chat.open(address)
    expect(other.locator("article.reply")).to_contain_text("One,")
    other.wait_for_timeout(1000)  # in which it would go on, if nobody did
    gate.open()
    chat.wait()
    expect(chat.reply.locator(".prose")).to_have_text("One, two.")
    assert len(told.requests) == 1


def test_what_one_tab_writes_is_shown_in_the_others(chat: Site, told: Scripted) -> None:
    chat.say("First")
    other = chat.open(chat.page.url[len(chat.url) :])
    expect(other.locator("article")).to_have_count(2)
    other.get_by_label("Message", exact=True).fill("Not sent yet")
    told.will([text("Second answer."), finish()])
    chat.say("Second")
    expect(other.locator("article")).to_have_count(4)
    expect(other.locator("article").last).to_contain_text("Second answer.")
    expect(other.get_by_label("Message", exact=True)).to_have_value("Not sent yet")
    other.keyboard.press("Enter")
    expect(chat.replies).to_have_count(3)
    assert [each["content"] for each in told.requests[-1]["messages"]] == [
        *("First", "OK.", "Second", "Second answer.", "Not sent yet")
    ]
    chat.begin()
    chat.say("Another one")
    expect(other.locator("#conversations a")).to_have_text(["Another one", "First"])


# ---- copying, exporting --------------------------------------------------------------------------


def test_replies_and_code_are_copied_as_they_were_written(chat: Site, told: Scripted) -> None:
    lines = "\n".join(f"print({number})\n" if number % 9 else "" for number in range(90)) + "\n1"
    reply = f"Use **this**:\n\n```python\n{lines}\n```"
    told.will([text(reply), finish()])
    chat.say("How?")
    clipboard = "() => navigator.clipboard.readText()"
    chat.in_reply("Copy the reply").click()
    chat.page.wait_for_function(f"async () => (await ({clipboard})()).startsWith('Use')")
    assert chat.page.evaluate(clipboard) == reply
    chat.reply.get_by_role("button", name="Copy", exact=True).click()
    expect(chat.reply.get_by_text("Copied")).to_be_visible()
    assert chat.page.evaluate(clipboard) == lines
    chat.reply.locator("pre").evaluate("(pre) => getSelection().selectAllChildren(pre)")
    assert chat.page.evaluate("() => String(getSelection())").rstrip("\n") == lines


def test_everything_is_exported_and_imported(
    chat: Site, told: Scripted, visit: Open, tmp_path: Path
) -> None:
    told.will([text("First."), finish()], [text("Second."), finish()])
    chat.say("One")
    chat.in_reply("Answer again").click()
    chat.wait()
    file = tmp_path / "all.json"
    with chat.page.expect_download() as download:
        chat.button("Export all conversations").click()
    download.value.save_as(file)
    exported = json.loads(file.read_text(encoding="utf-8"))
    assert exported["format"] == "llama-py-chat"

    other = visit(told.url)
    import_file(other, file)
    other.shows("1 added.")
    import_file(other, file)
    other.shows("0 added, 1 were here already.")
    other.conversations.click()
    expect(other.reply).to_contain_text("Second.")
    expect(other.reply.locator(".place")).to_have_text("2/2")
    assert other.stored() == chat.stored()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("no json", "This file is not JSON."),
        ("[]", "not an export of this page"),
        ({"version": 9}, "newer version"),
        ({"conversations": [{"id": "a"}]}, "Conversation 1 of the file is incomplete."),
        (
            {"conversations": [{"id": "a", "messages": [{"id": "x", "role": "root"}]}]},
            "has a message that cannot be read",
        ),
    ],
)
def test_what_is_no_export_is_refused_in_words(
    chat: Site, tmp_path: Path, content: Any, answer: str
) -> None:
    file = tmp_path / "file.json"
    whole = {"format": "llama-py-chat", "version": 1, "conversations": []}
    text = content if isinstance(content, str) else json.dumps({**whole, **content})
    file.write_text(text, encoding="utf-8")
    import_file(chat, file)
    chat.shows(re.compile(re.escape(answer)))
    assert not chat.stored()["conversations"]


def test_a_circle_of_messages_is_refused(chat: Site, tmp_path: Path) -> None:
    def message(name: str, parent: str) -> dict[str, Any]:
        return {"id": name, "parent": parent, "role": "user", "content": "", "created": 1}

    circle = {"id": "a", "leaf": "x", "messages": [message("x", "y"), message("y", "x")]}
    whole = {"format": "llama-py-chat", "version": 1, "conversations": [circle]}
    file = tmp_path / "circle.json"
    file.write_text(json.dumps(whole), encoding="utf-8")
    import_file(chat, file)
    chat.shows(re.compile("has a message that cannot be read"))
    assert not chat.stored()["conversations"]


def import_file(site: Site, file: Path) -> None:
    """Choose a file to import."""
    with site.page.expect_file_chooser() as chooser:
        site.button("Import conversations").click()
    chooser.value.set_files(file)
