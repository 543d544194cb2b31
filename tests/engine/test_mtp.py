"""A model drafts for itself with its next-token head: its tokens stay those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import MTP, Llama, PromptLookup, Speculative
from llama_py._native import chat_h, loader
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.core.mtp import NextTokenHeads
from llama_py.engine.drafts.mtp import OpenHeads, _HeadSlot
from llama_py.errors import DecodeError, ParameterError, SymbolNotFoundError
from llama_py.params import ModelParams
from tests.engine.conftest import MakeRig
from tests.engine.rig import EXACT, Asked, Rig, ask, words
from tests.memory.oracle import nmse
from tests.models import tiny_model

LONG = 24
#: Tokens, what was drafted behind them, and the logits of the last of these.
Drafted = list[tuple[list[int], list[int], Any]]


def drafting(**options: Any) -> Speculative:
    return Speculative((MTP(**options),), adaptive=False)


def opened(rig: Rig) -> OpenHeads:
    heads = rig.engine._drafts._heads
    assert heads is not None
    return heads


def finish(rig: Rig, *requests: Asked) -> None:
    waiting = [each for each in requests if each.events is None]
    rig.submit(*waiting)
    assert [end.reason for end in rig.read(*requests)] == ["length"] * len(requests)
    rig.check(*requests)


class Reference:
    """What a head drafts that has seen all tokens in an empty memory."""

    def __init__(self, rig: Rig) -> None:
        self.model = Model(tiny_model("mtp"), ModelParams(load_mtp=True))
        self.context = Context(self.model, rig.context.params)
        self.heads = NextTokenHeads(self.context)
        self.heads.watching = True
        self.batch = Batch(self.context.n_batch)

    def draft(self, tokens: list[int], count: int) -> tuple[list[int], Any]:
        self.context.clear()
        self.heads.context.clear()
        states = []
        for start in range(0, len(tokens), self.heads.chunk):
            part = tokens[start : start + self.heads.chunk]
            self.batch.set(part, start, 0, [True] * len(part))
            assert self.context.decode(self.batch) == 0
            states.append(self.heads.seen(len(part)).copy())
        before = np.concatenate(states)
        for start in range(1, len(tokens), self.heads.chunk):
            chunk = np.array(tokens[start : start + self.heads.chunk], np.intc)
            known = before[start - 1 : start - 1 + len(chunk)]
            assert self.heads.decode(chunk, known, start, 0, True) == 0
        row, state = self.heads.guess(len(chunk) - 1)
        found = [int(row.argmax())]
        while len(found) < count:
            position = len(tokens) + len(found) - 1
            last = np.array(found[-1:], np.intc)
            assert self.heads.decode(last, state.copy(), position, 0, True) == 0
            row, state = self.heads.guess(0)
            found.append(int(row.argmax()))
        return found, row.copy()

    def close(self) -> None:
        self.model.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    made = Rig("mtp", speculative=drafting())
    yield made
    made.close()


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.llm.reset()
    shared.engine.reset_counters()
    return shared


@pytest.fixture
def drafts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Drafted:
    return recorded(rig, monkeypatch)


def recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Drafted:
    """Every draft of the rig, with the tokens that it is to follow."""
    made: Drafted = []
    heads: Any = opened(rig)
    drafts, take = heads.drafts, heads._take
    rows: dict[int, Any] = {}

    def watched_take(guess: Any, index: int) -> bool:
        rows[id(guess.found)] = heads.heads.guess(index)[0].copy()
        going_on: bool = take(guess, index)
        return going_on

    def watched_drafts(asks: Any) -> list[list[int]]:
        found: list[list[int]] = drafts(asks)
        for (_, tokens, _most), draft in zip(asks, found, strict=True):
            if draft:
                made.append((tokens.tolist(), [*draft], rows[id(draft)]))
        return found

    monkeypatch.setattr(heads, "_take", watched_take)
    monkeypatch.setattr(heads, "drafts", watched_drafts)
    return made


def check_drafts(rig: Rig, drafts: Drafted) -> None:
    reference = Reference(rig)
    try:
        for tokens, found, row in drafts:
            expected, logits = reference.draft(tokens, len(found))
            assert found == expected, len(tokens)
            assert nmse(row, logits) < 1e-9, len(tokens)
    finally:
        reference.close()


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_draft", [1, 2, 5, 16])
def test_tokens_are_those_of_plain_decoding(make_rig: MakeRig, n_draft: int) -> None:
    rig = make_rig("mtp", speculative=drafting(n_draft=n_draft))
    request = ask(words(1, 40), LONG)
    finish(rig, request)
    assert 0 < request.record.accepted < request.record.drafted
    after = ask([*request.tokens, *request.generated, *words(9, 6)], LONG)
    finish(rig, after)
    assert after.record.cache["reused"] >= 40 + LONG - 1
    assert 0 < after.record.accepted < after.record.drafted
    rig.check_at_rest()


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.6, "seed": 5, "top_k": 0},
    "penalties": {"temperature": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.4},
    "grammar": {"temperature": 0.5, "seed": 9, "grammar": 'root ::= ([a-z]+ " ")*'},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "n": {"temperature": 0.7, "seed": 3, "n": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_any_sampling(rig: Rig, case: str) -> None:
    options = {"max_tokens": 30, "ignore_eos": case != "grammar", **CASES[case]}
    plain: Any = rig.llm.create_completion(words(2, 50), speculative=False, **options)
    assert not rig.engine.metrics.drafts
    rig.llm.reset()
    found: Any = rig.llm.create_completion(words(2, 50), **options)
    assert rig.engine.metrics.accepted
    for one, other in zip(found["choices"], plain["choices"], strict=True):
        assert one["text"] == other["text"]
        if case == "logprobs":
            expected = pytest.approx(other["logprobs"]["token_logprobs"], abs=1e-5)
            assert one["logprobs"]["token_logprobs"] == expected
    rig.check_at_rest()


def test_streams_that_share_beginnings_come_and_go(rig: Rig) -> None:
    """Forks, cancelled requests, preempted ones, and more streams than there are sequences."""
    choose = random.Random(7)
    beginnings = [words(70 + n, 90) for n in range(2)]
    requests: list[Asked] = []
    for number in range(24):
        beginning = choose.choice(beginnings)[: choose.choice((30, 60, 90))]
        tokens = beginning + words(choose.randrange(99), choose.choice((1, 9, 40)))
        plain = {"speculative": Speculative()} if choose.random() < 0.2 else {}
        requests.append(ask(tokens, LONG, **plain))
        rig.submit(requests[-1])
        for _ in range(choose.randrange(6)):
            rig.step()
        live = [each for each in requests if not each.ended]
        if live and number % 5 == 4:
            rig.cancel(choose.choice(live))
        if number % 7 == 6:
            rig.driver.run(rig.engine._admission.preempt_one)
    for each in requests:
        if not each.ended:
            rig.read(each)
    rig.check(*requests)
    metrics = rig.engine.metrics
    assert metrics.accepted > 0.2 * metrics.drafted > 0
    assert metrics.preempted
    assert metrics.draft_errors == 0
    rig.check_at_rest()


def test_the_first_drafter_with_a_guess_counts(make_rig: MakeRig) -> None:
    both = Speculative((PromptLookup(2, 4), MTP()), adaptive=False)
    rig = make_rig("mtp", speculative=both)
    pattern = words(3, 12)
    finish(rig, ask([*pattern, *pattern, *pattern[:6]], LONG))
    assert rig.engine.metrics.accepted > 0


# -- drafts ---------------------------------------------------------------------------------------


def test_drafts_are_those_of_a_head_that_saw_everything(rig: Rig, drafts: Drafted) -> None:
    first = ask(words(4, 150), LONG)
    finish(rig, first)
    finish(rig, ask([*first.tokens, *first.generated, *words(5, 70)], LONG))
    assert len(drafts) > 10
    check_drafts(rig, drafts)


@pytest.mark.parametrize("whose", ["tenants", "adapters"])
def test_nothing_is_shared_between_namespaces(
    rig: Rig, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one tenant's prompt, nor what was computed with other adapters."""
    heads: Any = opened(rig)
    decode, sizes = heads.heads.decode_added, []

    def counted() -> int:
        sizes.append(len(heads.heads))
        code: int = decode()
        return code

    monkeypatch.setattr(heads.heads, "decode_added", counted)
    prompt, evaluated = words(4, 150), []
    for name in ("first", "second", "first"):
        before = sum(sizes)
        if whose == "tenants":
            request = ask(prompt, LONG, namespace=((), name))
        else:  # as if others were loaded
            monkeypatch.setattr(rig.cache, "namespace", (name,))
            request = ask(prompt, LONG)
        finish(rig, request)
        evaluated.append(sum(sizes) - before)
    first, second, again = evaluated
    assert first == second > len(prompt)
    assert again < len(prompt)


