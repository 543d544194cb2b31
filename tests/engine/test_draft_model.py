"""A small model drafts for a large one: tokens stay those of the large one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import DraftModel, Llama, PromptLookup, Speculative, demo_model_path
from llama_py.engine.drafts.draft_model import OpenDraftModel
from llama_py.errors import ModelNotFoundError, ParameterError
from llama_py.memory.sequences import ResolvedPrompt
from tests.engine.conftest import MakeRig
from tests.engine.rig import EXACT, Asked, Rig, ask, words
from tests.models import tiny_model

TASKS = Path("/proc/self/task")


def drafting(path: Any, **options: Any) -> Speculative:
    return Speculative((DraftModel(str(path), **options),), adaptive=False)


class Stream:
    """One that asks for drafts of its own accord."""

    def __init__(self, tokens: Any) -> None:
        self.prompt = ResolvedPrompt(tokens)


def finish(rig: Rig, *requests: Asked) -> None:
    rig.submit(*requests)
    assert [end.reason for end in rig.read(*requests)] == ["length"] * len(requests)
    rig.check(*requests)
    rig.check_at_rest()


def opened(rig: Rig) -> OpenDraftModel:
    default = rig.engine._drafts.default
    assert default is not None
    (drafter,) = default.drafters
    assert isinstance(drafter, OpenDraftModel)
    return drafter


@pytest.fixture(scope="module", params=["full", "iswa", "recurrent", "hybrid_swa"])
def poor(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Drafted by a model that knows nothing of what the large one says."""
    made = Rig(request.param, speculative=drafting(tiny_model("full", seed=2)))
    yield made
    made.close()


def test_poor_drafts_change_nothing(poor: Rig) -> None:
    request = ask(words(1, 90), 24)
    finish(poor, request)
    assert request.record.drafted > 20
    after = ask([*request.tokens, *request.generated, *words(2, 5)], 8)
    finish(poor, after)


def test_streams_side_by_side(poor: Rig) -> None:
    poor.llm.reset()
    finish(poor, *[ask(words(10 + n, 20 + 9 * n), 10 + n) for n in range(10)])


def threads_with(speculative: Speculative | None) -> int:
    """How many threads this process has while a model that computes with two has replied."""
    options: Any = {"n_ctx": 256, "n_threads": 2, "verbose": False, "speculative": speculative}
    with Llama(str(tiny_model("full")), **options) as llm:
        for _ in zip(range(12), llm.generate(words(1, 40), temp=0.0), strict=False):
            pass
        return sum(1 for _ in TASKS.iterdir())


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted on Linux")
def test_it_computes_with_the_threads_of_its_target() -> None:
    """Those of two pools spin beside each other, on the same cores."""
    threads_with(None)  # libraries start some of their own
    alone = threads_with(None)
    assert threads_with(drafting(tiny_model("full"))) == alone


def test_the_same_model_is_always_right(make_rig: MakeRig) -> None:
    for kind in ("full", "iswa"):
        rig = make_rig(kind, speculative=drafting(tiny_model(kind), n_draft=5))
        request = ask(words(3, 70), 31)
        finish(rig, request)
        assert request.record.accepted == request.record.drafted == 25
        assert rig.engine.metrics.drafts == 5


def test_only_new_tokens_are_evaluated(make_rig: MakeRig) -> None:
    rig = make_rig("full", speculative=drafting(tiny_model("full", seed=2), n_draft=3))
    sizes = count_decodes(opened(rig))
    finish(rig, ask(words(4, 150), 20))
    assert sum(size > 4 for size in sizes) == 3, "the prompt, in chunks, and never again"


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_nothing_is_shared_between_namespaces(make_rig: MakeRig, busy: bool) -> None:
    """One tenant's prompt tells the draft model nothing about that of another one."""
    rig = make_rig("full", speculative=drafting(tiny_model("full", seed=2), n_draft=3))
    sizes = count_decodes(opened(rig))
    prompt, evaluated = words(4, 150), []
    for tenant in ("alice", "bob", "alice", "carol"):
        before = sum(sizes)
        requests = [ask(prompt, 6, namespace=((), tenant)) for _ in range(1 + busy)]
        finish(rig, *requests)
        evaluated.append(sum(sizes) - before)
    first, second, again, third = evaluated
    assert first == second == third > len(prompt), "as if nobody had been there before"
    assert again < len(prompt), "and what is one's own is gone on with"


def count_decodes(draft: OpenDraftModel) -> list[int]:
    """The tokens of each decode of the draft model from now on."""
    decode, sizes = draft._context.decode, []

    def counted(batch: Any) -> int:
        sizes.append(len(batch))
        return decode(batch)

    draft._context.decode = counted  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("n_draft", [1, 4])
