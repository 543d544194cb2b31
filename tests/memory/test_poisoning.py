"""A text prompt is read as a fresh model reads it, whatever was evaluated before.

Prompts given as tokens (odd spellings of the same texts among them), texts, replies that no
tokenizer would spell as the model did, edited replies, typed control tokens, stores and restarts
are mixed. The only tokens that may differ from the tokenizer's are those of a reply that the model
gave, where the prompt contains it.
"""

from __future__ import annotations

import random
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from llama_py import Llama, LlamaDiskCache
from llama_py.engine.request import GenerationRequest, Prompt, Record
from llama_py.params import GenerationParams, SamplingParams
from tests.models import KINDS, tiny_model

START = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n")
WORDS = ("the quick", " fox", "hello", " \n", "don't", "12345", "<|im_end|>", "\u4e16", "  ")
CONTENT = st.lists(st.sampled_from(WORDS[:6] + WORDS[7:]), min_size=1, max_size=4).map("".join)
TYPED = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)
SEED = st.integers(0, 10**6)
F32 = 0


def load(kind: Any) -> Llama:
    path = str(tiny_model(kind))
    return Llama(
        path, n_ctx=512, n_seq_max=2, n_ubatch=64, n_threads=1, flash_attn=False, type_k=F32,
        type_v=F32,
    )  # fmt: skip


