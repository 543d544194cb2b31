"""Replies in the format of every model family whose template llama.cpp ships.

A template renders finished assistant messages too: the prompt of a conversation with such a
message, less the prompt of the conversation without it, is how the family writes it. That is what
a model of the family would generate, but for the end-of-generation token, whose text is cut off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import TemplateError
from tests.chat.openai import chat_request

BOS, EOS = "<s>", "</s>"

#: Texts of end-of-generation tokens; a reply ends before the first one after its last word.
EOG = (
    EOS,
    "<|im_end|>",
    "<|ifm|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|calls|>",
    "<|eot|>",
    "<|assistant_end|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_sentence>",
    "<｜end▁of▁sentence｜>",
    "<｜hy_eos:opensource｜>",
    "<seed:eos>",
    "[e~[",
    "<SPECIAL_12>",
    "<|role_end|>",
    "</assistant>",
    "<sep>",
    "<|message_sep|>",
    "<|end_of_msg|>",
    "<|tool_response>",
)


#: One template for each form of calls.
ONE_OF_EACH = frozenset(
    {
        "Apertus-8B-Instruct",
        "ByteDance-Seed-OSS",
        "Cohere2MoE",
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "GLM-4.6",
        "GigaChat3-10B-A1.8B",
        "IFM-K2-Horizon",
        "Kimi-K2-Instruct",
        "Kimi-K3",
        "LFM2.5-8B-A1B",
        "MiniMax-M2",
        "MiniMax-M3",
        "NVIDIA-Nemotron-Nano-v2",
        "Qwen-Qwen3-0.6B",
        "Qwen3.5-4B",
        "deepseek-ai-DeepSeek-V3.1",
        "deepseek-ai-DeepSeek-V3.2",
        "google-gemma-4-31B-it",
        "inclusionai-ling-3.0-flash",
        "llm-jp-llm-jp-4.1-8b-thinking",
        "meetkai-functionary-medium-v3.2",
        "meta-llama-Llama-3.1-8B-Instruct",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "muse-glimmer",
        "openai-gpt-oss-120b",
        "openbmb-MiniCPM5-1B",
        "tencent-Hy3",
        "upstage-Solar-Open-100B",
    }
)


@cache
def template_folder() -> Path:
    """The folder of the pinned llama.cpp that holds its test templates."""
    source = os.environ.get("LLAMA_PY_LLAMA_CPP_DIR")
    if source is None:
        resolver = Path(__file__).parents[2] / "vendor" / "resolve.py"
        command = [sys.executable, str(resolver), "--full"]
        source = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return Path(source) / "models" / "templates"


@cache
def names() -> list[str]:
    return sorted(path.stem for path in template_folder().glob("*.jinja"))


def load(name: str) -> ChatTemplate:
    return ChatTemplate.from_text(source(name), bos=BOS, eos=EOS)


def source(name: str) -> str:
    return (template_folder() / f"{name}.jinja").read_text(encoding="utf-8")


def tool(name: str, **properties: str) -> dict[str, Any]:
    """A function tool whose parameters are all required, given by their JSON types."""
    types = {key: {"type": kind, "description": key} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": types, "required": list(types)}
    function = {"name": name, "description": f"The tool {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, arguments: dict[str, Any], call_id: str = "abc123def") -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"type": "function", "id": call_id, "function": function}


TOOLS = [tool("get_weather", city="string", days="integer"), tool("add", a="number", b="number")]
USER = [{"role": "user", "content": "Weather in Paris?"}]
CONTENT = "It is sunny.\nVery <b>sunny</b> < 30."
REASONING = "Let me see."
WEATHER = call("get_weather", {"city": "Paris", "days": 47})
ADD = call("add", {"a": 58, "b": 69}, "zyx987wvu")

#: Templates that need more than ``enable_thinking`` to open a block of reasoning.
OPTIONS: dict[str, dict[str, Any]] = {"tencent-Hy3": {"reasoning_effort": "high"}}

#: What a reply may consist of.
KINDS: dict[str, dict[str, Any]] = {
    "content": {"content": CONTENT},
    "call": {"content": "", "tool_calls": [WEATHER]},
    "calls": {"content": "", "tool_calls": [WEATHER, ADD]},
    "reasoning": {"reasoning_content": REASONING, "content": CONTENT},
    "reasoning+call": {"reasoning_content": REASONING, "content": "", "tool_calls": [WEATHER]},
}


@dataclass(frozen=True)
class Sample:
    """A reply in a family's format, and what it says."""

    rendered: RenderedChat
    text: str
    message: dict[str, Any]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        calls = [entry["function"] for entry in self.message.get("tool_calls", ())]
        return [(entry["name"], json.loads(entry["arguments"])) for entry in calls]


class NoSample(Exception):
    """The template does not show how its family writes this kind of reply."""