def test_streams_are_drafted_for_together(make_rig: MakeRig, n_draft: int) -> None:
    """Eight streams take as many decodes of the draft model as the longest of them alone."""
    decodes = []
    for streams in (1, 8):
        drafts = drafting(tiny_model("full", seed=2), n_draft=n_draft)
        rig = make_rig("full", speculative=drafts, n_seq_max=8)
        sizes = count_decodes(opened(rig))
        finish(rig, *[ask(words(40 + n, 20), 21) for n in range(streams)])
        decodes.append(len(sizes))
        if streams > 1:
            assert max(sizes) >= streams
    # Prompts come one after the other, and what is accepted differs.
    assert decodes[1] < 2 * decodes[0]


def test_streams_of_which_one_ends_its_draft_early(make_rig: MakeRig) -> None:
    """Drafts of different lengths in one batch are those of each stream alone."""
    rig = make_rig("full", speculative=drafting(tiny_model("full", seed=2), p_min=0.005))
    model, prompts = opened(rig), [np.array(words(50 + n, 30 + n), np.intc) for n in range(6)]
    alone = [model.draft(tokens, 1 + n % 4, ()) for n, tokens in enumerate(prompts)]
    model._forget()
    asks = [(Stream(tokens), tokens, 1 + n % 4) for n, tokens in enumerate(prompts)]
    assert model.drafts(asks) == alone
    assert {len(each) for each in alone} == {1, 2, 3, 4}
    again = [(Stream(tokens), np.append(tokens, 7), 3) for tokens in prompts[::-1]]
    together = model.drafts(again)
    model._forget()
    assert together == [model.draft(tokens, 3, ()) for _, tokens, _ in again]


def test_a_prompt_shared_by_streams_is_copied(make_rig: MakeRig) -> None:
    rig = make_rig("full", speculative=drafting(tiny_model("full"), n_draft=3))
    shared = words(5, 300)
    finish(rig, ask([*shared, *words(6, 200)], 6), ask([*shared, *words(7, 9)], 6))
    assert rig.engine.metrics.accepted == rig.engine.metrics.drafted


def test_a_full_draft_memory_begins_again(make_rig: MakeRig) -> None:
    rig = make_rig("full", n_ctx=256, n_seq_max=4, speculative=drafting(tiny_model("full")))
    for n in range(6):
        finish(rig, ask(words(20 + n, 150), 12))
    assert rig.engine.metrics.draft_errors == 0
    assert rig.engine.metrics.accepted == rig.engine.metrics.drafted > 0


def test_a_first_draft_that_was_slow_is_not_the_last(make_rig: MakeRig) -> None:
    drafts = Speculative((DraftModel(str(tiny_model("full")), n_draft=2),))
    rig = make_rig("full", speculative=drafts)
    costs = rig.engine._drafts.costs
    costs.of = lambda rows: 1.0  # type: ignore[method-assign]
    opened(rig).durations.add(2.0)
    finish(rig, ask(words(8, 40), 300))
    assert rig.engine.metrics.drafts_skipped
    assert rig.engine.metrics.drafts


def test_a_sure_draft_model(make_rig: MakeRig) -> None:
    rig = make_rig("full", speculative=drafting(tiny_model("full", seed=2), p_min=1.0))
    request = ask(words(8, 40), 12)
    finish(rig, request)
    assert request.record.drafted == 0


def test_after_a_lookup(make_rig: MakeRig) -> None:
    both = Speculative((PromptLookup(), DraftModel(str(tiny_model("full")))), adaptive=False)
    rig = make_rig("full", speculative=both)
    finish(rig, ask(words(9, 40), 20))
    assert rig.engine.metrics.accepted > 0


def test_it_is_freed_with_its_model() -> None:
    rig = Rig("full", speculative=drafting(tiny_model("full")))
    draft = opened(rig)
    rig.close()
    assert draft._model.closed
    assert draft._context.closed


# -- what cannot be -------------------------------------------------------------------------------


def test_a_draft_model_with_another_vocabulary() -> None:
    with pytest.raises(ParameterError, match="another vocabulary"):
        Llama(str(tiny_model("full")), speculative=DraftModel(demo_model_path()), **EXACT)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_draft_model_that_cannot_be_cut(kind: str) -> None:
    with pytest.raises(ParameterError, match="cannot be cut"):
        Llama(str(tiny_model("full")), speculative=f"draft={tiny_model(kind)}", **EXACT)


def test_a_draft_model_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError):
        Llama(str(tiny_model("full")), speculative="draft=no-such-model.gguf", **EXACT)


def test_a_call_cannot_load_one(make_rig: MakeRig) -> None:
    rig = make_rig("full")
    path = str(tiny_model("full"))
    models: list[Any] = [DraftModel(path), [DraftModel(path)], f"draft={path}"]
    for wrong in models:
        with pytest.raises(ParameterError, match="pass it to Llama"):
            rig.llm.create_completion("x", speculative=wrong)


@pytest.mark.parametrize("wrong", [{"n_draft": 0}, {"p_min": 1.5}, {"n_gpu_layers": -2}])
def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="out of range"):
        DraftModel("x.gguf", **wrong)