class PoisoningMachine(RuleBasedStateMachine):
    """See the module."""

    kind: Any = "full"
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.llm, self.fresh = load(self.kind), load(self.kind)
        self.disk: LlamaDiskCache | None = None
        #: What the model said: the tokens and the text before it, its tokens and its text.
        self.replies: list[tuple[list[int], str, list[int], str]] = []
        self.talks: list[str] = [""]

    @initialize()
    def begin(self) -> None:
        self.replies, self.talks = [], [""]

    # ---- what happens ------------------------------------------------------------------------

    @rule(text=CONTENT, seed=SEED)
    def tokens_that_spell_a_text_otherwise(self, text: str, seed: int) -> None:
        """The prompt of a user who tokenizes by hand, and then asks the same as a text."""
        draw = random.Random(seed)
        whole = draw.choice(self.talks) + START[0] + text + START[1]
        marks = draw.random() < 0.7  # else they are characters, as ``tokenize`` has it by default
        parts = re.split(r"(<\|im_(?:start|end)\|>)", whole)
        tokens = [self.llm.token_bos()] if draw.random() < 0.7 else []
        for part in parts:
            pieces = [part] if part.startswith("<|im_") else part
            for piece in pieces:
                tokens += self.llm.tokenize(piece, add_bos=False, special=marks)
        if len(tokens) < 500:
            self.llm.create_completion(tokens, temperature=0.0, max_tokens=2)
            self.check(whole)

    @rule(text=CONTENT, seed=SEED)
    def by_hand(self, text: str, seed: int) -> None:
        whole = random.Random(seed).choice(self.talks) + START[0] + text + START[1]
        tokens = [t for letter in whole for t in self.llm.tokenize(letter, add_bos=False)]
        self.llm.reset()
        self.llm.eval(tokens[:400])

    @rule(text=CONTENT, index=SEED, seed=SEED)
    def turn(self, text: str, index: int, seed: int) -> None:
        """A question, and an answer that the model spells in any way it likes."""
        talk = self.talks[index % len(self.talks)] + START[0] + text + START[1]
        draw = random.Random(seed)
        said = [self.llm.tokenize(word, add_bos=False) for word in draw.choices(WORDS, k=3)]
        letters = [self.llm.tokenize(x, add_bos=False) for x in "the quick fox"]
        reply = [token for part in draw.choice([said, letters, letters]) for token in part]
        text = self.say(talk, reply)
        if len(talk) < 300:  # or it would soon be too long
            self.talks.append(talk + text + START[2])

    @rule(index=SEED, text=TYPED, length=st.sampled_from([0, 3, 9, 13, 99]))
    def edited(self, index: int, text: str, length: int) -> None:
        """The conversation goes on as if the model had said something else, or only a part."""
        if self.replies:
            _, before, _, said = self.replies[index % len(self.replies)]
            self.check(before + said[:length] + START[2])
            self.check(before + said[:length] + text + START[2])

    @rule(index=SEED, length=st.sampled_from([3, 9]))
    def typed_on(self, index: int, length: int) -> None:
        """First behind the reply's last word, in its middle; then behind a part of the reply."""
        if self.replies:
            _, before, _, said = self.replies[index % len(self.replies)]
            self.check(before + said + "s that was" + START[2])
            self.check(before + said[:length] + START[2])

    @rule(index=SEED, text=TYPED)
    def again(self, index: int, text: str) -> None:
        """A further question behind what was said, or to nothing."""
        self.check(self.talks[index % len(self.talks)] + START[0] + text + START[1])

    @rule(text=TYPED, index=SEED)
    def typed(self, text: str, index: int) -> None:
        """Control tokens that a user typed are characters."""
        opening = self.talks[index % len(self.talks)] + START[0]
        place = (len(opening.encode()), len((opening + text).encode()))
        self.check(opening + text + START[1], (place,))

    @rule()
    def store(self) -> None:
        if self.disk is None:
            self.disk = LlamaDiskCache(str(self.folder / str(random.random())))
        self.llm.set_cache(self.disk)

    @rule()
    def restart(self) -> None:
        self.llm.close()
        self.llm = load(self.kind)
        self.llm.set_cache(self.disk)

    # ---- what must hold ----------------------------------------------------------------------

    def say(self, prompt: str, reply: list[int]) -> str:
        length: list[int] = []

        def want(tokens: Any, logits: Any) -> Any:
            length[:] = length or [len(tokens)]
            logits[reply[len(tokens) - length[0]]] = 1e6
            return logits

        response = self.llm.create_completion(
            prompt, temperature=0.0, max_tokens=len(reply), ignore_eos=True, logits_processor=want
        )
        text = str(response["choices"][0]["text"])
        used = self.llm.runtime.last.record.tokens
        assert used in self.allowed(prompt)
        self.replies.append((used, prompt, reply, text))
        return text

    def check(self, text: str, plain: tuple[tuple[int, int], ...] = ()) -> None:
        request = self.run(self.llm, text, plain)
        expected = self.allowed(text, plain)
        assert request.tokens in expected, (text, request.cache)
        self.fresh.reset()
        if request.tokens == expected[0]:
            assert self.run(self.fresh, text, plain).generated == request.generated

    def allowed(self, text: str, plain: tuple[tuple[int, int], ...] = ()) -> list[list[int]]:
        """The tokenizer's tokens, and those with replies of the model in their places."""
        text_keys = self.fresh.runtime.loaded.cache.text_keys
        whole = text_keys.read(text_keys.mark(text.encode(), plain), add_special=True)
        found = [whole]
        for before, asked, said, reply in self.replies:
            # A reply that spells a control token in characters does not stand for one.
            # White space at its end may be missing.
            if text.startswith(asked + reply.rstrip()) and "<|im_end|>" not in reply:
                start = len(asked.encode())
                found += self.with_reply(whole, before, start, said, text.encode()[start:])
        return found

    def with_reply(
        self, whole: list[int], before: list[int], start: int, said: list[int], there: bytes
    ) -> list[list[int]]:
        """``said`` stands at ``start`` if the tokenizer, too, splits at its end, and as far as
        only white space follows."""
        ends = [*accumulate(map(self.width, whole))]
        places = [start + width for width in accumulate(map(self.width, said))]
        found = []
        for count in range(len(said), 0, -1):
            spelled = b"".join(map(self.fresh.vocab.piece, said[:count]))
            if places[count - 1] in ends and there.startswith(spelled):
                behind = whole[ends.index(places[count - 1]) + 1 :]
                found.append([*before, *said[:count], *behind])
            if self.fresh.vocab.piece(said[count - 1]).strip():
                break
        return found

    def width(self, token: int) -> int:
        """Bytes of a token in its text; BOS, which is added, has none."""
        return 0 if token == self.fresh.token_bos() else len(self.fresh.vocab.piece(token))

    def run(self, llm: Llama, text: str, plain: tuple[tuple[int, int], ...] = ()) -> Record:
        request = GenerationRequest(
            Prompt(text.encode(), plain=plain),
            SamplingParams(temperature=0.0),
            GenerationParams(max_tokens=3, ignore_eos=True),
        )
        return llm.runtime.run(request)

    def teardown(self) -> None:
        self.llm.close()
        self.fresh.close()
        if self.disk is not None:
            self.disk.close()


def run(kind: Any, folder: Path, examples: int, steps: int) -> None:
    machine = type("Machine", (PoisoningMachine,), {"kind": kind, "folder": folder})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid"])
def test_no_prompt_poisons_another(kind: str, tmp_path: Path) -> None:
    run(kind, tmp_path, 8, 25)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_poisons_another_for_long(kind: str, tmp_path: Path) -> None:
    run(kind, tmp_path, 100, 40)
