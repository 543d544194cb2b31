"""What is computed behind pictures and sounds is what libmtmd's own helper computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from llama_py import Llama, LlamaDiskCache
from tests.media import pictures
from tests.media.oracle import Part
from tests.media.talking import cells, talk
from tests.memory.oracle import nmse
from tests.models import tiny_model

DISC, STRIPES, WIDE = pictures.disc(), pictures.stripes(), pictures.gradient(70, 42)
TONE, CHIRP = pictures.tone(), pictures.chirp()
EXACT = 1e-12

PAIRS = [
    ("full", "mlp"),
    ("full", "mlp_tiles"),
    ("iswa", "gemma3"),
    ("mrope", "qwen2vl_merger"),
    ("mrope", "mlp"),
    ("mrope", "mlp_tiles"),
    ("recurrent", "mlp"),
    ("hybrid", "mlp"),
    ("hybrid_swa", "mlp"),
]
MESSAGES: list[list[Part]] = [
    ["What is ", DISC, " this?"],
    [DISC, "and", STRIPES, "compare"],
    [DISC, STRIPES, WIDE, "all of them"],
    ["The same twice: ", WIDE, WIDE, " indeed"],
]


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_logits_behind_pictures_are_those_of_the_helper(kind: str, projector: str) -> None:
    with talk(kind, projector) as talking:
        for parts in MESSAGES:
            assert talking.error(parts, reuse=False) <= EXACT
        for parts in MESSAGES:  # with what is in memory by now
            assert talking.error(parts) <= EXACT
            assert talking.reused > 8


@pytest.mark.parametrize(("kind", "projector"), [("full", "gemma4ua"), ("full", "omni")])
def test_logits_behind_sounds_are_those_of_the_helper(kind: str, projector: str) -> None:
    with talk(kind, projector) as talking:
        assert talking.error(["Listen: ", TONE, " what is it?"]) <= EXACT
        assert talking.error(["Listen: ", TONE, " and how long?"]) <= EXACT
        assert talking.reused >= cells(talking, TONE)
        assert talking.error(["Listen: ", CHIRP, " and how long?"]) <= EXACT
        assert talking.encoded == 2


def test_pictures_and_sounds_in_one_prompt() -> None:
    with talk("full", "omni") as talking:
        assert talking.error([DISC, "and", TONE, "belong together?"]) <= EXACT
        assert talking.error([DISC, "and", CHIRP, "belong together?"]) <= EXACT
        assert talking.encoded == 3


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_another_question_about_a_picture_encodes_and_evaluates_no_picture(
    kind: str, projector: str
) -> None:
    with talk(kind, projector) as talking:
        talking.ask(["Look at ", DISC, " what is it?"])
        encoded, count = talking.encoded, cells(talking, DISC)
        assert talking.error(["Look at ", DISC, " which colour has it?"]) <= EXACT
        assert talking.reused >= count
        assert talking.encoded == encoded


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_another_picture_with_the_same_words_is_not_taken_for_the_first(
    kind: str, projector: str
) -> None:
    with talk(kind, projector) as talking:
        first = talking.expected(["Look at ", DISC, " what is it?"])
        talking.ask(["Look at ", DISC, " what is it?"])
        assert talking.error(["Look at ", STRIPES, " what is it?"]) <= EXACT
        assert nmse(talking.llm.last_logits, first) > 1e-3


def test_a_picture_that_comes_as_another_file_is_the_same_picture() -> None:
    """It is named by its pixels: a client may encode it anew in each turn."""
    with talk() as talking:
        talking.ask(["Look at ", DISC, " what is it?"])
        url = {"url": "data:image/png;base64," + _base64(pictures.png(DISC))}
        content = [
            {"type": "text", "text": "Look at "},
            {"type": "image_url", "image_url": url},
            {"type": "text", "text": " which colour?"},
        ]
        talking.ask_all([{"role": "user", "content": content}])
        assert talking.encoded == 1
        assert talking.reused >= 16


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def test_conversations_with_pictures_go_on() -> None:
    """Turns behind a picture, an edit behind it, an edit before it."""
    with talk() as talking:
        messages = [talking.message(["Look at ", DISC, " what is it?"])]
        for question in ("And its colour?", "And its size?"):
            reply = talking.ask_all(messages, max_tokens=4)["choices"][0]["message"]
            messages += [{"role": "assistant", "content": reply["content"]}]
            messages += [{"role": "user", "content": question}]
        talking.ask_all(messages)
        before = talking.reused
        assert talking.encoded == 1
        talking.ask_all([*messages[:-1], {"role": "user", "content": "Or its place?"}])
        assert talking.reused >= before - 8
        parts = talking.parts(
            [*messages[:-1], {"role": "user", "content": "Or its place?"}], [DISC]
        )
        assert nmse(talking.llm.last_logits, talking.oracle.logits(parts)) <= EXACT * 1e4
        talking.ask(["See ", DISC, " there"])
        assert talking.reused < 16
        assert talking.encoded == 1  # the vectors are known, wherever the picture stands


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_a_conversation_that_made_room_comes_back_with_its_picture(
    kind: str, projector: str
) -> None:
    with talk(kind, projector) as talking:
        talking.ask(["Look at ", DISC, " what is it? " + "Say it. " * 8])
        encoded = talking.encoded
        _make_room(talking.llm)
        talking.encoder.forget()
        error = talking.error(["Look at ", DISC, " what is it? " + "Say it. " * 8 + "And?"])
        assert error <= EXACT
        assert talking.reused >= 16
        assert talking.encoded == encoded


def _make_room(llm: Llama) -> None:
    def empty() -> None:
        while llm.runtime.loaded.cache.live.make_room():
            pass

    llm.runtime.loaded.driver.run(empty)


@pytest.mark.parametrize(("kind", "projector"), PAIRS)
def test_a_picture_survives_the_process_on_disk(kind: str, projector: str, tmp_path: Path) -> None:
    """Another model is loaded from the same file: nothing is encoded, and the logits are right."""
    words = " what is it? " + "Say it. " * 8
    with talk(kind, projector) as talking:
        talking.llm.set_cache(LlamaDiskCache(str(tmp_path)))
        talking.ask(["Look at ", DISC, words])
        talking.llm.save_cache() if hasattr(talking.llm, "save_cache") else None
    with talk(kind, projector) as talking:
        talking.llm.set_cache(LlamaDiskCache(str(tmp_path)))
        assert talking.error(["Look at ", DISC, words + "And?"]) <= EXACT
        assert talking.reused >= 16
        assert talking.encoded == 0


def test_snapshots_have_their_pictures(tmp_path: Path) -> None:
    with talk() as talking:
        talking.ask(["Look at ", DISC, " what is it?"])
        talking.llm.snapshot("picture")
        talking.ask(["Look at ", STRIPES, " what is it?"])
        talking.llm.restore("picture")
        assert talking.error(["Look at ", DISC, " what is it?"]) <= EXACT
        assert talking.encoded == 2


def test_choices_share_the_picture() -> None:
    with talk() as talking:
        reply = talking.ask(["Look at ", DISC, " what is it?"], n=3, max_tokens=5)
        assert len(reply["choices"]) == 3
        assert len({choice["message"]["content"] for choice in reply["choices"]}) == 1
        assert talking.encoded == 1


@pytest.mark.parametrize(
    "parts", [[DISC], ["Only this: ", DISC], [TONE], ["words and then ", DISC, STRIPES]]
)
def test_messages_that_end_with_a_picture(parts: Sequence[Part]) -> None:
    with talk("full", "omni") as talking:
        assert talking.error(parts) <= EXACT
        assert talking.error(parts) <= EXACT


def test_a_narrow_batch_evaluates_a_picture_in_parts() -> None:
    with talk(n_batch=8, n_ubatch=8) as talking:
        talking.oracle.close()
        from tests.media.oracle import MediaOracle
        from tests.media.projectors import tiny_projector

        talking.oracle = MediaOracle(talking.model, tiny_projector("mlp"), n_batch=8, n_ubatch=8)
        assert talking.error(["What is ", DISC, " this?"]) <= EXACT


def test_streams_beside_a_picture_are_what_they_are_alone() -> None:
    with talk() as talking:
        alone = talking.ask(["Tell me a story"], max_tokens=24)["choices"][0]["message"]["content"]
        stream = talking.ask(["Tell me a story"], max_tokens=24, stream=True, reuse=False)
        text = "".join(_delta(next(stream)) for _ in range(4))
        first = talking.ask(["What is ", DISC, " this?"], max_tokens=4)
        text += "".join(map(_delta, stream))
        assert text == alone
        again = talking.ask(["What is ", DISC, " this?"], max_tokens=4, reuse=False)
        assert first["choices"][0]["message"] == again["choices"][0]["message"]


def _delta(chunk: object) -> str:
    assert isinstance(chunk, dict)
    return chunk["choices"][0]["delta"].get("content") or ""


def test_four_threads_with_four_pictures() -> None:
    from concurrent.futures import ThreadPoolExecutor

    shown = [DISC, STRIPES, WIDE, pictures.noise(3)]
    with talk() as talking:
        alone = [talking.ask(["See ", each, " what?"], max_tokens=6) for each in shown]
        talking.llm.reset()
        talking.encoder.forget()
        with ThreadPoolExecutor(4) as pool:
            together = pool.map(
                lambda each: talking.ask(["See ", each, " what?"], max_tokens=6), [*shown, *shown]
            )
        for one, other in zip([*alone, *alone], together, strict=True):
            assert one["choices"][0]["message"] == other["choices"][0]["message"]


def test_in_place_nothing_needs_a_thread() -> None:
    with talk(in_place=True) as talking:
        assert talking.error(["What is ", DISC, " this?"]) <= EXACT


def test_usage_counts_the_cells() -> None:
    with talk() as talking:
        without = talking.ask(["Hello there"])["usage"]["prompt_tokens"]
        reply = talking.ask(["Hello there", DISC])
        assert reply["usage"]["prompt_tokens"] == without + cells(talking, DISC)


def test_sampling_with_penalties_and_grammar_beside_a_picture() -> None:
    with talk() as talking:
        options = {"temperature": 0.8, "repeat_penalty": 1.3, "top_k": 20, "seed": 3}
        first = talking.ask(["What is ", DISC, " this?"], max_tokens=8, **options)
        again = talking.ask(["What is ", DISC, " this?"], max_tokens=8, reuse=False, **options)
        assert first["choices"][0]["message"] == again["choices"][0]["message"]
        schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}
        schema["required"] = ["colour"]
        reply = talking.ask(
            ["What is ", DISC, " this?"],
            max_tokens=40,
            response_format={"type": "json_object", "schema": schema},
            ignore_eos=False,
        )
        assert reply["choices"][0]["message"]["content"].count("colour") == 1
        reply = talking.ask(["See ", DISC, " so"], max_tokens=3, logprobs=True, top_logprobs=2)
        assert len(reply["choices"][0]["logprobs"]["content"]) == 3


@pytest.mark.parametrize("drafter", ["lookup", "custom"])
def test_drafts_beside_a_picture_change_nothing(drafter: str) -> None:
    from llama_py import PromptLookup, Speculative

    def guess(tokens: np.ndarray[tuple[int], np.dtype[np.intc]]) -> list[int]:
        return [int(token) for token in tokens[-3:]]

    with talk() as talking:
        plain = talking.ask(["a b a b ", DISC, " a b a b"], max_tokens=16)
        drafted = talking.ask(
            ["a b a b ", DISC, " a b a b"],
            max_tokens=16,
            reuse=False,
            speculative=Speculative((PromptLookup() if drafter == "lookup" else guess,)),
        )
        assert plain["choices"][0]["message"] == drafted["choices"][0]["message"]


def test_a_model_without_a_projector_says_what_is_missing() -> None:
    with talk(mmproj=None) as talking, pytest.raises(ValueError, match="mmproj"):
        talking.ask(["What is ", DISC, " this?"])


def test_a_projector_beside_the_model_is_found(tmp_path: Path) -> None:
    with talk() as talking:
        model, projector = talking.model, Path(talking.options["mmproj"])
        (tmp_path / "model.gguf").symlink_to(model)
        (tmp_path / "mmproj-model-f16.gguf").symlink_to(projector)
        with Llama(tmp_path / "model.gguf", n_ctx=256) as llm:
            reply = llm.create_chat_completion(
                [talking.message(["What is ", DISC, " this?"])], max_tokens=2
            )
        assert reply["usage"]["prompt_tokens"] > 16


def test_what_does_not_fit_says_so_before_anything_is_evaluated() -> None:
    from llama_py import ContextOverflowError

    with talk(n_ctx=256) as talking:
        with pytest.raises(ContextOverflowError) as caught:
            talking.ask([DISC] * 16)
        assert caught.value.prompt_tokens > 256
        assert talking.encoded == 0
        assert talking.error(["What is ", DISC, " this?"]) <= EXACT


def test_del_frees_the_projector_and_ends_its_thread() -> None:
    import threading

    with talk() as talking:
        talking.ask(["What is ", DISC, " this?"])
        assert any(each.name == "llama_py-media" for each in threading.enumerate())
    assert not any(each.name == "llama_py-media" for each in threading.enumerate())
    llm = Llama(talking.model, **talking.options)
    llm.create_chat_completion([talking.message(["What is ", DISC, " this?"])], max_tokens=1)
    del llm
    for each in threading.enumerate():
        if each.name == "llama_py-media":
            each.join(5)
            assert not each.is_alive()


def test_scores_are_of_texts() -> None:
    with talk() as talking, pytest.raises(ValueError, match="pictures or sounds"):
        talking.llm.score([talking.message(["What is ", DISC, " this?"])], ["a disc"])


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid"])
def test_marks_around_a_picture_that_the_vocabulary_lacks_are_plain_text(kind: str) -> None:
    """Words and the mark before or behind a picture are never tokenized together."""
    questions = ["a?", "b?", "b? no: c", ">b", "_of_image> d"]
    with talk(kind, "gemma3", model=tiny_model(kind)) as talking:
        for first, second in product(questions, questions):
            talking.llm.reset()
            for question in (first, second, first + second):
                assert talking.error(["see <start", DISC, question, DISC, "end"]) <= EXACT
                found = talking.llm.runtime.last.record.tokens
                talking.ask(["see <start", DISC, question, DISC, "end"], reuse=False)
                assert found == talking.llm.runtime.last.record.tokens


@pytest.mark.parametrize(("kind", "projector"), [("full", "mlp"), ("mrope", "qwen2vl_merger")])
def test_tokens_by_hand_go_on_behind_a_restored_picture(kind: str, projector: str) -> None:
    with talk(kind, projector) as talking:
        message = talking.message(["Look at ", DISC, " what is it?"])
        talking.ask_all([message])
        talking.llm.snapshot("seen")
        talking.llm.restore("seen")
        found = len(talking.llm.eval_tokens)
        talking.llm.eval([97, 98, 99])
        parts = talking.parts([message], [DISC])
        whole = talking.llm.runtime.last.record
        assert found == len(whole.tokens)
        assert nmse(talking.llm.last_logits, talking.oracle.logits(parts, [97, 98, 99])) <= 1e-9
