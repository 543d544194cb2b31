"""What a type checker sees: a mistake in each line of one file, and the types of another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

BEGIN = """
from typing import Any
from llama_py import AsyncLlama, ChatSession, Llama
llm: Llama
model: AsyncLlama
session: ChatSession
chat: list[dict[str, Any]] = []
async def main() -> None:
"""
#: Each line is wrong.
WRONG = """
llm.create_completion("x", max_token=3)
llm.create_completion("x", max_tokens="3")
llm.create_completion(5)
llm.create_completion("x", stream=True)["choices"]
llm.create_chat_completion(chat, temperatur=0.1)
llm.create_chat_completion(chat, tools=3)
llm.create_chat_completion(chat)["choice"]
llm.create_chat_completion(chat)["choices"][0]["text"]
llm.create_chat_completion(chat).cach
llm.sample(temprature=1)
llm.generate([1], top_k="many")
llm.eval("text")
llm.score("x", ["y"], tool=[])
llm.prewarm(chat, pins=True)
llm.cache.pin(3)
llm.cache.snapshot(5)
llm.reset(cancle=True)
Llama("x.gguf", n_ctxx=5)
Llama("x.gguf", n_ctx="5")
Llama("x.gguf", type_k="q7_0")
Llama("x.gguf", split_mode="diagonal")
AsyncLlama("x.gguf", n_gpu_layer=1)
await model.create_completion("x", max_token=3)
await model.create_chat_completion(chat, temperature="hot")
(await model.create_chat_completion(chat, stream=True))["choices"]
ChatSession(llm, temprature=1)
session.send("x", top_p="1")
session.regenerate(stream=True).upper()
llm.chat_session("x", n=3)
"""
#: An expression, and its type.
TYPES = {
    'llm.create_completion("x")': "CompletionReply",
    'llm.create_completion("x", stream=True)': "ReplyStream[TypedDict",
    "llm.create_chat_completion(chat)": "ChatReply",
    "llm.create_chat_completion(chat, stream=True)": "ReplyStream[TypedDict",
    'llm.create_chat_completion(chat)["choices"][0]["message"]["content"]': "str | None",
    'llm.create_completion("x")["choices"][0]["text"]': "str",
    'llm.create_completion("x")["usage"]["total_tokens"]': "int",
    "llm.create_chat_completion(chat).cache": "dict[str, Any]",
    "llm.create_chat_completion(chat).dropped": "OverflowReport | None",
    'await model.create_completion("x")': "CompletionReply",
    'await model.create_completion("x", stream=True)': "AsyncReplyStream[TypedDict",
    "await model.create_chat_completion(chat)": "ChatReply",
    "await model.create_chat_completion(chat, stream=True)": "AsyncReplyStream[TypedDict",
    'await model.score("x", ["y"])': "list[llama_py.api.scoring.Score]",
    'await AsyncLlama.load("x")': "AsyncLlama",
    'llm.score("x", ["y"])': "list[llama_py.api.scoring.Score]",
    "llm.generate([1])": "Generator[int, Sequence[int] | None, None]",
    "llm.sample()": "int",
    "llm.seed": "int",
    "llm.cache.prewarm(chat)": "Prewarmed",
    "llm.save_state()": "LlamaState",
    "llm.cache.snapshot('a')": "SnapshotInfo",
    "llm.chat_session()": "ChatSession",
    'session.send("x")': "str",
    'session.send("x", stream=True)': "ReplyStream",
    "session.regenerate()": "str",
    "session.regenerate(stream=True)": "ReplyStream",
    'session.send_tool_result("a", "b", stream=True)': "ReplyStream | None",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says of each line (its number) of each file."""
    folder = tmp_path_factory.mktemp("types")
    lines = {
        "wrong_calls.py": WRONG.strip().splitlines(),
        "typed_calls.py": [f"reveal_type({expression})" for expression in TYPES],
    }
    for name, body in lines.items():
        text = BEGIN.lstrip() + "".join(f"    {line}\n" for line in body)
        (folder / name).write_text(text)
    found: dict[str, dict[int, str]] = {name: {} for name in lines}
    files = [str(folder / name) for name in lines]
    root = Path(__file__).resolve().parents[1]
    said, errors, _ = api.run(["--config-file", str(root / "pyproject.toml"), *files])
    assert not errors, errors
    assert "wrong_calls.py" in said, said
    for line in said.splitlines():
        match = re.match(r".*?(\w+\.py):(\d+): (?:error|note): (.*)", line)
        if match and match[1] in found:
            number = int(match[2]) - BEGIN.strip().count("\n") - 2
            found[match[1]].setdefault(number, match[3])
    return found


def test_each_wrong_call_is_reported(reports: dict[str, dict[int, str]]) -> None:
    lines = WRONG.strip().splitlines()
    missed = [line for number, line in enumerate(lines) if number not in reports["wrong_calls.py"]]
    assert missed == []


def test_the_type_of_each_call_is_concrete(reports: dict[str, dict[int, str]]) -> None:
    for number, (expression, expected) in enumerate(TYPES.items()):
        said = reports["typed_calls.py"].get(number, "nothing")
        assert said.startswith("Revealed type is"), (expression, said)
        assert expected in re.sub(r"builtins\.|typing\.|collections\.abc\.", "", said), expression
