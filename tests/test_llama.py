"""The facade: parameters, errors, the low-level calls, and the life of a ``Llama``."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import llama_py
from llama_py import Llama, LlamaGrammar, TrimMessages, demo_model_path, llama_cpp
from llama_py.errors import (
    ClosedError,
    ContextCreationError,
    ContextOverflowError,
    InvalidModelError,
    LlamaError,
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    ParameterTypeError,
    TokenizationError,
    UnknownParameterError,
)
from tests.ids import spelled_out
from tests.models import tiny_model
from tests.slowness import slow_steps

TINY = str(tiny_model("full"))
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": False}
CHAT = [{"role": "user", "content": "the quick brown fox"}]


def load(**options: Any) -> Llama:
    return Llama(TINY, **{**SMALL, **options})


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    with load(seed=5) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    shared.reset()
    return shared


def logits_of(tokens: list[int]) -> NDArray[np.float32]:
    with load() as fresh:
        fresh.eval(tokens)
        return fresh.last_logits


# -- parameters ------------------------------------------------------------------------------------


def test_every_parameter_reaches_its_place() -> None:
    overrides = {"llama.context_length": 2048}
    model = {"n_gpu_layers": 3, "main_gpu": 0, "use_mmap": False, "tensor_split": (1.0,)}
    context = {
        "n_ctx": 512,
        "n_batch": 64,
        "n_ubatch": 32,
        "n_seq_max": 3,
        "n_threads": 1,
        "n_threads_batch": 2,
        "rope_scaling_type": 0,
        "rope_freq_base": 20000.0,
        "rope_freq_scale": 0.5,
        "yarn_ext_factor": 0.0,
        "yarn_attn_factor": 1.5,
        "yarn_beta_fast": 16.0,
        "yarn_beta_slow": 2.0,
        "yarn_orig_ctx": 1024,
        "offload_kqv": False,
        "op_offload": False,
        "swa_full": True,
        "flash_attn": True,
        "no_perf": False,
        "type_k": 8,
        "type_v": 8,
    }
    mine = {"seed": 9, "last_n_tokens_size": 11, "spm_infill": True, "overflow": TrimMessages()}
    with Llama(TINY, **model, **context, **mine, kv_overrides=overrides) as llm:  # type: ignore[arg-type]
        assert {name: getattr(llm.runtime.loaded.model.params, name) for name in model} == model
        assert {
            name: getattr(llm.runtime.loaded.context.params, name) for name in context
        } == context
        assert {name: getattr(llm, name) for name in mine} == mine
        assert llm.runtime.loaded.model.n_ctx_train == 2048
        assert llm.n_ctx() == 512


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("n_cxt", "n_ctx"),
        ("n_gpu_layer", "n_gpu_layers"),
        ("typek", "type_k"),
        ("context_length", "n_ctx"),
        ("num_gpu", "n_gpu_layers"),
        ("threads", "n_threads"),
    ],
)
def test_an_unknown_parameter_names_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(UnknownParameterError, match=f"{wrong!r}; did you mean {right!r}") as caught:
        load(**{wrong: 1})
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n_ctx", value) for value in ("2048", 1.5, True, None)),
        *(("n_gpu_layers", value) for value in ("all", 1.0)),
        *(("tensor_split", value) for value in (5, ["a"])),
        *(("kv_overrides", value) for value in ([1], {"a": None})),
        *((name, "x") for name in ("seed", "main_gpu", "yarn_ext_factor")),
        *((name, 1.5) for name in ("type_k", "split_mode", "rope_scaling_type")),
        *((name, "x") for name in ("lora_scale", "numa", "max_waiting", "parking_bytes")),
        *((name, 3) for name in ("lora_path", "chat_format", "chat_template", "progress")),
        *((name, 3) for name in ("tokenizer", "overflow", "chat_handler", "verbose")),
        *((name, "yes") for name in ("use_mmap", "vocab_only", "logits_all", "swa_full")),
        *((name, "on") for name in ("op_offload", "offload_kqv", "no_perf")),
        ("flash_attn", 1),
    ],
)
def test_a_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(ParameterTypeError, match=name) as caught:
        load(**{name: value})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": -1},
        {"n_ctx": 3},
        {"n_gpu_layers": -2},
        {"n_gpu_layers": 10**12},
        {"n_batch": 0},
        {"n_batch": 2},
        {"n_seq_max": 0},
        {"n_seq_max": 257},
        {"n_threads": 0},
        {"main_gpu": -1},
        {"split_mode": 9},
        {"type_k": 999},
        {"type_k": "q9_0"},
        {"flash_attn": "on"},
        {"rope_freq_scale": -1.0},
        {"rope_freq_base": float("nan")},
        {"pooling_type": 99},
        {"seed": -(2**40)},
        {"prefix_cache_slots": -1},
        {"checkpoint_bytes": -1},
        {"max_waiting": 0},
        {"kv_overrides": {"x": 2**70}},
        {"kv_overrides": {"x" * 200: 1}},
        {"chat_format": "no-such-format"},
        {"draft_model": object()},
        {"lora_base": "base.gguf"},
    ],
    ids=spelled_out,
)
def test_a_value_out_of_range_is_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ParameterError, match=name.removeprefix("chat_").replace("_", "[_ ]")):
        load(**options)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(ContextCreationError, match="smaller n_ctx"):
        load(n_ctx=2**31 - 1)


def test_more_layers_than_there_are_is_all_of_them() -> None:
    with load(n_gpu_layers=10_000) as llm:
        response: Any = llm.create_completion([5, 6, 7], max_tokens=2, ignore_eos=True)
        assert response["usage"]["completion_tokens"] == 2


# -- files -----------------------------------------------------------------------------------------


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("hello " * 100)
    (tmp_path / "cut.gguf").write_bytes(Path(TINY).read_bytes()[:100_000])
    kinds: dict[str, type[ModelLoadError]] = {
        "gone.gguf": ModelNotFoundError,
        ".": InvalidModelError,
        "empty.gguf": InvalidModelError,
        "text.gguf": InvalidModelError,
        "cut.gguf": InvalidModelError,
    }
    for name, kind in kinds.items():
        with pytest.raises(kind) as caught:
            Llama(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
        assert len(str(caught.value)) > len(str(tmp_path / name)) + 20  # a reason, a remedy


@pytest.mark.parametrize("path", [None, 3, b"x.gguf"])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ParameterTypeError, match="model_path"):
        Llama(path)


def test_adapters_that_are_none() -> None:
    with pytest.raises(ModelNotFoundError, match="no LoRA adapter at"):
        load(lora_path="/nowhere.gguf")
    with pytest.raises(InvalidModelError, match="LoRA adapter"):
        load(lora_path=TINY)


# -- facts -----------------------------------------------------------------------------------------


def test_facts(llm: Llama) -> None:
    assert (llm.n_ctx(), llm.n_vocab(), llm.n_embd()) == (256, 519, 128)
    assert llm.token_eos() == llm.vocab.eos == 514
    assert llm.token_bos() == llm.vocab.bos == 512
    assert llm.detokenize([llm.token_nl()]) == b"\n"
    assert llm.metadata["general.architecture"] == "llama"
    assert repr(llm) == f"Llama({Path(TINY).name!r}, n_ctx=256)"
    assert llm.model_path == TINY


def test_tokenizing(llm: Llama) -> None:
    assert llm.detokenize(llm.tokenize(b"the quick fox")) == b"the quick fox"
    assert llm.tokenize("the") == llm.tokenize(b"the")
    (end,) = llm.tokenize("<|im_end|>", special=True)
    assert end == llm.token_eos()
    assert llm.detokenize([end]) == b""
    assert llm.detokenize([end], special=True) == b"<|im_end|>"
    with pytest.raises(TokenizationError, match="99999"):
        llm.detokenize([99999])


# -- the low-level calls -------------------------------------------------------------------------


def test_eval_goes_on_where_it_was(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    llm.eval([8, 9])
    assert llm.n_tokens == 5
    assert llm.eval_tokens == [5, 6, 7, 8, 9]
    row = llm.last_logits
    assert row.shape == (519,)
    assert row.dtype == np.float32
    np.testing.assert_allclose(row, logits_of([5, 6, 7, 8, 9]), atol=1e-4)


def test_last_logits_is_a_copy(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    before = llm.last_logits.copy()
    kept = llm.last_logits
    llm.eval([8])
    np.testing.assert_array_equal(kept, before)


def test_the_logits_of_a_call_are_copies(llm: Llama) -> None:
    """The buffer that llama.cpp wrote them to is that of the next call too."""
    llm.create_completion([5, 6, 7], max_tokens=1, temperature=0, ignore_eos=True)
    kept, state = llm.last_logits, llm.save_state()
    expected = logits_of([5, 6, 7])
    assert state.logits is not None
    llm.create_completion([9, 8, 11, 12], max_tokens=1, temperature=0, ignore_eos=True)
    assert not np.allclose(llm.last_logits, expected, atol=1e-2)
    np.testing.assert_allclose(kept, expected, atol=1e-4)
    np.testing.assert_allclose(state.logits, expected, atol=1e-4)


def test_eval_of_nothing_changes_nothing(llm: Llama) -> None:
    llm.eval([5])
    llm.eval([])
    assert llm.eval_tokens == [5]


def test_eval_knows_its_limits(llm: Llama) -> None:
    llm.eval([5, 6])
    with pytest.raises(ContextOverflowError) as caught:
        llm.eval([7] * 255)
    assert caught.value.prompt_tokens == 257
    for token in (519, -1):
        with pytest.raises(TokenizationError, match=str(token)):
            llm.eval([7, token])
    assert llm.eval_tokens == [5, 6]  # nothing was evaluated


def test_other_calls_may_reuse_what_eval_evaluated(llm: Llama) -> None:
    """As its docstring says: it is known to the cache like everything else."""
    tokens = list(range(20, 60))
    llm.eval(tokens)
    llm(tokens + [61], max_tokens=1)  # noqa: RUF005
    assert llm.cache_info["reused"] == len(tokens)
    assert llm.n_tokens == 0


def test_eval_does_not_touch_conversations(llm: Llama) -> None:
    first = llm.create_chat_completion(CHAT, max_tokens=4, temperature=0)
    llm.eval([5, 6, 7])
    again = llm.create_chat_completion(CHAT, max_tokens=4, temperature=0)
    assert again["choices"] == first["choices"]
    assert llm.cache_info["reused"] > 0


def test_logits_all_keeps_every_row() -> None:
    tokens = [5, 6, 7, 8]
    with load(logits_all=True) as llm:
        llm.eval(tokens[:3])
        llm.eval(tokens[3:])
        assert llm.scores.shape == (4, 519)
        for count in range(1, 5):
            np.testing.assert_allclose(llm.scores[count - 1], logits_of(tokens[:count]), atol=1e-4)
        chosen = [llm.sample(idx=idx, temperature=0) for idx in range(4)]
        assert chosen == llm.scores.argmax(1).tolist()


def test_rows_after_a_restored_state_are_in_their_places() -> None:
    tokens = [5, 6, 7, 8, 9, 10]
    with load(logits_all=True) as llm:
        llm.eval(tokens[:3])
        llm.load_state(llm.save_state())
        llm.eval(tokens[3:])
        assert not llm.scores[:2].any()
        for count in range(4, 7):
            np.testing.assert_allclose(llm.scores[count - 1], logits_of(tokens[:count]), atol=1e-4)
        assert llm.sample(idx=4, temperature=0) == int(llm.scores[4].argmax())
        with pytest.raises(ParameterError, match="idx=1"):
            llm.sample(idx=1)


def test_the_c_objects_can_be_used_directly() -> None:
    with load() as llm:
        assert llama_cpp.llama_n_ctx(llm.ctx) == llm.n_ctx()
        vocab = llama_cpp.llama_model_get_vocab(llm.model)
        assert llama_cpp.llama_vocab_n_tokens(vocab) == llm.n_vocab()
    for pointer in (lambda: llm.ctx, lambda: llm.model):
        with pytest.raises(ClosedError):
            pointer()


def test_without_logits_all_the_last_row_is_there(llm: Llama) -> None:
    """As the docstring of ``scores`` says."""
    llm.eval([5, 6])
    llm.eval([7, 8, 9])
    scores = llm.scores
    assert scores.shape == (5, 519)
    np.testing.assert_array_equal(scores[4], llm.last_logits)
    assert not scores[:4].any()


def test_sample_chooses_and_evaluates_nothing(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    assert llm.sample(temperature=0) == int(llm.last_logits.argmax())
    assert llm.sample(logit_bias={33: 1000.0}, temperature=0) == 33
    assert llm.sample(temperature=0) == int(llm.last_logits.argmax())
    assert llm.n_tokens == 3
    with pytest.raises(ParameterError, match="idx=0"):
        llm.sample(idx=0)
    with pytest.raises(TypeError):
        llm.sample(40)  # type: ignore[call-arg] # llama-cpp-python's first parameter is top_k, and not a position
    for wrong, right in [("temp", "temperature"), ("max_new_tokens", "max_tokens")]:
        with pytest.raises(UnknownParameterError, match=f"{wrong!r}; did you mean {right!r}"):
            llm.create_completion("Hi", **{wrong: 1})  # type: ignore[call-overload]
    with pytest.raises(UnknownParameterError, match="'temprature'; did you mean 'temperature'"):
        llm.sample(temprature=1)  # type: ignore[call-arg]


def test_the_low_level_calls_know_the_names_of_llama_cpp_python(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    assert llm.sample(temp=0.0, penalize_nl=True) == int(llm.last_logits.argmax())
    by_old_name = [*itertools.islice(llm.generate([5, 6, 7], temp=0.0), 4)]
    assert by_old_name == [*itertools.islice(llm.generate([5, 6, 7], temperature=0), 4)]
    with pytest.raises(ParameterError, match="temp and temperature"):
        llm.sample(temp=0.0, temperature=1)


def test_generate_keeps_to_a_grammar(llm: Llama) -> None:
    rules = LlamaGrammar.from_string('root ::= "yes" | "no"')
    tokens = llm.generate([5, 6, 7], temp=0.0, grammar=rules)
    text = b""
    while text not in (b"yes", b"no"):
        text += llm.detokenize([next(tokens)])
        assert b"yes".startswith(text) or b"no".startswith(text)
    tokens.close()


def test_set_seed_is_for_later_calls(llm: Llama) -> None:
    def draw(**options: Any) -> list[int]:
        return [*itertools.islice(llm.generate([5, 6, 7], temperature=2.0, **options), 8)]

    llm.set_seed(7)
    assert draw() == draw() == draw(seed=7) != draw(seed=8)
    with pytest.raises(ParameterError, match="seed must be an integer"):
        llm.set_seed("7")  # type: ignore[arg-type]


def test_before_anything_was_evaluated(llm: Llama) -> None:
    for call in (lambda: llm.last_logits, llm.sample, llm.save_state):
        with pytest.raises(LlamaError, match="nothing was evaluated"):
            call()
    assert llm.n_tokens == 0
    assert llm.scores.shape == (0, 519)


def test_generate_is_eval_and_sample_in_turn(llm: Llama) -> None:
    prompt = llm.tokenize("the quick brown")
    stream = llm.generate(prompt, temperature=0)
    generated = [next(stream) for _ in range(6)]
    stream.close()
    llm.reset()
    llm.eval(prompt)
    by_hand = []
    for _ in range(6):
        by_hand.append(llm.sample(temperature=0))
        llm.eval(by_hand[-1:])
    assert generated == by_hand
    assert llm.memory_report()["free_sequences"] == 7


def test_generate_can_go_on_after_eval(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    evaluated = llm.metrics["evaluated"]
    going_on = llm.generate([8], reset=False, temperature=0)
    assert next(going_on) == int(logits_of([5, 6, 7, 8]).argmax())
    going_on.close()
    assert llm.metrics["evaluated"] - evaluated == 1  # the others are those of eval


def test_generate_stops_where_its_criteria_say(llm: Llama) -> None:
    def after_three(tokens: NDArray[np.intc], logits: NDArray[np.float32]) -> bool:
        return len(tokens) >= 2 + 3

    assert len(list(llm.generate([5, 6], stopping_criteria=[after_three]))) == 3


def test_reset_forgets_everything(llm: Llama) -> None:
    llm.create_chat_completion(CHAT, max_tokens=2)
    llm.eval([5, 6])
    llm.reset()
    report = llm.memory_report()
    assert report["cells_used"] == 0
    assert report["sequences"] == []
    assert report["bytes"]["parked"] == report["bytes"]["checkpoints"] == 0
    assert llm.n_tokens == 0
    assert llm.metrics["generated"] == 0
    llm.create_chat_completion(CHAT, max_tokens=2)
    assert llm.cache_info["reused"] == 0


def test_a_token_that_does_not_exist_in_a_prompt(llm: Llama) -> None:
    for prompt in ([5, 519], [-1]):
        with pytest.raises((TokenizationError, ParameterError)):
            llm(prompt, max_tokens=1)
    assert llm("the", max_tokens=1)["choices"]


# -- only the vocabulary ---------------------------------------------------------------------------

NEEDS_CONTEXT: list[Callable[[Llama], Any]] = [
    lambda llm: llm("the"),
    lambda llm: list(llm("the", stream=True)),
    lambda llm: llm.create_chat_completion(CHAT),
    lambda llm: llm.eval([1]),
    lambda llm: llm.sample(),
    lambda llm: next(llm.generate([1])),
    lambda llm: llm.last_logits,
    lambda llm: llm.reset(),
    lambda llm: llm.save_state(),
    lambda llm: llm.snapshot("a"),
    lambda llm: llm.memory_report(),
    lambda llm: llm.metrics,
    lambda llm: llm.set_cache(None),
    lambda llm: llm.prewarm(CHAT),
]


def test_with_the_vocabulary_only_it_tokenizes() -> None:
    with Llama(TINY, vocab_only=True) as llm:
        assert llm.detokenize(llm.tokenize("the fox")) == b"the fox"
        assert llm.n_vocab() == 519
        assert llm.token_eos() == 514
        assert repr(llm) == f"Llama({Path(TINY).name!r}, vocab_only=True)"
        for call in (*NEEDS_CONTEXT, Llama.n_ctx):
            with pytest.raises(ParameterError, match="vocab"):
                call(llm)
        again = pickle.loads(pickle.dumps(llm))
        assert again.tokenize("fox") == llm.tokenize("fox")


# -- life ------------------------------------------------------------------------------------------


def test_closed_is_closed() -> None:
    llm = load()
    llm("the", max_tokens=1)
    llm.detokenize(llm.tokenize("the"))
    llm.close()
    llm.close()
    more: list[Callable[[Llama], Any]] = [
        lambda llm: llm.tokenize("the"),
        lambda llm: llm.detokenize([5]),
        lambda llm: llm.n_embd(),
    ]
    silent = {"metrics", "set_cache"}  # nothing of the model is needed for these
    for call in (*NEEDS_CONTEXT, *more):
        if not silent & {*call.__code__.co_names}:
            with pytest.raises(ClosedError):
                call(llm)
    assert "Llama(" in repr(llm)


def test_a_stream_of_a_closed_model_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.01)
    llm = load()
    stream = llm("the", stream=True, max_tokens=200, ignore_eos=True)
    next(stream)
    llm.close()
    with pytest.raises(LlamaError):
        list(stream)


def test_two_models_at_once() -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with load() as one, Llama(tiny_model("iswa"), **SMALL) as other:
        alone, theirs = (llm("the quick", **options)["choices"][0]["text"] for llm in (one, other))
        assert alone
        assert theirs
        assert alone != theirs
        one.reset()
        streams = [llm("the quick", **options, stream=True) for llm in (one, other)]
        texts = ["", ""]
        for pair in itertools.zip_longest(*streams):
            for index, chunk in enumerate(pair):
                texts[index] += chunk["choices"][0]["text"] if chunk is not None else ""
        assert texts == [alone, theirs]
        other.close()
        assert one("the quick", **options)["choices"][0]["text"] == alone


def test_pickling_loads_the_model_again() -> None:
    with load(seed=3, n_ctx=512, chat_format="chatml", last_n_tokens_size=7) as llm:
        text = llm("the quick", max_tokens=5, temperature=0)["choices"][0]["text"]
        data = pickle.dumps(llm)
    assert len(data) < 10_000
    with pickle.loads(data) as again:
        assert (again.seed, again.n_ctx(), again.chat_format) == (3, 512, "chatml")
        assert again.last_n_tokens_size == 7
        assert again("the quick", max_tokens=5, temperature=0)["choices"][0]["text"] == text


def test_a_seed_makes_replies_repeatable(llm: Llama) -> None:
    def reply(**options: Any) -> str:
        return str(llm("the", max_tokens=12, temperature=1.5, **options)["choices"][0]["text"])

    assert reply() == reply()  # the seed of the model
    assert reply(seed=1) == reply(seed=1)
    assert reply(seed=1) != reply(seed=2)


def test_the_package_names_what_it_has() -> None:
    assert all(hasattr(llama_py, name) for name in llama_py.__all__)
    assert Path(demo_model_path()).stat().st_size < 6_000_000


#: Calls that take a text, and the name of it in an error.
TEXTS: dict[str, tuple[str, Callable[[Llama, str], object]]] = {
    "prompt": ("prompt", lambda llm, text: llm.create_completion(text, max_tokens=1)),
    "stop": ("stop", lambda llm, text: llm.create_completion("a", stop=[text], max_tokens=1)),
    "suffix": ("suffix", lambda llm, text: llm.create_completion("a", suffix=text, max_tokens=1)),
    "prefix": ("prefix", lambda llm, text: llm.score(text, ["a"])),
    "continuation": (r"continuations\[1\]", lambda llm, text: llm.score("a", ["b", text])),
    "embedded": (r"input\w*\[0\]", lambda llm, text: llm.embed(text)),
    "session": ("session_id", lambda llm, text: llm.create_completion("a", session_id=text)),
    "model": ("model", lambda llm, text: llm.create_completion("a", model=text, max_tokens=1)),
    "message": (
        r"messages\[0\].content",
        lambda llm, text: llm.create_chat_completion([{"role": "user", "content": text}]),
    ),
}


@pytest.mark.parametrize("call", TEXTS)
def test_half_a_character_is_refused_wherever_a_text_is_taken(llm: Llama, call: str) -> None:
    name, function = TEXTS[call]
    with pytest.raises(ParameterError, match=f"^{name} has a lone surrogate .U.D83D"):
        function(llm, "a\ud83db")


def test_both_halves_of_a_character_are_the_character(llm: Llama) -> None:
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "echo": True}
    halves, whole = (
        llm.create_completion(text, **options)["choices"][0]["text"]
        for text in ("a\ud83d\ude00b", "a\U0001f600b")
    )
    assert halves == whole


def test_a_second_bos_is_warned_of() -> None:
    with load(kv_overrides={"tokenizer.ggml.add_bos_token": True}) as llm:
        bos = llm.vocab.piece(llm.vocab.bos).decode()
        with pytest.warns(RuntimeWarning, match=r"it is there twice.*leave it out") as caught:
            llm.create_completion(f"{bos}Hello", max_tokens=1)
        assert caught[0].filename == __file__
        llm.create_completion("Hello", max_tokens=1)


def test_a_model_without_a_template_says_what_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tiny_model("full", chat_template=None)
    with Llama(path, **SMALL) as llm, caplog.at_level("WARNING", "llama_py"):
        for _ in range(2):
            llm.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=1)
    said = [record.getMessage() for record in caplog.records if "template" in record.getMessage()]
    assert len(said) == 1
    assert "ChatML is used" in said[0]


def test_help_shows_the_options_with_defaults_and_meanings() -> None:
    for function, names in {
        Llama.create_chat_completion: ("temperature (number; default: 0.2): ", "tools (list"),
        Llama.create_completion: ("temperature (number; default: 0.8): ", "echo (boolean"),
        Llama.__init__: ("n_ctx (integer, at least 0; default: 0): ", "flash_attn"),
        llama_py.AsyncLlama.create_chat_completion: ("response_format (", "n (integer, 1 to 128"),
    }.items():
        text = inspect.getdoc(function) or ""
        assert all(f"\n    {name}" in text for name in names), text
        assert "](" not in text


def test_what_a_notebook_shows(llm: Llama) -> None:
    assert "cells used" in repr(llm.cache)
    assert (
        repr(LlamaGrammar.from_string('root ::= "a"')) == "LlamaGrammar('root ::= \"a\"', 'root')"
    )
    with llm.create_completion("a", stream=True, max_tokens=1) as stream:
        assert "open" in repr(stream)
    assert "ended" in repr(stream)
    with load() as other:
        pass
    assert repr(other).endswith("closed)")
    assert repr(other.cache) == "ModelCache(closed)"
