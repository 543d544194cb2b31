"""A sampler draws from the distribution that its parameters describe.

The references are a few lines of numpy each. Distributions are compared by many draws with
different seeds, which end within five standard deviations of what was expected.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.errors import ClosedError, DecodeError, GrammarError, ParameterError
from llama_py.params import GrammarSpec, SamplingParams
from tests.models import tiny_model

Row = NDArray[np.float32]
OPEN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS = 1500


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full")) as model:
        yield model.vocab


@pytest.fixture
def row(vocab: Vocab) -> Row:
    return random_row(vocab, 1)


def random_row(vocab: Vocab, seed: int, scale: float = 3.0) -> Row:
    random = np.random.default_rng(seed)
    return (random.standard_normal(vocab.n_tokens) * scale).astype(np.float32)


def make(vocab: Vocab, history: Sequence[int] = (), **options: Any) -> Sampler:
    return Sampler(vocab, SamplingParams(**{**OPEN, **options}), history)


def draw(vocab: Vocab, row: Row, count: int = DRAWS, **options: Any) -> Counter[int]:
    return Counter(make(vocab, seed=seed, **options).sample(row) for seed in range(count))


def chances(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def check_drawn(drawn: Counter[int], expected: NDArray[np.float64]) -> None:
    """Nothing impossible was drawn, and what is likely was drawn about as often as it should."""
    total = sum(drawn.values())
    assert all(expected[token] > 0 for token in drawn)
    for token in np.flatnonzero(expected > 0.005):
        deviation = math.sqrt(total * expected[token] * (1 - expected[token])) + 1
        assert abs(drawn[int(token)] - total * expected[token]) < 5 * deviation


def keep(p: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    left = np.where(kept, p, 0.0)
    result: NDArray[np.float64] = left / left.sum()
    return result


# -- greedy and what changes the row ---------------------------------------------------------------


def test_greedy_takes_the_most_likely(vocab: Vocab, row: Row) -> None:
    for temperature in (0, -1):
        sampler = make(vocab, temperature=temperature)
        assert sampler.trivial
        assert sampler.sample(row) == int(row.argmax())


def test_a_bias_that_forbids_everything_is_refused(vocab: Vocab) -> None:
    banned = dict.fromkeys(range(vocab.n_tokens), -math.inf)
    with pytest.raises(ParameterError, match="logit_bias forbids every token"):
        make(vocab, logit_bias=banned)
    row = np.zeros(vocab.n_tokens, np.float32)
    assert make(vocab, logit_bias={**banned, 7: -50.0}).sample(row) == 7


def test_logit_bias_equals_adding_to_the_row(vocab: Vocab, row: Row) -> None:
    bias = {3: 40.0, 7: 41.5, int(row.argmax()): -100.0}
    shifted = row.copy()
    for token, value in bias.items():
        shifted[token] += value
    assert make(vocab, temperature=0, logit_bias=bias).sample(row) == int(shifted.argmax())
    drawn = draw(vocab, row, 300, logit_bias=bias, top_k=20)
    check_drawn(drawn, chances(shifted.astype(np.float64)))


def test_a_bias_of_minus_infinity_forbids(vocab: Vocab, row: Row) -> None:
    order = np.argsort(-row)
    banned = {int(token): -math.inf for token in order[:5]}
    assert make(vocab, temperature=0, logit_bias=banned).sample(row) == int(order[5])
    assert not banned.keys() & draw(vocab, row, 100, logit_bias=banned).keys()


@pytest.mark.parametrize("token", [10**6, 519])
def test_a_bias_outside_of_the_vocabulary_is_refused(vocab: Vocab, token: int) -> None:
    with pytest.raises(ParameterError, match=rf"logit_bias: token {token} .*0 to 518"):
        make(vocab, logit_bias={token: 1.0})


def penalised(row: Row, recent: Sequence[int], p: SamplingParams) -> NDArray[np.float64]:
    """The formula of the repetition penalties, token by token."""
    out = row.astype(np.float64)
    for token, count in Counter(recent).items():
        repeat = p.repeat_penalty
        out[token] = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] -= count * p.frequency_penalty + p.presence_penalty
    return out


PENALTIES = st.fixed_dictionaries(
    {
        "repeat_penalty": st.floats(0.5, 3),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "penalty_last_n": st.sampled_from([-1, 0, 1, 4, 64]),
    }
)


@given(PENALTIES, st.lists(st.integers(0, 6), max_size=10), st.integers(0, 5))
def test_penalties_are_those_of_the_formula_and_of_llama_cpp(
    vocab: Vocab, options: dict[str, Any], history: list[int], seed: int
) -> None:
    row = np.full(vocab.n_tokens, -50, np.float32)
    row[:9] = np.random.default_rng(seed).standard_normal(9) * 2
    ours = make(vocab, history, temperature=0, **options)
    # Naming the order makes llama.cpp's own penalties sampler do it.
    theirs = make(
        vocab, history, temperature=1e-4, samplers=("penalties", "temperature"), **options
    )
    said = list(history)
    for _ in range(4):
        last = options["penalty_last_n"]
        recent = said if last < 0 else said[len(said) - min(last, len(said)) :]
        shifted = penalised(row, recent, ours.params)
        token = ours.sample(row)
        assert shifted[token] >= shifted.max() - 1e-4
        other = theirs.sample(row)
        assert shifted[other] >= shifted.max() - 2e-3
        if other != token:
            return  # as good as equal; from here on they have different histories
        said.append(token)


def test_penalties_count_the_prompt_and_forget_what_is_long_ago(vocab: Vocab) -> None:
    row = np.zeros(vocab.n_tokens, np.float32)
    row[[4, 5]] = [1.0, 0.9]
    options = {"temperature": 0, "presence_penalty": 0.5}
    assert make(vocab, [], **options).sample(row) == 4
    assert make(vocab, [4], **options).sample(row) == 5
    assert make(vocab, [4, 9, 9], penalty_last_n=2, **options).sample(row) == 4
    assert make(vocab, [4, 9, 9], penalty_last_n=3, **options).sample(row) == 5


@pytest.mark.parametrize("samplers", [None, ("penalties", "temperature"), ("dry", "penalties")])
def test_penalties_also_count_for_a_greedy_request_with_an_order(
    vocab: Vocab, samplers: tuple[str, ...] | None
) -> None:
    row = np.zeros(vocab.n_tokens, np.float32)
    row[[4, 5]] = [1.0, 0.9]
    sampler = make(vocab, [4], temperature=0, presence_penalty=0.5, samplers=samplers)
    assert sampler.sample(row) == 5


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_dry_breaks_a_repetition(vocab: Vocab, temperature: float) -> None:
    history = [*[30, 31, 32, 33] * 4, 30, 31, 32]
    row = np.zeros(vocab.n_tokens, np.float32)
    row[[33, 40]] = [2.0, 1.0]
    options: dict[str, Any] = {"temperature": temperature, "dry_sequence_breakers": ()}
    assert make(vocab, history, **options).sample(row) == 33
    assert make(vocab, history, dry_multiplier=2.0, **options).sample(row) == 40


def test_breakers_are_compared_with_the_vocabulary_once(vocab: Vocab) -> None:
    history = [*[30, 31, 32, 33] * 4, 30, 31, 32]
    row = np.zeros(vocab.n_tokens, np.float32)
    row[[33, 40]] = [2.0, 1.0]
    last = vocab.piece(32).decode("latin-1")
    options: dict[str, Any] = {"temperature": 0, "dry_multiplier": 2.0}
    vocab._prototypes.clear()
    for _ in range(3):  # the first one, and those that are made like it
        assert make(vocab, history, dry_sequence_breakers=(last,), **options).sample(row) == 33
        assert make(vocab, history, dry_sequence_breakers=("~",), **options).sample(row) == 40
        assert len(vocab._prototypes) == 2
    for base in range(20):
        make(vocab, history, dry_base=1.5 + base, **options)
    assert len(vocab._prototypes) == 8


def test_nothing_looks_back_further_than_a_sequence_can_be(vocab: Vocab) -> None:
    row = np.zeros(vocab.n_tokens, np.float32)
    row[[4, 5]] = [1.0, 0.9]
    params = SamplingParams(temperature=0, presence_penalty=0.5, samplers=("penalties",))
    assert Sampler(vocab, params, [4, 9, 9], longest=3).sample(row) == 5
    for last_n in (-1, 2, 2**31 - 1):
        sampler = Sampler(vocab, SamplingParams(dry_penalty_last_n=last_n), longest=7)
        assert sampler._reach(last_n) == (2 if last_n == 2 else 7)


LOOKS_BACK = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import llama_py
with llama_py.Llama(llama_py.demo_model_path(), n_ctx=256, verbose=False) as llm:
    far = 2**31 - 1
    for options in (
        {"dry_multiplier": 1.0, "dry_penalty_last_n": far},
        {"repeat_penalty": 1.1, "penalty_last_n": far, "samplers": ["penalties", "temperature"]},
        {"repeat_penalty": 1.1, "penalty_last_n": far},
    ):
        llm.create_completion("Once", max_tokens=2, **options)
        llm.eval([5, 6])
        llm.sample(**options)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_looking_back_for_ever_takes_no_memory() -> None:
    """llama.cpp takes 8 bytes for each token at once; where there are none, the process ends."""
    done = subprocess.run([sys.executable, "-c", LOOKS_BACK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_temperature(vocab: Vocab, row: Row, temperature: float) -> None:
    drawn = draw(vocab, row, temperature=temperature)
    check_drawn(drawn, chances(row.astype(np.float64) / temperature))


@pytest.mark.parametrize("k", [1, 3, 40, 519, 10_000])
def test_top_k(vocab: Vocab, row: Row, k: int) -> None:
    p = chances(row.astype(np.float64))
    kept = np.zeros(len(p), bool)
    kept[np.argsort(-p)[:k]] = True
    check_drawn(draw(vocab, row, 600, top_k=k), keep(p, kept))


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_top_p(vocab: Vocab, row: Row, top_p: float) -> None:
    p = chances(row.astype(np.float64))
    order = np.argsort(-p)
    # The fewest that reach top_p together.
    count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    kept = np.zeros(len(p), bool)
    kept[order[:count]] = True
    check_drawn(draw(vocab, row, top_p=top_p), keep(p, kept))


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize("more", [{}, {"min_p": 0.2}, {"min_keep": 4}, {"logit_bias": {7: 9.0}}])
def test_top_p_without_the_chain_draws_what_the_chain_draws(
    vocab: Vocab, scale: float, more: dict[str, Any]
) -> None:
    steps = ("top_p", "min_p", "temperature")
    for seed in range(40):
        row = random_row(vocab, seed, scale)
        alone = make(vocab, seed=seed, top_p=0.7, temperature=0.8, **more)
        chained = make(vocab, seed=seed, top_p=0.7, temperature=0.8, samplers=steps, **more)
        assert [alone.sample(row) for _ in range(5)] == [chained.sample(row) for _ in range(5)]


@pytest.mark.parametrize("min_p", [0.05, 0.3])
def test_min_p(vocab: Vocab, row: Row, min_p: float) -> None:
    p = chances(row.astype(np.float64))
    check_drawn(draw(vocab, row, min_p=min_p), keep(p, p >= min_p * p.max()))


def test_min_keep_keeps_some(vocab: Vocab, row: Row) -> None:
    assert len(draw(vocab, row, 300, top_p=0.0001, min_keep=3, temperature=3.0)) == 3


def test_the_order_of_the_samplers_matters(vocab: Vocab) -> None:
    """At high temperature top-p keeps more tokens; before it, few."""
    row = np.full(vocab.n_tokens, -60, np.float32)
    row[:4] = [4, 3, 2, 1]
    options: dict[str, Any] = {"temperature": 10.0, "top_p": 0.6}
    early = draw(vocab, row, 200, samplers=("top_p", "temperature"), **options)
    late = draw(vocab, row, 200, samplers=("temperature", "top_p"), **options)
    assert set(early) == {0}
    assert set(late) == {0, 1, 2}
    assert len(draw(vocab, row, 200, samplers=("temperature",), **options)) > 3  # no top-p at all


def test_top_n_sigma_keeps_what_stands_out(vocab: Vocab, row: Row) -> None:
    kept = row >= row.max() - 1.0 * row.std()
    drawn = draw(vocab, row, 400, top_n_sigma=1.0)
    check_drawn(drawn, keep(chances(row.astype(np.float64)), kept))


def test_xtc_takes_the_best_out(vocab: Vocab) -> None:
    row = np.full(vocab.n_tokens, -60, np.float32)
    row[:3] = [2, 1.5, 1]
    drawn = draw(vocab, row, 200, xtc_probability=1.0, xtc_threshold=0.1)
    assert set(drawn) == {2}  # all above the threshold but the least likely


@pytest.mark.parametrize(
    "options",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"dry_multiplier": 1.0},
        {"xtc_probability": 0.5},
        {"top_n_sigma": 1.5},
        {"adaptive_target": 0.3},
        {"dynatemp_range": 0.5},
        {"typical_p": 0.5},
        {"typical_p": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.2},
    ],
    ids=lambda options: "-".join(options),
)
def test_the_same_seed_gives_the_same_tokens(vocab: Vocab, options: dict[str, Any]) -> None:
    def reply(seed: int) -> list[int]:
        sampler = make(vocab, range(20), seed=seed, **options)
        return [sampler.sample(random_row(vocab, step, 1.0)) for step in range(30)]

    first = reply(7)
    assert reply(7) == first
    assert reply(8) != first
    assert all(0 <= token < vocab.n_tokens for token in first)


def test_a_random_seed_is_chosen_once_and_can_be_read(vocab: Vocab) -> None:
    one, other = make(vocab), make(vocab)
    assert one.seed != other.seed
    row = random_row(vocab, 3, 0.5)
    again = make(vocab, seed=one.seed)
    assert [one.sample(row) for _ in range(9)] == [again.sample(row) for _ in range(9)]


def test_choices_of_one_request_differ(vocab: Vocab) -> None:
    row = random_row(vocab, 3, 0.5)
    params = SamplingParams(**OPEN, seed=5)
    drawn = {Sampler(vocab, params, seed_offset=choice).sample(row) for choice in range(10)}
    assert len(drawn) > 5


# -- the row ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"top_k": 5},
        {"logit_bias": {3: 9.0, 4: -math.inf}},
        {"repeat_penalty": 1.5, "logit_bias": {3: 1.0}},
        {"repeat_penalty": 1.5, "logit_bias": {3: 1.0, 6: 2.0}},  # 6 is not penalised
        {"repeat_penalty": 1.5, "temperature": 0},
        {"min_tokens": 5},
        {"logits_processors": (lambda tokens, logits: logits * 0,)},
        {"grammar": GrammarSpec('root ::= "the" [a-z ]*')},
        {"mirostat": 2},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_the_row_is_unchanged_afterwards(vocab: Vocab, row: Row, options: dict[str, Any]) -> None:
    before = row.copy()
    sampler = make(vocab, [3, 4, 5, 3], **options)
    for _ in range(3):
        sampler.sample(row)
        np.testing.assert_array_equal(row, before)


def test_the_row_is_unchanged_after_a_failure(vocab: Vocab, row: Row) -> None:
    row[7] = -math.inf
    before = row.copy()
    banned = {token: -math.inf for token in range(vocab.n_tokens) if token != 7}
    with pytest.raises(DecodeError):
        make(vocab, logit_bias=banned).sample(row)
    np.testing.assert_array_equal(row, before)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0, "logit_bias": {1: 2.0}},
        {},
        {"top_k": 4},
        {"top_p": 0.5},
        {"mirostat": 2},
        {"min_tokens": 2},
    ],
    ids=str,
)
def test_a_row_that_allows_nothing_is_an_error(
    vocab: Vocab, value: float, options: dict[str, Any]
) -> None:
    row = np.full(vocab.n_tokens, value, np.float32)
    with pytest.raises(DecodeError, match="no token"):
        make(vocab, **options).sample(row)


# -- what restricts --------------------------------------------------------------------------------


def write(sampler: Sampler, vocab: Vocab, seeds: Iterator[int], most: int = 40) -> str:
    """Sample from random rows until the reply ends."""
    tokens: list[int] = []
    for _ in range(most):
        token = sampler.sample(random_row(vocab, next(seeds)))
        if vocab.is_eog(token):
            break
        tokens.append(token)
    return vocab.detokenize(tokens, special=True).decode()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("gbnf", "allowed"),
    [
        ('root ::= "yes" | "no"', {"yes", "no"}),
        ('root ::= "a" [0-9] "\u00e9"', {f"a{digit}\u00e9" for digit in range(10)}),
    ],
)
def test_a_grammar_restricts(
    vocab: Vocab, gbnf: str, allowed: set[str], temperature: float
) -> None:
    seeds = iter(range(1000))
    for seed in range(5):
        sampler = make(vocab, temperature=temperature, seed=seed, grammar=GrammarSpec(gbnf))
        assert write(sampler, vocab, seeds) in allowed


def test_a_grammar_with_another_start(vocab: Vocab) -> None:
    spec = GrammarSpec('root ::= "a"\nother ::= "b"', root="other")
    assert write(make(vocab, grammar=spec), vocab, iter(range(99))) == "b"


def test_a_lazy_grammar_waits_for_its_trigger(vocab: Vocab) -> None:
    (tool,) = vocab.tokenize("<tool_call>", add_special=False, parse_special=True)
    spec = GrammarSpec('root ::= "<tool_call>" "no"', lazy=True, trigger_tokens=(tool,))
    sampler = make(vocab, grammar=spec, temperature=0)
    row = random_row(vocab, 1)
    assert [sampler.sample(row) for _ in range(3)] == [int(row.argmax())] * 3  # free
    sampler.accept(tool)
    assert write(sampler, vocab, iter(range(99))) == "no"


def test_a_lazy_grammar_with_a_pattern(vocab: Vocab) -> None:
    spec = GrammarSpec(
        'root ::= "{" [0-9] "}"', lazy=True, trigger_patterns=(r"[\s\S]*?(\{)[\s\S]*",)
    )
    sampler = make(vocab, grammar=spec, temperature=0)
    for token in vocab.tokenize("the answer: {", add_special=False):
        sampler.accept(token)
    text = write(sampler, vocab, iter(range(99)))
    assert len(text) == 2
    assert text[0].isdigit()
    assert text[1] == "}"


def test_prefill_is_taken_as_written(vocab: Vocab) -> None:
    spec = GrammarSpec('root ::= "<think>" "ab" "c"', prefill="<think>a")
    assert write(make(vocab, grammar=spec), vocab, iter(range(99))) == "bc"


def test_prefill_that_the_grammar_does_not_allow_is_refused(vocab: Vocab) -> None:
    with pytest.raises(GrammarError, match="prefill 'b'"):
        make(vocab, grammar=GrammarSpec('root ::= "a"', prefill="b"))


@pytest.mark.parametrize(
    "gbnf", ["", " \n", "root", 'rot ::= "a"', "root ::= missing", 'root ::= root "a"']
)
def test_a_broken_grammar_is_refused(vocab: Vocab, gbnf: str) -> None:
    with pytest.raises(GrammarError, match=r"the grammar (does not parse|is left-recursive)"):
        make(vocab, grammar=GrammarSpec(gbnf))


def test_a_grammar_that_a_bias_makes_impossible_is_an_error(vocab: Vocab, row: Row) -> None:
    bias = {t: -math.inf for t in range(vocab.n_tokens) if vocab.piece(t).startswith(b"y")}
    with pytest.raises(DecodeError, match="no token"):
        make(vocab, grammar=GrammarSpec('root ::= "yes"'), logit_bias=bias).sample(row)


def test_min_tokens_keeps_the_reply_from_ending(vocab: Vocab) -> None:
    row = np.zeros(vocab.n_tokens, np.float32)
    row[vocab.eos] = 50
    row[9] = 10
    sampler = make(vocab, temperature=0, min_tokens=3)
    assert [sampler.sample(row) for _ in range(5)] == [9, 9, 9, vocab.eos, vocab.eos]


@pytest.mark.parametrize(
    ("result", "message"),
    [(None, "returned None"), (np.zeros(3), r"shape \(3,\)"), (0.5, r"shape \(\)")],
)
def test_a_logits_processor_has_to_return_the_logits(
    vocab: Vocab, row: Row, result: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        make(vocab, [1], logits_processors=(lambda tokens, logits: result,)).sample(row)


def test_logits_processors_see_the_tokens_and_change_the_logits(vocab: Vocab, row: Row) -> None:
    seen: list[tuple[list[int], Any]] = []

    def only(token: int, tokens: NDArray[np.intc], logits: Row) -> Row:
        seen.append((tokens.tolist(), logits.dtype))
        masked = np.full_like(logits, -np.inf)
        masked[[token, 77]] = logits[[token, 77]] + 1
        return masked

    one = lambda tokens, logits: only(77, tokens, logits)  # noqa: E731
    two = lambda tokens, logits: only(88, tokens, logits)  # noqa: E731
    sampler = make(vocab, [1, 2], logits_processors=(one, two), temperature=0)
    assert [sampler.sample(row), sampler.sample(row)] == [77, 77]
    assert seen == [([1, 2], np.float32)] * 2 + [([1, 2, 77], np.float32)] * 2


def test_logits_processors_get_no_copy_of_the_whole_history(vocab: Vocab, row: Row) -> None:
    """One per token would cost a long conversation milliseconds a token."""
    seen: list[NDArray[np.intc]] = []

    def look(tokens: NDArray[np.intc], logits: Row) -> Row:
        seen.append(tokens)
        return logits

    sampler = make(vocab, range(10_000), logits_processors=(look, look), temperature=0)
    token = sampler.sample(row)
    sampler.sample(row)
    assert [len(tokens) for tokens in seen] == [10_000, 10_000, 10_001, 10_001]
    assert seen[-1][-1] == token
    assert all(np.shares_memory(seen[0], tokens) for tokens in seen)


def test_a_constraint_masks_and_is_told_what_was_chosen(vocab: Vocab, row: Row) -> None:
    class Counting:
        finished = False

        def __init__(self) -> None:
            self.step = 100

        def mask(self, logits: Row) -> None:
            value = logits[self.step]
            logits[:] = -np.inf
            logits[self.step] = value

        def accept(self, token: int) -> None:
            assert token == self.step
            self.step += 1

    params = SamplingParams(**OPEN, constraint=Counting)
    for _ in range(2):  # each sequence has one of its own
        sampler = Sampler(vocab, params)
        assert [sampler.sample(row) for _ in range(4)] == [100, 101, 102, 103]


def test_close_twice(vocab: Vocab, row: Row) -> None:
    sampler = make(vocab, grammar=GrammarSpec('root ::= "a"'))
    sampler.sample(row)
    sampler.close()
    sampler.close()
    with pytest.raises(ClosedError):
        sampler.sample(row)


def test_a_reply_that_leaves_its_lazy_grammar_goes_on(vocab: Vocab) -> None:
    """The text at the trigger is not the grammar's: no crash, and no constraint any more."""
    word = vocab.tokenize(" the", add_special=False)[0]
    assert vocab.piece(word).strip() == b"the"
    spec = GrammarSpec('root ::= "th" "x"', lazy=True, trigger_patterns=(r"[\s\S]*?(th)[\s\S]*",))
    sampler = Sampler(vocab, SamplingParams(temperature=0.0, grammar=spec))
    row = np.zeros(vocab.n_tokens, np.float32)
    row[word] = 5.0
    assert sampler.sample(row) == word
    assert sampler.sample(row) == word  # unconstrained
    sampler.close()
