"""A reasoning budget closes the block of reasoning, and changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py.chat.grammars import guidance
from llama_py.chat.reasoning import Reasoning
from llama_py.chat.rendered import RenderedChat
from llama_py.core.vocab import Vocab
from llama_py.dialects.budget import budget_for
from llama_py.dialects.openai.chat import parse_chat
from llama_py.params import TokenConstraint
from tests.dialects.playing import Context

OPENED = RenderedChat(
    "", "<|im_start|>assistant\n<think>", thinking_start="<think>", thinking_ends=("</think>",)
)
CLOSED = RenderedChat(
    "", "<|im_start|>assistant\n", thinking_start="<think>", thinking_ends=("</think>",)
)


def run(constraint: TokenConstraint, wishes: Sequence[int], n_vocab: int) -> list[int]:
    """The tokens that a model gets that wishes for these, one after the other."""
    out = []
    for wish in wishes:
        row: NDArray[np.float32] = np.zeros(n_vocab, np.float32)
        row[wish] = 1.0
        constraint.mask(row)
        out.append(int(row.argmax()))
        constraint.accept(out[-1])
    return out


def made(vocab: Vocab, rendered: RenderedChat, budget: int) -> TokenConstraint:
    make = budget_for(vocab, rendered, budget, None)
    assert make is not None
    return make()


def ids(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=True)


def test_long_reasoning_is_closed(vocab: Vocab) -> None:
    wishes = ids(vocab, "one two three four five six seven")
    out = run(made(vocab, OPENED, 3), wishes, vocab.n_tokens)
    assert out[:3] == wishes[:3]
    assert out[3:4] == ids(vocab, "</think>")
    assert out[4:] == wishes[4:]


def test_short_reasoning_and_the_answer_are_free(vocab: Vocab) -> None:
    wishes = ids(vocab, "hm</think>one two three four five six seven")
    assert run(made(vocab, OPENED, 5), wishes, vocab.n_tokens) == wishes


def test_a_block_that_the_model_opens_counts(vocab: Vocab) -> None:
    wishes = ids(vocab, "well <think>one two three four five six")
    out = run(made(vocab, CLOSED, 2), wishes, vocab.n_tokens)
    start = wishes.index(ids(vocab, "<think>")[0])
    assert out[: start + 3] == wishes[: start + 3]
    assert out[start + 3] == ids(vocab, "</think>")[0]


def test_no_budget_no_constraint(vocab: Vocab) -> None:
    assert budget_for(vocab, OPENED, None, None) is None
    assert budget_for(vocab, OPENED, -1, None) is None
    assert budget_for(vocab, RenderedChat(""), 5, None) is None


@pytest.mark.parametrize("budget", [0, 1])
def test_every_sequence_has_its_own_budget(vocab: Vocab, budget: int) -> None:
    make = budget_for(vocab, OPENED, budget, None)
    assert make is not None
    wishes = ids(vocab, "one two three")
    first, second = (run(make(), wishes, vocab.n_tokens) for _ in range(2))
    assert first == second
    assert first[budget] == ids(vocab, "</think>")[0]


def test_a_budget_of_nothing_turns_reasoning_off(context: Context) -> None:
    hello = [{"role": "user", "content": "hello"}]
    parse_chat(context, hello, reasoning_budget=0)
    assert context.asked is not None
    assert context.asked.enable_thinking is False
    parse_chat(context, hello, reasoning_budget=5)
    assert context.asked.enable_thinking is None


@pytest.mark.parametrize("slow", [False, True])
def test_a_schema_holds_behind_reasoning_that_was_closed(
    vocab: Vocab, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closing tokens are forced without a mask; a mask may be on its way when they come."""
    monkeypatch.setattr(guidance, "_SLOW", -1.0 if slow else 1e9)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    inner = guidance.guide_for(vocab).compile(
        schema, reasoning=Reasoning(closing="</think>", inside=True)
    )
    make = budget_for(vocab, OPENED, 3, inner)
    assert make is not None
    thought, answer = ids(vocab, "one two three four five six"), ids(vocab, '\n\n{"a": 1}')
    closing = ids(vocab, "</think>")
    wishes = [*thought[: 3 + len(closing)], *answer, vocab.eos]
    out = run(make(), wishes, vocab.n_tokens)
    assert out == [*thought[:3], *closing, *answer, vocab.eos]


def test_the_text_of_a_mark_in_an_answer_by_a_schema_is_no_reasoning(vocab: Vocab) -> None:
    answering = replace(CLOSED, schema={"type": "object"})
    wishes = ids(vocab, '{"a": "<think>one two three four five six seven"}')
    assert run(made(vocab, answering, 2), wishes, vocab.n_tokens) == wishes
    # Without a schema it opens a block.
    assert run(made(vocab, CLOSED, 2), wishes, vocab.n_tokens) != wishes


@pytest.mark.parametrize("budget", range(1, 10))
def test_a_budget_cuts_no_character_in_two(vocab: Vocab, budget: int) -> None:
    """Characters of several tokens are said to their end, which takes three tokens more at most."""
    byte = {vocab.piece(token): token for token in range(vocab.n_tokens)}
    wishes = [byte[bytes([each])] for each in "😀ü😀".encode()]
    out = run(made(vocab, OPENED, budget), [*wishes, *ids(vocab, " more")], vocab.n_tokens)
    closing = ids(vocab, "</think>")
    said = out[: out.index(closing[0])]
    assert budget <= len(said) <= budget + 3
    assert vocab.detokenize(said).decode() in ("😀", "😀ü", "😀ü😀")