#: Replies that no finished message shows, written down: (template, kind) -> text.
WRITTEN = {
    ("Apriel-1.6-15b-Thinker-fixed", "reasoning"): (
        f"{REASONING}\n[BEGIN FINAL RESPONSE]\n{CONTENT}"
    ),
    ("Apriel-1.6-15b-Thinker-fixed", "reasoning+call"): (
        f"{REASONING}\n[BEGIN FINAL RESPONSE]\n<tool_calls>"
        '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 47}}]</tool_calls>'
    ),
    ("CohereForAI-c4ai-command-r-plus-tool_use", "content"): CONTENT,
    ("CohereForAI-c4ai-command-r-plus-tool_use", "call"): (
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n'
        '        "parameters": {"city": "Paris", "days": 47}\n    }\n]```'
    ),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "content"): (
        f"<|START_RESPONSE|>{CONTENT}<|END_RESPONSE|>"
    ),
    ("llama-cpp-rwkv-world", "content"): CONTENT,
    **{
        (name, "call"): '<|tool_call_start|>[get_weather(city="Paris", days=47)]<|tool_call_end|>'
        for name in ("LFM2-8B-A1B", "LFM2.5-Instruct")
    },
}


def sample(name: str, kind: str) -> Sample:
    """A reply of one of ``KINDS`` in the format of a template.

    Raises:
        NoSample: with the reason.
    """
    template = load(name)
    message = {"role": "assistant", **KINDS[kind]}
    options = OPTIONS.get(name, {}) if "reasoning" in kind else {}
    rendered = template.render(_request(kind, **options))
    if (name, kind) in WRITTEN:
        return Sample(rendered, WRITTEN[name, kind], message)
    try:
        closed = _request(kind, messages=[*USER, message], closed=True, **options)
        whole = template.render(closed).prompt
    except TemplateError as error:
        raise NoSample(f"the template refuses it: {str(error).splitlines()[-1]}") from None
    reply, reasoned = _reply(rendered, whole)
    if "reasoning" in kind and REASONING not in reply:
        reply, reasoned = _reason(rendered, reply), True  # templates forget earlier reasoning
    text = _cut(reply, message)
    if reasoned:
        message["reasoning_content"] = REASONING
    return Sample(rendered, text, message)


def _request(kind: str, closed: bool = False, **changes: Any) -> ChatRequest:
    options: dict[str, Any] = {"messages": USER, "now": 0, **changes}
    return chat_request(
        tools=TOOLS if "call" in kind else None,
        parallel_tool_calls=kind == "calls",
        enable_thinking="reasoning" in kind,
        add_generation_prompt=not closed,
        **options,
    )


def _reply(rendered: RenderedChat, whole: str) -> tuple[str, bool]:
    """What a model would have generated, and whether reasoning had to be put in front.

    Prompts of reasoning models often end with the opening of the reasoning, while finished
    messages have none: then the reply is a piece of reasoning, its end, and the message.
    """
    prompt = rendered.prompt
    for opened in (prompt, prompt.rstrip()):
        if whole.startswith(opened):
            return whole[len(opened) :], False
    mark = rendered.thinking_start
    at = prompt.rfind(mark, len(prompt) - len(rendered.generation_prompt)) if mark else -1
    if at >= 0 and whole.startswith(prompt[:at].rstrip()):
        body = whole[len(prompt[:at].rstrip()) :]
        if any(end in prompt[at:] for end in rendered.thinking_ends):
            return body.removeprefix(rendered.thinking_ends[0]), False
        return f"{REASONING}\n{rendered.thinking_ends[0]}{body.lstrip()}", True
    raise NoSample(f"finished messages do not begin as the prompt ends: {prompt[-40:]!r}")


def _reason(rendered: RenderedChat, reply: str) -> str:
    """The reply with reasoning in front."""
    start, end = rendered.thinking_start, rendered.thinking_ends[0]
    body = reply.strip().removeprefix(start).lstrip().removeprefix(end).lstrip()
    opened = rendered.generation_prompt.rstrip().endswith(start)
    return ("" if opened else start + "\n") + REASONING + "\n" + end + "\n" + body


def _cut(reply: str, message: dict[str, Any]) -> str:
    """The reply without its end-of-generation text and what follows."""
    words = [message["content"], message.get("reasoning_content", "")]
    for entry in message.get("tool_calls", ()):
        values = json.loads(entry["function"]["arguments"]).values()
        words += [entry["function"]["name"], *map(str, values)]
    lost = [word for word in words if word not in reply]
    if lost:
        raise NoSample(f"a finished message loses {lost}")
    last = max(reply.rfind(word) + len(word) for word in words if word)
    ends = [at for at in (reply.find(text, last) for text in EOG) if at >= 0]
    return reply[: min(ends, default=len(reply))]
