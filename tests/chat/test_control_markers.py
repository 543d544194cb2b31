"""Markers of reasoning and of tool calls that are control tokens, as in many real vocabularies.

Control tokens are not shown to users, but the parser of a reply cannot do without its markers. The
other tests feed text to the parser; here a model really generates the tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from llama_py import Llama
from llama_py.dialects.openai.fold import fold_chat
from tests.chat.families import template_folder
from tests.models import tiny_model
from tests.steering import Steer

REPLY = (
    "<think>\nIt is about the weather.\n</think>\n\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
)
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def with_control_markers(folder: Path) -> Path:
    """The tiny model, whose added tokens (<think>, <tool_call> and their ends) are all CONTROL."""
    path = folder / "control.gguf"
    shutil.copy(tiny_model("full"), path)
    field = gguf.GGUFReader(path, "r+").fields["tokenizer.ggml.token_type"]
    for index in field.data:
        kind = field.parts[index]
        if kind[0] == gguf.TokenType.USER_DEFINED:
            kind[0] = gguf.TokenType.CONTROL
    return path


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    path = with_control_markers(tmp_path_factory.mktemp("control"))
    template = (template_folder() / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    with Llama(path, n_ctx=1024, n_threads=1, chat_template=template) as opened:
        marker = opened.tokenize(b"<tool_call>", add_bos=False, special=True)
        assert len(marker) == 1
        assert opened.detokenize(marker) == b""  # or these tests would show nothing
        yield opened


def message_of(llm: Llama, reply: str, stream: bool, **options: Any) -> tuple[Any, str]:
    """The message that the model's reply becomes, and why it ended."""
    tokens = llm.tokenize(reply.encode(), add_bos=False, special=True)
    response: Any = llm.create_chat_completion(
        [{"role": "user", "content": "What is the weather in Paris?"}],
        logits_processor=[Steer(tokens)],
        temperature=0,
        max_tokens=200,
        stream=stream,
        **options,
    )
    whole: Any = fold_chat(list(response)) if stream else response
    choice = whole["choices"][0]
    return choice["message"], choice["finish_reason"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_and_its_reasoning_are_read_from_control_tokens(llm: Llama, stream: bool) -> None:
    message, reason = message_of(llm, REPLY, stream, tools=TOOLS)
    assert reason == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert message["reasoning_content"].strip() == "It is about the weather."
    assert not message["content"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_reasoning_between_control_tokens_is_not_content(llm: Llama, stream: bool) -> None:
    message, reason = message_of(llm, "<think>\nHm.\n</think>\n\nFour.<|im_end|>", stream)
    assert reason == "stop"
    assert message["content"].strip() == "Four."
    assert message["reasoning_content"].strip() == "Hm."
