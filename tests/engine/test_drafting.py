"""What decides about drafts, without a model: lookups, what pays, and the plan of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py import PromptLookup, Speculative
from llama_py.engine.drafts.payoff import Drafting, Durations, StepCosts, Wish
from llama_py.engine.scheduler import Draft, plan_step
from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.options.drafters import as_speculative, read_speculative
from llama_py.options.lookup import followed, renamed


def lookup(tokens: list[int], ngram: int = 2, n_draft: int = 4) -> list[int]:
    return [*PromptLookup(ngram, n_draft)(np.array(tokens, np.intc))]


# -- prompt lookup --------------------------------------------------------------------------------


def test_what_followed_the_last_tokens_before() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5, 6]
    assert lookup([1, 2, 3, 4, 5, 6, 7, 9, 2]) == []
    assert lookup([1, 2, 3, 4, 5, 6, 7, 9, 2], ngram=1) == [3, 4, 5, 6]
    assert lookup([1, 2, 3, 4, 5, 1, 2], n_draft=0) == []


def test_the_longest_match_counts_and_then_the_latest() -> None:
    assert lookup([8, 1, 2, 3, 3, 9, 1, 2, 4, 4, 8, 1, 2]) == [3, 3, 9, 1]
    assert lookup([1, 2, 3, 3, 1, 2, 4, 4, 1, 2]) == [4, 4, 1, 2]


def test_a_text_that_repeats_itself_goes_on() -> None:
    assert lookup([1, 2, 1, 2], n_draft=5) == [1, 2, 1, 2, 1]
    assert lookup([7, 7, 7], n_draft=3) == [7, 7, 7]


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 2]])
def test_nothing_to_look_up(tokens: list[int]) -> None:
    assert lookup(tokens, ngram=2) in ([], [1, 1, 1, 1])


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4), st.integers(0, 12))
def test_a_lookup_is_what_a_search_finds(tokens: list[int], ngram: int, n_draft: int) -> None:
    found = lookup(tokens, ngram, n_draft)
    numbers = np.array(tokens, np.intc)
    start = followed(numbers, ngram)
    if start is not None and found:  # as it was, before anything is renamed
        found = [
            [*tokens, *found][start + index % (len(tokens) - start)] for index in range(n_draft)
        ]
    last = tokens[len(tokens) - ngram :]
    places = [
        end
        for end in range(ngram, len(tokens))
        if len(tokens) > ngram and tokens[end - ngram : end] == last
    ]
    if not places and found:  # behind an edit, where the last token occurred before
        assert ngram > 1
        places = [end for end in range(1, len(tokens)) if tokens[end - 1] == tokens[-1]]
    if not places or not n_draft:
        assert found == []
        return
    assert len(found) == n_draft
    goes_on = [[*tokens, *found][end : end + n_draft] for end in places]
    assert found in goes_on


@pytest.mark.parametrize(
    "edited",
    [
        [0, 1, 2, 3, 4, 5, 6, 99, 8],  # another token
        [0, 1, 2, 3, 4, 5, 6, 99, 98, 97, 8],  # three in place of one
        [0, 1, 2, 3, 4, 5, 6, 8],  # one left out is seen at once ...
        [0, 1, 2, 3, 4, 5, 6, 99, 7, 8],  # an inserted one
        [0, 1, 2, 3, 4, 99, 8],  # one in place of three
    ],
)
def test_a_copy_goes_on_behind_an_edit(edited: list[int]) -> None:
    source = [*range(50, 60), *range(20)]
    copy = [*range(50, 60), *edited]
    assert lookup([*source, 200, *copy], ngram=3) == [9, 10, 11, 12]
    assert lookup([*source, 200, *copy[-4:]], ngram=3) == [], "no copy: it may be chance"
    assert lookup([*source, 200, *copy, 98], ngram=3) != [9, 10, 11, 12]


def test_a_name_that_became_another_one_becomes_it_again() -> None:
    source = [*range(50, 60), 1, 60, 61, 1, 62, 63, 2, 64, 65, 1, 66, 67, 1, 68]
    copy = [77 if token == 1 else token for token in source]
    assert lookup([*source, 200, *copy[:16]], ngram=3, n_draft=8) == copy[16:24]
    assert lookup([*source, 200, *copy[:12]], ngram=2, n_draft=5) == copy[12:17]
    assert lookup([*source, 200, *source[:16]], ngram=3, n_draft=8) == source[16:24]


def test_a_name_that_stays_in_one_place_stays_there() -> None:
    """In a string, for example, which the same token comes before."""
    source = [*range(50, 60), 5, 1, 60, 61, 9, 1, 62, 63, 5, 1, 64, 65, 9, 1, 66, 67, 8, 1, 68]
    copy = [*range(50, 60), 5, 1, 60, 61, 9, 77, 62, 63]
    assert lookup([*source, 200, *copy], ngram=3, n_draft=11) == [
        5,
        1,
        64,
        65,
        9,
        77,
        66,
        67,
        8,
        77,
        68,
    ]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.data())
def test_what_is_renamed_was_so_before(tokens: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(1, len(tokens) - 1))
    count = data.draw(st.integers(0, len(tokens) - start))
    found = renamed(np.array(tokens, np.intc), start, count)
    pairs = set(zip(tokens[:start][::-1], tokens[::-1], strict=False))
    for token, source in zip(found, tokens[start : start + count], strict=True):
        assert token == source or (source, token) in pairs


def test_an_edit_of_what_was_said_just_now() -> None:
    """The match before an edit reaches up to the last token, which cannot be its own source."""
    for tail in ([1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0, 0], [2, 0, 0, 1, 0]):
        found = lookup([*[0] * 12, *tail], ngram=3)
        assert len(found) in (0, 4)


@pytest.mark.parametrize("wrong", [{"ngram": 0}, {"ngram": 99}, {"n_draft": -1}, {"n_draft": 999}])
def test_numbers_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match="out of range"):
        PromptLookup(**wrong)


# -- what callers may say -------------------------------------------------------------------------


def test_every_way_to_say_it() -> None:
    def mine(_tokens: Any) -> list[int]:
        return []

    def read(value: Any) -> Any:
        speculative = as_speculative(read_speculative("x", value))
        assert speculative is not None
        return speculative.drafters

    assert read("lookup") == read(True) == (PromptLookup(),)
    assert read("off") == read(False) == ()
    assert read(mine) == (mine,)
    assert read([mine, PromptLookup(2)]) == (mine, PromptLookup(2))
    given = Speculative(mine, exact=True)  # type: ignore[arg-type]
    assert as_speculative(read_speculative("x", given)) is given
    assert given.drafters == (mine,)


@pytest.mark.parametrize("wrong", [5, [5], object(), {}, PromptLookup, "draft", [PromptLookup]])
def test_what_is_no_drafter(wrong: Any) -> None:
    with pytest.raises(ParameterError, match=r"PromptLookup|expected"):
        read_speculative("speculative", wrong)
    with pytest.raises(ParameterTypeError):
        Speculative(adaptive=5)  # type: ignore[arg-type]


# -- whether it pays ------------------------------------------------------------------------------


def measured(*given: tuple[int, float]) -> StepCosts:
    costs = StepCosts()
    for rows, seconds in given * 3:
        costs.add(rows, seconds)
    return costs


def test_the_pace_of_steps_between_those_measured() -> None:
    costs = measured((1, 1.0), (5, 3.0))
    assert [costs.of(rows) for rows in (1, 2, 3, 5, 9, 20)] == [1.0, 1.5, 2.0, 3.0, 3.0, 12.0]
    assert StepCosts().of(3) == 0.0


def test_one_slow_step_does_not_count() -> None:
    costs = measured((1, 1.0))
    costs.add(1, 99.0)
    assert costs.of(1) == 1.0


def best(
    costs: StepCosts, rows: int, tokens: float, most: int, rate: float, seconds: float = 0.0
) -> int:
    return costs.best(rows, tokens, [Wish(most, rate, seconds)])[0]


def test_steps_without_drafts_are_measured_first_and_from_time_to_time() -> None:
    costs = StepCosts()
    assert best(costs, 1, 1.0, 8, 0.9) == 0
    for _ in range(3):
        costs.add(1, 1.0)
    assert best(costs, 1, 1.0, 8, 0.9) == 1, "wider steps are not known: try one, and no very wide"
    for _ in range(64):
        costs.add(9, 1.0, drafts=True)
    assert best(costs, 1, 1.0, 8, 0.9) == 0
    costs.add(1, 1.0)
    assert best(costs, 1, 1.0, 8, 0.9) == 8


def test_free_rows_are_all_used_and_dear_ones_are_not() -> None:
    free, dear = measured((1, 1.0), (9, 1.0)), measured((1, 1.0), (9, 9.0))
    assert best(free, 1, 1.0, 8, 0.9) == 8
    assert best(dear, 1, 1.0, 8, 0.9) == 0
    assert 0 < best(measured((1, 1.0), (9, 3.0)), 1, 1.0, 8, 0.7) < 8


def test_drafting_takes_time_as_well() -> None:
    free = measured((1, 1.0), (9, 1.0))
    assert best(free, 1, 1.0, 8, 0.9, seconds=1.0) == 0
    assert best(free, 1, 1.0, 8, 0.9, seconds=0.1) > 0


def test_a_wide_step_that_was_slow_once_is_tried_again_soon() -> None:
    costs = measured((1, 1.0))
    costs.add(2, 9.0)
    assert best(costs, 1, 1.0, 8, 0.9) == 0
    for _ in range(128):
        costs.add(1, 1.0)
    assert best(costs, 1, 1.0, 8, 0.9) == 1


def test_one_slow_draft_does_not_keep_a_drafter_out() -> None:
    durations = Durations()
    for seconds in (0.1, 9.0, 0.1):
        durations.add(seconds)
    assert durations.seconds == 0.1
    slow = Durations()
    slow.add(9.0)
    for _ in range(500):
        slow.left_out()
    assert slow.seconds < 0.1, "it is tried again"


def test_rows_that_slow_others_down_must_pay_for_them() -> None:
    costs = measured((1, 1.0), (2, 1.2), (8, 3.0), (16, 6.0))
    assert best(costs, 1, 1.0, 4, 0.8) > 0
    assert best(costs, 8, 8.0, 4, 0.3) == 0


def test_rows_go_to_those_who_are_most_likely_right() -> None:
    costs = measured((2, 1.0), (5, 1.2), (6, 9.0))
    assert costs.best(2, 2.0, [Wish(3, 0.9), Wish(3, 0.3)]) == [3, 0]
    assert costs.best(2, 2.0, [Wish(3, 0.3), Wish(1, 0.9)]) == [1, 1]
    assert costs.best(2, 2.0, [Wish(0, 0.9), Wish(3, 0.9)]) == [0, 3]


def test_a_model_that_drafts_for_many_pays_where_one_for_each_does_not() -> None:
    costs = measured((4, 1.0), (8, 1.1))
    model = object()
    assert costs.best(4, 4.0, [Wish(1, 0.8, 0.4) for _ in range(4)]) == [0, 0, 0, 0]
    assert costs.best(4, 4.0, [Wish(1, 0.8, 0.4, model) for _ in range(4)]) == [1, 1, 1, 1]
    assert costs.best(4, 4.0, [Wish(1, 0.8, fixed=0.4) for _ in range(4)]) == [0, 0, 0, 0]


def test_a_drafter_that_pays_if_it_is_good_is_tried_in_every_reply() -> None:
    costs = measured((1, 50.0), (2, 93.0), (4, 131.0), (5, 190.0))
    assert best(costs, 1, 1.0, 4, Drafting(Speculative()).rate, 11.0) > 0
    unlucky = Drafting(Speculative())
    unlucky.verified(3, 0)
    assert best(costs, 1, 1.0, 4, unlucky.rate, 11.0) == 0


def test_what_was_measured_long_ago_is_tried_again() -> None:
    costs = measured((1, 1.0), (2, 9.0))
    for _ in range(2048):
        assert best(costs, 1, 1.0, 8, 0.9) == 0
        costs.add(1, 1.0)
    for _ in range(256):
        costs.add(1, 1.0)
    assert best(costs, 1, 1.0, 8, 0.9) == 1


def test_the_rate_follows_what_is_accepted() -> None:
    drafting = Drafting(Speculative())
    assert drafting.rate == pytest.approx(0.9)
    for _ in range(50):
        drafting.verified(8, 8)
    assert drafting.rate > 0.9
    for _ in range(50):
        drafting.verified(8, 0)
    low = drafting.rate
    assert low < 0.2
    for _ in range(300):
        drafting.left_out()
    assert drafting.rate > 0.5, "it is tried again"


# -- the plan -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Fake:
    """What the scheduler sees of a request."""

    prompt_left: int = 0
    paused: bool = False
    chunk_limit: int = 10**9


def test_drafts_share_what_the_streams_leave() -> None:
    streams = [Fake() for _ in range(3)]
    drafts = {stream: Draft([1] * 20) for stream in streams[:2]}
    plan = plan_step(streams, 256, 32, None, drafts)  # half of 32, less three streams
    assert [entry.request for entry in plan.decodes] == streams[2:]
    assert [len(entry.draft) for entry in plan.verifies] == [7, 6]
    assert plan.rows == 16


def test_prompts_have_half_of_what_is_left() -> None:
    stream, prompt = Fake(), Fake(1000)
    plan = plan_step([stream, prompt], 256, 64, None, {stream: Draft([1] * 40)})
    assert [len(entry.draft) for entry in plan.verifies] == [15]
    assert [entry.count for entry in plan.prefills] == [16]


def test_no_room_for_drafts() -> None:
    streams = [Fake() for _ in range(8)]
    plan = plan_step(streams, 8, 8, None, {stream: Draft([1]) for stream in streams})
    assert (len(plan.decodes), len(plan.verifies)) == (8, 0)


def test_known_tokens_come_before_drafts_and_are_never_cut() -> None:
    streams = [Fake(), Fake(), Fake()]
    drafts = {streams[0]: Draft([], 9), streams[1]: Draft([1] * 5, 4), streams[2]: Draft([2], 1)}
    plan = plan_step(streams, 14, 14, None, drafts)
    assert [(entry.known, len(entry.draft)) for entry in plan.verifies] == [(9, 0), (4, 0)]
    assert [entry.request for entry in plan.decodes] == streams[2:]
    waits = plan_step(streams, 12, 12, None, drafts)
    assert streams[1] not in [entry.request for entry in waits.verifies]
    assert not waits.decodes
    assert [entry.known for entry in waits.verifies] == [9, 1], "the second waits for a step"


def test_one_with_several_rows_where_there_may_be_no_more() -> None:
    streams, prompt = [Fake(), Fake()], Fake(100)
    drafts = {streams[0]: Draft([1, 1], 2), streams[1]: Draft([1, 1], 3)}
    alone = plan_step(streams, 64, 64, 1, drafts)
    assert [(entry.known, len(entry.draft)) for entry in alone.verifies] == [(2, 2)]
    beside = plan_step([*streams, prompt], 64, 64, 1, drafts)
    assert [(entry.known, len(entry.draft)) for entry in beside.verifies] == [(2, 0)]
    assert not beside.prefills
    after = plan_step([*streams, prompt], 64, 64, 1, {streams[0]: Draft([1, 1])})
    assert (len(after.verifies), len(after.prefills)) == (0, 1)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 20)), max_size=12),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_a_step_is_never_larger_than_allowed(
    requests: list[tuple[int, int]], n_batch: int, n_chunk: int
) -> None:
    running = [Fake(left) for left, _ in requests]
    drafts = {
        each: Draft([1] * length, 1 + length % 3)
        for each, (left, length) in zip(running, requests, strict=True)
        if length >= 0 and not left
    }
    plan = plan_step(running, n_batch, n_chunk, None, drafts)
    rows = plan.rows + sum(entry.count for entry in plan.prefills)
    streams = len(plan.decodes) + len(plan.verifies)
    assert rows <= n_batch
    known = sum(entry.known for entry in plan.verifies)
    # All of several prompts, where no stream waits, may be half as long again.
    chunk = n_chunk if streams else n_chunk + n_chunk // 2
    assert rows <= max(chunk, streams + known + 1)
    assert streams <= min(n_batch, sum(not left for left, _ in requests))
    for entry in plan.verifies:
        assert entry.draft == tuple(drafts[entry.request].tokens[: len(entry.draft)])
        assert entry.known == drafts[entry.request].known
    for decode in plan.decodes:
        assert decode.request not in drafts or drafts[decode.request].known == 1