def test_drafts_behind_tokens_that_others_drafted(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens wait until the head drafts; some of those that it was shown were taken back."""
    request = ask(words(4, 100), 60)
    known: list[int] = []

    def other(tokens: Any) -> Sequence[int]:
        if len(tokens) % 4 == 3:
            return ()
        guess = known[len(tokens) : len(tokens) + 40]
        return [*guess[: len(tokens) % 3], *[7] * 30]

    rig = make_rig("mtp", speculative=Speculative((other, MTP()), adaptive=False))
    known += [*request.tokens, *rig.expected(request)]
    drafts = recorded(rig, monkeypatch)
    finish(rig, request)
    assert len(drafts) > 5
    check_drafts(rig, drafts)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_drafts_of_streams_side_by_side(
    make_rig: MakeRig, kv_unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a step need not have the order of its requests."""
    rig = make_rig("mtp", speculative=drafting(), kv_unified=kv_unified, n_seq_max=4)
    drafts = recorded(rig, monkeypatch)
    shared = words(6, 100)
    first, long = ask([*shared, *words(20, 5)], 3), ask([*shared, *words(21, 14)], 40)
    rig.submit(first)
    rig.submit(long)
    rig.step_until(lambda: first.ended)
    again = ask([*first.tokens, *first.generated, *words(22, 30)], 8)
    finish(rig, again, long, ask([*shared, *words(23, 50)], 8))
    assert len(drafts) > 10
    check_drafts(rig, drafts)


def test_one_decode_for_the_drafts_of_all_streams(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes = []
    for streams in (1, 6):
        rig = make_rig("mtp", speculative=drafting(n_draft=2), n_seq_max=6)
        heads = opened(rig).heads
        sizes: list[int] = []

        def counted(heads: NextTokenHeads = heads, sizes: list[int] = sizes) -> int:
            sizes.append(len(heads))
            return heads.context.decode(heads._batch)

        monkeypatch.setattr(heads, "decode_added", counted)
        finish(rig, *[ask(words(30 + n, 20), LONG) for n in range(streams)])
        decodes.append(len(sizes))
        if streams > 1:
            assert max(sizes) >= streams
    assert decodes[1] < 2 * decodes[0]


def test_what_nobody_saw_makes_drafts_worse_and_not_wrong(rig: Rig) -> None:
    """A part of the prompt is reused from a reply without drafts: the head has a gap there."""
    seen = ask(words(8, 60), 8)
    finish(rig, seen)
    plain = ask([*seen.tokens, *seen.generated, *words(9, 30)], 8, speculative=Speculative())
    finish(rig, plain)
    assert not opened(rig).heads.watching
    request = ask([*plain.tokens, *plain.generated, *words(9, 5)], LONG)
    finish(rig, request)
    assert request.record.cache["reused"] >= 60 + 8 + 30 + 7
    assert request.record.drafted
    assert rig.engine.metrics.draft_errors == 0


def test_tokens_that_are_evaluated_again_lose_nothing() -> None:
    """As where a state goes back to before a draft."""
    slot = _HeadSlot(0, np.zeros(99, np.intc), states=np.zeros((20, 1), np.float32))
    tokens, states = np.arange(50, dtype=np.intc), np.arange(50, dtype=np.float32)[:, None]
    slot.append(0, tokens[:8], states[:8])
    slot.append(5, tokens[5:12], states[5:12])
    assert slot.before(1, 12).ravel().tolist() == [*range(11)]
    slot.done = 12
    slot.append(12, tokens[12:15], states[12:15])
    assert slot.before(12, 15).ravel().tolist() == [11, 12, 13]


def test_a_sure_head_drafts_nothing(make_rig: MakeRig) -> None:
    rig = make_rig("mtp", speculative=drafting(p_min=1.0))
    request = ask(words(10, 40), 12)
    finish(rig, request)
    assert request.record.drafted == 0


def test_a_full_memory_of_the_head_begins_again(make_rig: MakeRig) -> None:
    rig = make_rig("mtp", n_ctx=256, n_seq_max=4, speculative=drafting())
    for n in range(6):
        request = ask(words(20 + n, 150), 12)
        finish(rig, request)
        assert request.record.drafted
    assert rig.engine.metrics.draft_errors == 0


def test_a_head_that_fails_is_left_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = opened(rig).heads
    with monkeypatch.context() as patch:
        patch.setattr(heads.context, "decode", lambda _batch: -3)
        for count in (20, 100):  # it fails when it drafts, and when it sees the prompt
            finish(rig, ask(words(11, count), 8))
    assert rig.engine.metrics.draft_errors == 2
    request = ask(words(12, 30), LONG)
    finish(rig, request)
    assert request.record.accepted


# -- the model ------------------------------------------------------------------------------------


def test_the_logits_are_those_without_heads(make_rig: MakeRig) -> None:
    """Bit for bit, where the steps have as many rows: at the prompt's end, one layer has more."""

    def rows(rig: Rig, speculative: Speculative | None) -> list[Any]:
        seen: list[Any] = []

        def process(_tokens: Any, row: Any) -> Any:
            seen.append(row.copy())
            return row

        sampling = {"logits_processors": (process,)}
        request = ask(words(13, 70), LONG, sampling=sampling, speculative=speculative)
        finish(rig, request)
        return seen

    plain = rows(make_rig("mtp"), Speculative(exact=True))
    rig = make_rig("mtp", speculative=Speculative((MTP(),), adaptive=False, exact=True))
    found = rows(rig, Speculative(exact=True))
    assert all(np.array_equal(a, b) for a, b in zip(found, plain, strict=True))
    rig.llm.reset()
    found = rows(rig, None)
    assert rig.engine.metrics.accepted
    assert abs(found[0] - plain[0]).max() < 1e-5
    assert all(np.array_equal(a, b) for a, b in zip(found[1:], plain[1:], strict=True))


def test_states_saved_without_heads_are_those_with_them() -> None:
    path = tiny_model("mtp")
    with Model(path) as plain, Model(path, ModelParams(load_mtp=True)) as model:
        assert plain.fingerprint == model.fingerprint


def test_it_is_freed_with_its_model() -> None:
    rig = Rig("mtp", speculative="mtp")
    heads = opened(rig)
    rig.close()
    assert heads.heads.context.closed


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_a_model_without_heads(kind: str) -> None:
    with pytest.raises(ParameterError, match="no next-token heads"):
        Llama(str(tiny_model(kind)), speculative="mtp", **EXACT)


def test_a_model_that_was_converted_without_its_heads(tmp_path: Path) -> None:
    source = tiny_model("mtp").read_bytes()
    path = tmp_path / "without.gguf"
    path.write_bytes(source.replace(b"blk.4.nextn.eh_proj", b"blk.4.other.eh_proj"))
    with pytest.raises(ParameterError, match="no next-token heads"):
        Llama(str(path), speculative=MTP(), **EXACT)


def test_a_call_has_no_heads_of_its_own(rig: Rig) -> None:
    wrong: list[Any] = [MTP(), "mtp", [PromptLookup(), MTP()]]
    for each in wrong:
        with pytest.raises(ParameterError, match=r"pass MTP\(\) to Llama"):
            rig.llm.create_completion("x", speculative=each)


def test_twice() -> None:
    with pytest.raises(ParameterError, match="twice"):
        Speculative((MTP(), MTP()))


@pytest.mark.parametrize("wrong", [{"n_draft": 0}, {"p_min": 1.5}])
def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="out of range"):
        MTP(**wrong)


def test_a_library_that_was_built_before_there_were_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = loader.symbol

    def older(name: str, libraries: tuple[str, ...]) -> Any:
        return real(name.replace("nextn", "unknown"), libraries)

    monkeypatch.setattr(loader, "symbol", older)
    for name in [name for name in vars(chat_h) if "nextn" in name]:
        monkeypatch.delattr(chat_h, name)
    path = str(tiny_model("mtp"))
    with pytest.raises(SymbolNotFoundError, match="Reinstall"):
        Llama(path, speculative="mtp", **EXACT)
    with Llama(path, speculative="lookup", **EXACT) as llm:
        assert llm.create_completion("x", max_tokens=1)["choices"]


def test_an_error_of_the_head_names_the_code(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = opened(rig)
    finish(rig, ask(words(14, 30), 8))
    slot = next(each for each in heads._slots if each.count)
    slot.done = 0
    monkeypatch.setattr(heads.heads.context, "decode", lambda _batch: -3)
    with pytest.raises(DecodeError, match="-3"):
        heads._evaluate(slot, slot.count)
