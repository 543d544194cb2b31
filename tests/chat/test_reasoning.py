"""Reasoning ends at one place for everybody: constraints, budgets, grammars and the parser.

A model that wants to say a reply in its family's format says it under every constraint that its
answer fits, token for token: whatever its reasoning says, whichever mark ends it, whether the
vocabulary has the mark as a token, and whatever line breaks are around it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from llama_py import LlamaGrammar
from llama_py.chat import constraints
from llama_py.chat.constraints import render_constrained
from llama_py.chat.messages import ChatRequest
from llama_py.chat.reasoning import Reasoning, ReasoningWatch, reasoning_of
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, fold
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.chat import parse_chat
from llama_py.params import GrammarSpec, ModelParams, SamplingParams
from tests.chat import families
from tests.chat.openai import chat_request
from tests.dialects.playing import Context
from tests.steering import spelled, vocabulary_model

BACKENDS = ("llguidance", "gbnf")
ANSWER = '{"a": 12, "b": "x y"}'
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
#: What a model may think: an answer, prose, code, marks that are none.
THOUGHT = 'Is it {"a": 1}? No: </p> <b>"x"</b> </thin\nk> [/INST] fine, ü 😀.'
#: Ends of reasoning: what comes before the mark, and behind it.
AROUND = [("\n", "\n\n"), ("", ""), ("\n\n", "\n")]
#: One template for each way of ending reasoning, for the run of every day.
SOME = [
    "Qwen3.5-4B",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-4-31B-it",
    "mistralai-Ministral-3-14B-Reasoning-2512",
]
#: Families that write a mark between the reasoning and the answer, with nothing around it.
WRAPPED = (
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Kimi-K3",
    "llm-jp-llm-jp-4.1-8b-thinking",
    "openai-gpt-oss-120b",
)
#: One for each way in which a call follows reasoning: behind a place for content, or behind none,
#: in a message of its own, where the call may end the reasoning, and in Python's notation.
CALLERS = [
    "Qwen-QwQ-32B",
    "google-gemma-4-31B-it",
    "openai-gpt-oss-120b",
    "llm-jp-llm-jp-4.1-8b-thinking",
    "deepseek-ai-DeepSeek-V3.2",
    "LFM2.5-8B-A1B",
    "IFM-K2-Horizon",
]
#: What families write before the mark of a call: a section of calls, an empty answer, or nothing.
OPENERS = ["Kimi-K2-Instruct", "Kimi-K3", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"]
#: Families whose marks, where they are text, end in a token that begins what follows: ``>[``,
#: ``>\n`` and ``><``.
SHARERS = ["NVIDIA-Nemotron-Nano-v2", "Qwen3.5-4B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"]
_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@cache
def template_of(name: str) -> ChatTemplate:
    return families.load(name)


@cache
def sample_of(name: str, kind: str) -> str:
    """A reply in a family's format.

    Raises:
        NoSample: the template does not show one.
    """
    return families.sample(name, kind).text


@cache
def rendered_of(name: str, thinking: bool = True, **options: Any) -> RenderedChat:
    more = families.OPTIONS.get(name, {}) if thinking else {}
    ask = {"messages": families.USER, "now": 0, "enable_thinking": thinking, **more, **options}
    return template_of(name).render(chat_request(**ask))


@cache
def reasoning_names() -> list[str]:
    return [name for name in families.names() if reasoning_of(rendered_of(name)).possible]


@cache
def all_marks() -> tuple[str, ...]:
    """The marks of all families that would be single tokens."""
    found: dict[str, None] = {"<tool_call>": None, "</tool_call>": None}
    for name in reasoning_names():
        rendered = rendered_of(name)
        for text in (rendered.thinking_start, *rendered.thinking_ends):
            found.update(dict.fromkeys(_MARK.findall(text)))
    found.pop("<|end|>")  # llama.cpp would end the reply at a token of this name
    return tuple(found)


@pytest.fixture(scope="module", params=["tokens", "text"])
def vocab(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    """A real vocabulary, with all marks as tokens of it, or with none."""
    marks = all_marks() if request.param == "tokens" else ()
    with Model(vocabulary_model("falcon", marks), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@dataclass
class Constrained(Context):
    """A context that renders as a loaded model does."""

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        return render_constrained(self.template, request, self.vocab)


@dataclass(frozen=True)
class Asked:
    """A call, ready to be sampled."""

    rendered: RenderedChat
    sampling: SamplingParams


def ask(vocab: Vocab, template: ChatTemplate, **options: Any) -> Asked:
    context = Constrained(vocab, template)
    call = parse_chat(context, families.USER, temperature=0, **options)
    return Asked(call.rendered, call.requests[0].sampling)


def say(vocab: Vocab, sampling: SamplingParams, wishes: Sequence[int]) -> list[int]:
    """The tokens of a model that wishes for these, one after the other."""
    sampler, said = Sampler(vocab, sampling), []
    try:
        for wish in wishes:
            row = np.zeros(vocab.n_tokens, np.float32)
            row[wish] = 10
            said.append(sampler.sample(row))
    finally:
        sampler.close()
    return said


def tokens_of(vocab: Vocab, text: str, in_pieces: bool) -> list[int]:
    """Tokens of a text, in which marks are tokens if the vocabulary has them, or in pieces."""
    if not in_pieces:
        return vocab.tokenize(text, add_special=False, parse_special=True)
    cuts = [0, *(at.start() + 2 for at in _MARK.finditer(text)), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]
    return [token for part in parts for token in spelled(vocab, part.encode())]


def reply_of(name: str, answer: str, kind: str = "reasoning", around: Any = AROUND[0]) -> str:
    """A reply with reasoning in the format of a family."""
    try:
        text = sample_of(name, kind)
    except families.NoSample:
        if kind != "reasoning":
            raise
        reasoning = reasoning_of(rendered_of(name))
        start = "" if reasoning.inside else reasoning.start + "\n"
        text = f"{start}{families.REASONING}\n{reasoning.end}\n{families.CONTENT}"
    end = reasoning_of(rendered_of(name)).end
    before, after = around
    head, _, tail = text.partition(families.REASONING)
    tail = tail.rstrip()  # templates end messages with line breaks; an answer has none
    if name in WRAPPED:
        tail = re.sub(rf"^\s*{re.escape(end)}\s*", lambda _: end, tail)
    else:
        tail = re.sub(rf"^\s*{re.escape(end)}\s*", lambda _: f"{before}{end}{after}", tail)
    return head + THOUGHT + tail.replace(families.CONTENT, answer)


def parsed(rendered: RenderedChat, text: str) -> dict[str, Any]:
    """The message that a reply is, whole and in pieces alike."""
    stream = ChatStream(rendered, new_id=lambda: "id")
    parts = (text[at : at + 3] for at in range(0, len(text), 3))
    deltas = [delta for part in parts for delta in stream.feed(part)]
    whole = ChatStream(rendered, new_id=lambda: "id")
    whole.feed(text)
    message = whole.finish().as_message()
    assert fold([*deltas, *stream.flush()]).as_message() == message
    return message


def use(backend: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(constraints, "available", lambda: backend == "llguidance")


#: Constraints that the reply fits: the arguments of a call.
CONSTRAINTS: dict[str, Any] = {
    "schema": {"response_format": FORM},
    "gbnf": {"grammar": 'root ::= "{" [^}]+ "}"'},
    "grammar": {"grammar": LlamaGrammar.from_json_schema(SCHEMA)},
    "tools+schema": {"response_format": FORM, "tools": families.TOOLS},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
#: The same for replies that call a tool.
CALLS: dict[str, Any] = {
    "required": {"tools": families.TOOLS, "tool_choice": "required"},
    "named": {"tools": families.TOOLS, "tool_choice": NAMED},
    "call+schema": {"response_format": FORM, "tools": families.TOOLS},
}
#: How the reasoning of a reply is asked for.
MODES: dict[str, Any] = {
    "on": {"enable_thinking": True},
    "off": {"enable_thinking": False},
    "budget 0": {"reasoning_budget": 0},
    "budget": {"enable_thinking": True, "reasoning_budget": 6},
}
FEW = " one two three four five six"


def reply_in(
    vocab: Vocab, name: str, mode: str, asked: Asked, calls: bool, around: Any
) -> list[str]:
    """The reply of a family to a call: with its reasoning, without any, or with little of it.

    In parts, whose tokens do not meet.
    """
    reasoning = reasoning_of(asked.rendered)
    thinks = mode in ("on", "budget")
    if not thinks and not reasoning.inside:
        text = sample_of(name, "call" if calls else "content").replace(families.CONTENT, ANSWER)
        # An end of reasoning that this family's parser does not read is not part of an answer.
        end = rendered_of(name).thinking_ends[0].strip()
        text = text.rstrip().lstrip("\n").removeprefix(end).lstrip("\n")
        opened = bool(reasoning.start) and text.startswith(reasoning.start)
        return [*text.partition(end)] if opened else [text]
    text = reply_of(
        name, "" if calls else ANSWER, "reasoning+call" if calls else "reasoning", around
    )
    if mode == "on":
        return [text]
    behind = text.partition(THOUGHT)[2].lstrip().removeprefix(reasoning.end)
    if not thinks:
        return [reasoning.closing, behind]  # this template opens the reasoning all the same
    few = vocab.detokenize(tokens_of(vocab, FEW, False)[:6]).decode()
    return ["" if reasoning.inside else reasoning.start, few, reasoning.closing, behind]


def is_limit(constraint: str, backend: str, name: str, mode: str) -> bool:
    """Whether a reply is one that the documentation says is left out."""
    # llama.cpp's grammar of such an answer needs a Markdown fence around it.
    return constraint == "tools+schema" and backend == "gbnf" and "gemma-4" in name


def check_reply(
    vocab: Vocab, name: str, constraint: str, in_pieces: bool, around: Any, mode: str = "on"
) -> None:
    calls = constraint in CALLS
    options = {**(CALLS if calls else CONSTRAINTS)[constraint], **MODES[mode]}
    if mode in ("on", "budget"):
        options |= families.OPTIONS.get(name, {})
    asked = ask(vocab, template_of(name), **options)
    parts = reply_in(vocab, name, mode, asked, calls, around)
    text = "".join(parts)
    wishes = [token for part in parts for token in tokens_of(vocab, part, in_pieces)]
    wishes.append(vocab.eos)
    said = say(vocab, asked.sampling, wishes)
    assert said == wishes, (text, vocab.detokenize(said, special=True))
    message = parsed(asked.rendered, text)
    if calls:
        assert not message["content"], message
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "get_weather", message
    else:
        assert message["content"].strip() == ANSWER, message
    # Words of the prompt after the mark are the reasoning's, which a template writes back whole.
    reasoning, opening = reasoning_of(asked.rendered), asked.rendered.generation_prompt
    begun = opening.rpartition(asked.rendered.thinking_start)[2] if reasoning.inside else ""
    found = (message.get("reasoning_content") or "").strip()
    if mode == "on":
        assert found == begun.lstrip() + THOUGHT
    else:
        few = FEW.strip() if mode == "budget" else ""
        assert begun.strip() in found, message
        assert few.startswith(found.removeprefix(begun.strip()).strip()), message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("name", SOME)
def test_reasoning_is_free_and_its_end_is_allowed(
    vocab: Vocab, name: str, constraint: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_limit(constraint, backend, name, "on"):
        pytest.skip("llama.cpp's grammar of this family has no such reply")
    use(backend, monkeypatch)
    in_pieces = backend == "gbnf"
    check_reply(vocab, name, constraint, in_pieces, AROUND[in_pieces])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["LFM2-8B-A1B", "LFM2.5-Instruct"])
def test_marks_that_the_parser_does_not_read_are_no_reasoning(
    vocab: Vocab, name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be part of the content, which would not be JSON."""
    use(backend, monkeypatch)
    asked = ask(vocab, template_of(name), enable_thinking=True, response_format=FORM)
    assert rendered_of(name).thinking_ends
    assert not reasoning_of(asked.rendered).possible
    wishes = tokens_of(vocab, f"<think>hm</think>{ANSWER}", False)
    said = vocab.detokenize(say(vocab, asked.sampling, wishes), special=True).decode()
    assert said.startswith("{")
    assert "{" in parsed(asked.rendered, ANSWER)["content"]


@pytest.mark.parametrize("mode", ["off", "budget 0", "budget"])
@pytest.mark.parametrize("constraint", ["schema", "gbnf", "required"])
@pytest.mark.parametrize("name", [SOME[0], WRAPPED[1]])
def test_replies_of_little_reasoning_fit_as_well(
    vocab: Vocab, name: str, constraint: str, mode: str
) -> None:
    check_reply(vocab, name, constraint, False, AROUND[0], mode)


@pytest.mark.parametrize("constraint", ["required", "named"])
@pytest.mark.parametrize("name", CALLERS)
def test_a_required_call_may_follow_reasoning(vocab: Vocab, name: str, constraint: str) -> None:
    """With and without white space between them, which is not content."""
    in_pieces = constraint == "named"
    check_reply(vocab, name, constraint, in_pieces, AROUND[in_pieces])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("name", OPENERS)
def test_a_call_may_stand_in_place_of_an_answer(
    vocab: Vocab, name: str, mode: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the family writes before its mark."""
    use(backend, monkeypatch)
    check_reply(vocab, name, "call+schema", False, AROUND[0], mode)


@pytest.fixture(scope="module")
def unmarked() -> Iterator[Vocab]:
    """Qwen 2's vocabulary, in which the marks of most families are text."""
    with Model(vocabulary_model("qwen2"), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("name", SHARERS)
def test_the_token_that_ends_the_mark_of_a_call_may_begin_the_rest(
    unmarked: Vocab, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("llguidance", monkeypatch)
    check_reply(unmarked, name, "call+schema", False, AROUND[0], mode)


#: Beginnings of calls that go on as no call does, and what such a reply becomes.
ASTRAY = {
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        "<｜tool▁calls▁begin｜></p>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function",
    ),
    "Kimi-K2-Instruct": (
        "<|tool_calls_section_begin|>Yes.",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    ),
    "Kimi-K3": (
        "<|open|>response<|sep|><|close|>response<|sep|>Yes.",
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=",
    ),
}


@pytest.mark.parametrize("name", ASTRAY)
def test_what_begins_a_call_goes_on_as_one(
    unmarked: Vocab, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the token that ends the mark is the call's, and nothing else follows."""
    use("llguidance", monkeypatch)
    asked = ask(unmarked, template_of(name), enable_thinking=False, **CALLS["call+schema"])
    reasoning = reasoning_of(asked.rendered)
    closed = reasoning.closing if reasoning.inside else ""
    wrong, right = ASTRAY[name]
    wishes = tokens_of(unmarked, closed + wrong, False)
    wishes += [unmarked.eos] * 40
    said = unmarked.detokenize(say(unmarked, asked.sampling, wishes), special=True).decode()
    assert re.sub(r"\s", "", said).startswith(re.sub(r"\s", "", closed + right)), said


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constraint", [*CONSTRAINTS, *CALLS])
def test_reasoning_is_free_in_all_families(
    vocab: Vocab, constraint: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if constraint in ("required", "named") and backend == "llguidance":
        pytest.skip("llama.cpp's sampler enforces these in any case")
    use(backend, monkeypatch)
    wrong, done, without = [], 0, 0
    ways = [("on", False, AROUND[0]), ("on", True, AROUND[1]), ("on", False, AROUND[2])]
    ways += [(mode, False, AROUND[0]) for mode in ("off", "budget 0", "budget")]
    for name in reasoning_names():
        for mode, in_pieces, around in ways:
            if is_limit(constraint, backend, name, mode):
                continue
            done += 1
            try:
                check_reply(vocab, name, constraint, in_pieces, around, mode)
            except families.NoSample:
                done, without = done - 1, without + 1
            except Exception as error:
                wrong.append((name, mode, in_pieces, around, repr(error)[:700]))
    count = f"{len(reasoning_names())} families, {done} replies, {len(wrong)} changed"
    print(f"{constraint}, {backend}: {count}; {without} have no sample")
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("name", SOME[:2])
def test_a_budget_ends_the_reasoning_and_the_constraint_goes_on(
    vocab: Vocab, name: str, constraint: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(backend, monkeypatch)
    options = CONSTRAINTS[constraint]
    asked = ask(vocab, template_of(name), enable_thinking=True, reasoning_budget=6, **options)
    reasoning = reasoning_of(asked.rendered)
    opening = "" if reasoning.inside else reasoning.start
    closing = tokens_of(vocab, reasoning.closing, False)
    thought = tokens_of(vocab, opening, False)
    thought += tokens_of(vocab, " one two three four five six", False)
    answer = [*tokens_of(vocab, f"\n\n{ANSWER}", False), vocab.eos]
    said = say(vocab, asked.sampling, [*thought, *closing, *answer])
    assert said == [*thought, *closing, *answer], vocab.detokenize(said, special=True)
    message = parsed(asked.rendered, vocab.detokenize(said[:-1], special=True).decode())
    assert message["content"].strip() == ANSWER


@pytest.mark.parametrize("name", SOME)
def test_a_call_in_the_reasoning_is_no_call(vocab: Vocab, name: str) -> None:
    """The grammar of tools waits for the end of the reasoning."""
    asked = ask(
        vocab,
        template_of(name),
        enable_thinking=True,
        tools=families.TOOLS,
        **families.OPTIONS.get(name, {}),
    )
    reasoning = reasoning_of(asked.rendered)
    marks = asked.rendered.call_marks
    start = "" if reasoning.inside else reasoning.start
    text = f"{start}I could say {''.join(marks)} now.{reasoning.end}\n\nNo."
    wishes = [*tokens_of(vocab, text, False), vocab.eos]
    assert say(vocab, asked.sampling, wishes) == wishes
    try:
        text = reply_of(name, "", "reasoning+call")
    except families.NoSample:
        return
    wishes = [*tokens_of(vocab, text, False), vocab.eos]
    assert say(vocab, asked.sampling, wishes) == wishes
    assert parsed(asked.rendered, text)["tool_calls"]


def test_a_grammar_that_names_the_mark_has_rules_for_the_reasoning() -> None:
    reasoning = Reasoning(start="<think>", closing="</think>", inside=True)
    own = GrammarSpec('root ::= [a-z]* "</think>" "yes"')
    assert reasoning.framed(own) is own
    assert reasoning.framed(GrammarSpec('root ::= "yes"')).gbnf.endswith('root ::= "yes"')


def test_what_ends_reasoning_at_any_cut() -> None:
    """Tokens may hold several marks, or parts of them."""
    text = b"a</th</think>\n\n{"
    for size in range(1, len(text) + 1):
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        watch = ReasoningWatch(parts.__getitem__, Reasoning(closing="\n</think>", inside=True))
        behind = b"".join(watch.accept(i) for i in range(len(parts)))
        assert (watch.inside, behind) == (False, b"\n\n{")
