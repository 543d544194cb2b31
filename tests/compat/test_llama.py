"""``llama_cpp.Llama``: loading, completions, and going token by token."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llama_py
import llama_py.compat
from llama_py.compat.llama_cpp import (
    Llama,
    LlamaDraftModel,
    LlamaGrammar,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from llama_py.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_py.demo import demo_model_path
from tests.ids import spelled_out
from tests.models import tiny_model

PROMPT = "The sky is"


@pytest.fixture(scope="module")
def every() -> Iterator[Any]:
    model = Llama(demo_model_path(), verbose=False, logits_all=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def oracle() -> Iterator[llama_py.Llama]:
    """A model of llama_py itself, of the same size."""
    with llama_py.Llama(demo_model_path(), n_ctx=1024, n_gpu_layers=0, flash_attn=False) as model:
        yield model


def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    model.reset()
    model.eval(tokens)
    found = []
    for _ in range(count):
        found.append(model.sample(temp=0.0))
        model.eval(found[-1:])
    return found


# ---- loading ---------------------------------------------------------------------------------


def test_unknown_arguments_are_named_and_ignored() -> None:
    with pytest.warns(UserWarning, match="ignores (n_parts|vebose)=") as found:
        model = Llama(demo_model_path(), n_parts=1, vebose=True, verbose=False, vocab_only=True)
    assert [Path(each.filename).name for each in found] == ["test_llama.py"] * 2
    assert model.tokenize(b"a", add_bos=False)


def test_arguments_of_llama_py_are_used() -> None:
    with llama_py.Llama(demo_model_path(), n_ctx=64, n_seq_max=3):
        pass
    model = Llama(demo_model_path(), verbose=False, n_seq_max=3, overflow=llama_py.TrimMessages())
    assert isinstance(model.native.overflow, llama_py.TrimMessages)
    assert model.native.runtime.loaded.context.n_seq_max == 3
    model.close()


def test_the_defaults_are_those_of_llama_cpp_python_unless_others_are_wanted() -> None:
    model = Llama(demo_model_path(), verbose=False)
    assert (model.n_ctx(), model.n_batch, model.context_params.n_ctx) == (512, 512, 512)
    model.close()
    llama_py.compat.install(defaults="llama_py")
    try:
        other = Llama(demo_model_path())
        assert other.n_ctx() == llama_py.Llama(demo_model_path()).n_ctx() > 512
        other.close()
    finally:
        llama_py.compat.install()
        llama_py.compat.uninstall()


@pytest.mark.parametrize(
    "given",
    [
        {"n_threads": None},
        {"n_threads": 0, "n_threads_batch": 0},
        {"rope_scaling_type": None},
        {"tensor_split": None, "kv_overrides": None, "lora_path": None},
        {"type_k": None, "type_v": None, "swa_full": None, "op_offload": None},
        {"n_batch": 1},
        {"n_ctx": 64, "n_batch": 4096, "n_ubatch": 4096},
        {"n_gpu_layers": -1},
        {"n_ctx": 0},
        {"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=2)},
    ],
    ids=spelled_out,
)
def test_values_that_llama_cpp_python_takes(given: dict[str, Any]) -> None:
    model = Llama(demo_model_path(), verbose=False, **given)
    assert model(PROMPT, max_tokens=2, temperature=0)["usage"]["completion_tokens"] == 2
    model.close()


def test_a_missing_file_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^Model path does not exist: nowhere\.gguf$"):
        Llama("nowhere.gguf")


def test_a_context_that_cannot_be_made_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Failed to create llama_context"):
        Llama(demo_model_path(), verbose=False, n_ctx=2**31 - 1)


def test_pickling_loads_it_again(llm: Any) -> None:
    other = pickle.loads(pickle.dumps(llm))
    assert other.n_ctx() == llm.n_ctx()
    assert (
        other(PROMPT, max_tokens=4, temperature=0)["choices"]
        == (llm(PROMPT, max_tokens=4, temperature=0)["choices"])
    )
    other.close()
    other.close()


def test_it_is_freed_without_the_garbage_collector() -> None:
    model = Llama(demo_model_path(), verbose=False)
    model(PROMPT, max_tokens=1)
    kept = weakref.ref(model.native), weakref.ref(model)
    _ = model._ctx, model._model, model.tokenizer(), model.context_params
    del _
    gc.disable()
    try:
        del model
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


def test_what_only_llama_py_has_can_be_called(llm: Any) -> None:
    session = llm.chat_session()
    assert session.send("What is 2 + 3?", temperature=0)
    assert llm.score("2 + 3 =", [" 5"])[0].logprob < 0
    with pytest.raises(AttributeError):
        _ = llm.nothing


# ---- completions -----------------------------------------------------------------------------


def test_a_completion_has_the_members_of_llama_cpp_python(llm: Any, oracle: Any) -> None:
    found = llm(PROMPT, max_tokens=5, temperature=0)
    assert set(found) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(found["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    wanted = oracle.create_completion(PROMPT, max_tokens=5, temperature=0)
    assert found["choices"] == wanted["choices"]


def test_arguments_may_be_given_by_position(llm: Any) -> None:
    named = llm.create_completion(PROMPT, suffix=None, max_tokens=3, temperature=0.0)
    assert llm(PROMPT, None, 3, 0.0)["choices"] == named["choices"]
    by_position = llm(
        PROMPT, None, 3, 0.0, 0.95, 0.05, 1.0, None, True, ["violet"], 0.0, 0.0, 1.0, 40, False, 7
    )
    assert by_position["choices"][0]["text"].startswith(PROMPT)


def test_streams_are_generators_of_the_same_text(llm: Any) -> None:
    whole = llm(PROMPT, max_tokens=6, temperature=0)["choices"][0]
    chunks = list(llm(PROMPT, max_tokens=6, temperature=0, stream=True))
    assert "".join(each["choices"][0]["text"] for each in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert all(set(each) == {"id", "object", "created", "model", "choices"} for each in chunks)
    left = llm(PROMPT, max_tokens=500, stream=True)
    next(left)
    left.close()
    assert not llm.native.runtime.loaded.engine.requests.running


@pytest.mark.parametrize(
    "given",
    [
        {"stop": None},
        {"stop": [""]},
        {"stop": ""},
        {"max_tokens": 4.0},
        {"max_tokens": np.int64(4)},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 0},
        {"repeat_penalty": 0},
        {"frequency_penalty": 3},
        {"presence_penalty": -3.0},
        {"logprobs": True},
        {"logit_bias": {"5": float("inf")}},
        {"tfs_z": 0.5},
        {"seed": None},
        {"suffix": ""},
        {"temperature": -1.0},
        {"logits_processor": None, "stopping_criteria": None, "grammar": None},
        {"logits_processor": LogitsProcessorList()},
    ],
    ids=spelled_out,
)
def test_odd_values_of_calls_are_taken(llm: Any, given: dict[str, Any]) -> None:
    found = llm(PROMPT, **{"max_tokens": 4, "temperature": 0, **given})
    assert 1 <= found["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_prompts_may_be_bytes_or_any_tokens(llm: Any, kind: Any) -> None:
    wanted = llm(PROMPT, max_tokens=3, temperature=0)["choices"]
    assert llm(PROMPT.encode(), max_tokens=3, temperature=0)["choices"] == wanted
    tokens = kind(llm.tokenize(PROMPT.encode()))
    assert llm(tokens, max_tokens=3, temperature=0)["choices"] == wanted


def test_a_prompt_that_is_too_long_says_so_in_the_known_words(llm: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^Requested tokens \(\d+\) exceed context window of 1024$"
    ):
        llm("a " * 3000)
    with pytest.raises(ValueError, match="exceed context window of 1024"):
        list(llm("a " * 3000, stream=True))


def test_unknown_arguments_of_a_call_are_type_errors(llm: Any) -> None:
    with pytest.raises(TypeError):
        llm(PROMPT, nonsense=1)


def test_processors_criteria_and_grammars(llm: Any) -> None:
    seen: list[int] = []

    def watch(tokens: Any, row: Any) -> Any:
        seen.append(len(tokens))
        return row

    found = llm(
        PROMPT,
        max_tokens=20,
        temperature=0,
        logits_processor=LogitsProcessorList([watch]),
        stopping_criteria=StoppingCriteriaList([lambda tokens, row: len(tokens) >= 6]),
    )
    assert seen[0] == found["usage"]["prompt_tokens"]
    assert found["usage"]["total_tokens"] == 6
    assert found["choices"][0]["finish_reason"] == "stop"
    word = LlamaGrammar.from_string('root ::= "green"')
    assert llm(PROMPT, grammar=word)["choices"][0]["text"] == "green"
    schema = LlamaGrammar.from_json_schema('{"type": "integer", "maximum": 9, "minimum": 1}')
    assert 1 <= int(llm(PROMPT, grammar=schema, temperature=0)["choices"][0]["text"]) <= 9
    few = MinTokensLogitsProcessor(30, llm.token_eos())
    assert llm(PROMPT, max_tokens=30, logits_processor=few)["usage"]["completion_tokens"] == 30


def test_logprobs_do_not_need_logits_all(llm: Any) -> None:
    found = llm(PROMPT, max_tokens=2, temperature=0, logprobs=3, echo=True)["choices"][0]
    assert len(found["logprobs"]["tokens"]) == len(found["logprobs"]["top_logprobs"])
    assert found["logprobs"]["token_logprobs"][0] is None


def test_embeddings(llm: Any) -> None:
    model = Llama(demo_model_path(), verbose=False, embedding=True, pooling_type=1)
    one = model.embed("What is 2 + 3?", normalize=True)
    assert len(one) == model.n_embd()
    assert abs(sum(value * value for value in one) - 1) < 1e-4
    several, count = model.embed(["a", "b c"], return_count=True)
    assert len(several) == 2
    assert count == sum(len(model.tokenize(each)) for each in (b"a", b"b c"))
    found = model.create_embedding(["a", "b c"], model="name")
    assert [each["index"] for each in found["data"]] == [0, 1]
    assert found["data"][0]["embedding"] == pytest.approx(several[0], rel=1e-3, abs=1e-4)
    assert (found["model"], found["usage"]["total_tokens"]) == ("name", count)
    assert model.pooling_type() == 1
    model.close()


def test_embeddings_have_to_be_asked_for(llm: Any) -> None:
    with pytest.raises(RuntimeError, match="must be created with embedding=True"):
        llm.embed("a")
    with pytest.raises(RuntimeError, match="must be created with embedding=True"):
        llm.create_embedding(["a"])


def test_a_draft_model_of_ones_own_is_asked_and_changes_no_text(llm: Any) -> None:
    asked: list[int] = []

    class Again(LlamaDraftModel):  # type: ignore[misc]
        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            asked.append(len(input_ids))
            return input_ids[:2]

    model = Llama(demo_model_path(), verbose=False, draft_model=Again())
    assert isinstance(model.draft_model, Again)
    wanted = llm(PROMPT, max_tokens=6, temperature=0)["choices"]
    assert model(PROMPT, max_tokens=6, temperature=0)["choices"] == wanted
    assert asked
    model.close()


# ---- token by token --------------------------------------------------------------------------


def test_generate_shows_where_it_is(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    wanted = greedy(llm, tokens, 5)
    found: list[int] = []
    llm.reset()
    for token in llm.generate(tokens, temp=0.0):
        assert llm.n_tokens == len(tokens) + len(found)
        assert llm.input_ids[: llm.n_tokens].tolist() == tokens + found
        assert llm._input_ids.tolist() == list(llm.eval_tokens) == tokens + found
        found.append(token)
        if len(found) == 5:
            break
    assert found == wanted


def test_generate_takes_criteria_by_function_and_tokens_by_send(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    stop = lambda ids, row: len(ids) >= len(tokens) + 3  # noqa: E731
    assert len(list(llm.generate(tokens, temp=0.0, stopping_criteria=stop))) == 3
    more = llm.tokenize(b" violet", add_bos=False)
    source = llm.generate(tokens, temp=0.0)
    first = next(source)
    after = source.send(more)
    source.close()
    assert after == greedy(llm, [*tokens, first, *more], 1)[0]


def test_scores_of_every_token_with_logits_all(every: Any) -> None:
    tokens = every.tokenize(PROMPT.encode())
    every.eval(tokens)
    rows = every.scores[: every.n_tokens].copy()
    assert rows.shape == (len(tokens), every.n_vocab())
    source = every.generate(tokens, temp=0.0)
    found = [next(source) for _ in range(4)]
    assert every.n_tokens == len(tokens) + 3
    best = every.scores[: every.n_tokens].argmax(axis=1)
    assert best[len(tokens) - 1 :].tolist() == found
    source.close()
    assert len(every.eval_logits) == every.n_tokens
    assert every.logits_to_logprobs(every._scores).shape == every._scores.shape


def test_completions_leave_their_tokens(llm: Any) -> None:
    found = llm(PROMPT, max_tokens=4, temperature=0)
    assert llm.n_tokens == found["usage"]["total_tokens"] - 1
    text = llm.detokenize(llm.input_ids[: llm.n_tokens].tolist()).decode()
    assert (PROMPT + found["choices"][0]["text"]).startswith(text)


def test_n_tokens_and_input_ids_may_be_set(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    first, second = greedy(llm, tokens, 2)
    llm.n_tokens = len(tokens)
    assert llm.sample(temp=0.0) == first
    ids = np.zeros(llm.n_ctx(), np.intc)
    ids[: len(tokens) + 1] = [*tokens, first]
    llm.input_ids, llm.n_tokens = ids, len(tokens) + 1
    assert llm.sample(temp=0.0) == second
    llm.reset()
    with pytest.raises(AssertionError):
        llm.sample()


def test_reset_keeps_what_can_be_reused(llm: Any) -> None:
    text = "One two three four five six seven eight nine ten eleven twelve"
    llm(text, max_tokens=1)
    llm.reset()
    assert llm.n_tokens == 0
    again = llm(text, max_tokens=1)
    assert again.cache["reused"] > 5


def test_states_go_back(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    first = greedy(llm, tokens, 1)[0]
    llm.n_tokens = len(tokens)
    llm.sample()
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert state.n_tokens == len(tokens)
    assert state.input_ids[: state.n_tokens].tolist() == tokens
    assert len(state.llama_state) <= state.llama_state_size
    llm.reset()
    llm.load_state(state)
    assert llm.n_tokens == len(tokens)
    assert llm.sample(temp=0.0) == first
    state.native = None
    with pytest.raises(RuntimeError, match="Failed to set llama state data"):
        llm.load_state(state)


def test_a_state_before_any_call_is_one_of_no_tokens(llm: Any) -> None:
    llm.reset()
    llm.set_seed(1337)
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert (state.n_tokens, state.seed) == (0, 1337)
    drawn = [llm(PROMPT, max_tokens=6, temperature=2.0)["choices"][0]["text"] for _ in "ab"]
    llm.load_state(state)
    assert llm.n_tokens == 0
    assert llm(PROMPT, max_tokens=6, temperature=2.0)["choices"][0]["text"] == drawn[0]


def test_after_load_state_only_the_state_is_reused(llm: Any) -> None:
    """Rows of other batches differ a little, and the same seed would draw another reply."""
    prompt = "The sky is blue and the grass is green, and what of the sea?"
    llm.reset()
    llm.eval(llm.tokenize(b"The sky is blue"))
    state = llm.save_state()
    first, again = (llm.create_completion(prompt, max_tokens=2, temperature=0.0) for _ in "ab")
    assert again.cache["reused"] > first.cache["reused"] == state.n_tokens
    llm.load_state(state)
    third = llm.create_completion(prompt, max_tokens=2, temperature=0.0)
    assert third.cache["reused"] == first.cache["reused"]
    assert third["choices"] == first["choices"]


def test_a_state_that_does_not_fit_leaves_everything_as_it_was(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    llm.reset()
    llm.eval(tokens)
    first = llm.sample(temp=0.0)
    state = llm.save_state()
    state.native = replace(
        state.native, stored=replace(state.native.stored, fingerprint="of another model")
    )
    with pytest.raises(RuntimeError, match="another model"):
        llm.load_state(state)
    assert llm.n_tokens == len(tokens)
    assert llm.sample(temp=0.0) == first


def test_a_seed_draws_with_a_grammar_what_llama_cpps_samplers_draw(llm: Any) -> None:
    """As in llama-cpp-python, the grammar masks the row before anything is drawn."""
    grammar = LlamaGrammar.from_string("root ::= [a-z0-9]+")
    tokens = llm.tokenize(PROMPT.encode())
    settings = {"top_k": 50, "top_p": 0.9, "temp": 1.3}

    for seed in range(8):
        llm.set_seed(seed)
        own = [*islice(llm.generate(tokens, grammar=grammar, **settings), 4)]
        llm.reset()
        llm.set_seed(seed)
        llm.eval(tokens)
        llm._sampler = llm._init_sampler(grammar=grammar, **settings)
        for token in own:
            assert llm.sample() == token
            llm.eval([token])
        llm._sampler = None


def test_a_sampler_of_llama_cpp_can_be_put_in(llm: Any) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    first = greedy(llm, tokens, 1)[0]
    llm.reset()
    llm.eval(tokens)
    llm._sampler = llm._init_sampler(temp=0.0)
    assert llm.sample() == first
    ramp = LogitsProcessorList([lambda ids, row: np.arange(len(row), dtype=np.single)])
    llm._sampler = llm._init_sampler(temp=0.0, logits_processor=ramp)
    assert llm.sample() == llm.n_vocab() - 1


# ---- tokenizers ------------------------------------------------------------------------------


class Backwards:
    """A tokenizer that turns every text around."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> Any:
        return self.inner.tokenize(text[::-1], add_bos, special)

    def detokenize(self, tokens: Any, prev_tokens: Any = None, special: bool = False) -> Any:
        return self.inner.detokenize(tokens, special=special)[::-1]


def test_tokenizers(llm: Any) -> None:
    tokenizer = llm.tokenizer()
    tokens = tokenizer.encode("Hello<|im_end|>")
    assert tokens == llm.tokenize(b"Hello<|im_end|>", special=True)
    assert tokenizer.decode(tokens) == "Hello"
    assert llm.detokenize(tokens, special=True).endswith(b"<|im_end|>")
    assert type(llm.tokenizer_).from_ggml_file(demo_model_path()).encode("Hello") == (
        tokenizer.encode("Hello")
    )
    own = Llama(demo_model_path(), verbose=False, vocab_only=True, tokenizer=Backwards(tokenizer))
    assert own.tokenize(b"olleH") == tokenizer.encode("Hello")
    assert own.detokenize(own.tokenize(b"abc")) == b"abc"


def test_paths_may_be_paths() -> None:
    assert Llama(Path(demo_model_path()), vocab_only=True, verbose=False).n_vocab() == 1536


def test_it_says_what_kind_of_memory_it_has(llm: Any) -> None:
    from llama_py.compat.llama_cpp import Llama

    assert (llm._is_recurrent, llm._is_hybrid) == (False, False)
    for kind, facts in {"recurrent": (True, False), "hybrid": (False, True)}.items():
        model = Llama(str(tiny_model(kind)), n_ctx=64, verbose=False)
        assert (model._is_recurrent, model._is_hybrid) == facts
        model.close()


def test_a_vocabulary_has_a_context_too() -> None:
    from llama_py.compat.llama_cpp import Llama

    model = Llama(demo_model_path(), vocab_only=True, verbose=False)
    assert model._ctx.ctx is not None
    assert model.tokenize(b"Hello")
    model.close()


def test_calls_after_a_seed_differ_and_come_again(llm: Any) -> None:
    """Each call without a seed draws one from that of the model, as llama-cpp-python does."""

    def replies() -> list[str]:
        options = {"max_tokens": 12, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        texts = [llm.create_completion("the", **options) for _ in range(3)]
        chat = [{"role": "user", "content": "Hello"}]
        texts.append(llm.create_chat_completion(chat, temperature=1.5, max_tokens=8))
        return [str(each["choices"][0]) for each in texts]

    llm.set_seed(7)
    state_of_seed = llm._seed
    first = replies()
    assert len({*first}) == len(first)
    assert llm._seed != state_of_seed
    llm.set_seed(7)
    assert replies() == first
    llm.set_seed(0xFFFFFFFF)
    assert replies() != replies()


def test_a_load_state_of_ones_own_is_called_on_a_hit() -> None:
    from llama_py.compat.llama_cpp import Llama, LlamaRAMCache

    def load() -> Any:
        return Llama(demo_model_path(), n_ctx=128, verbose=False)

    cache, writer, reader = LlamaRAMCache(), load(), load()
    writer.set_cache(cache)
    expected = writer.create_completion("What is 2 +", max_tokens=4, temperature=0.0)
    reader.set_cache(cache)
    loaded: list[Any] = []
    own = reader.load_state

    def load_state(state: Any) -> None:
        loaded.append(state)
        own(state)

    reader.load_state = load_state
    actual = reader.create_completion("What is 2 +", max_tokens=4, temperature=0.0)
    assert len(loaded) == 1
    assert actual["choices"][0]["text"] == expected["choices"][0]["text"]
    writer.close()
    reader.close()


def test_parameters_take_what_older_versions_had() -> None:
    from llama_py.compat.llama_cpp import llama_cpp as C

    for make in (C.llama_context_default_params, C.llama_model_default_params):
        params = make()
        params.logits_all = True
        assert params.logits_all
    assert isinstance(C.llama_context_default_params(), C.llama_context_params)


def test_objects_of_a_schema_are_closed() -> None:
    from llama_py.compat.llama_cpp import LlamaGrammar

    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"a": inner, "open": {**inner, "additionalProperties": True}},
        "$defs": {"c": inner},
    }
    found = LlamaGrammar.from_json_schema(json.dumps(schema)).schema
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False
    assert found["properties"]["open"]["additionalProperties"] is True
    assert found["$defs"]["c"]["additionalProperties"] is False
    both = {"allOf": [{"$ref": "#/$defs/c"}, {"properties": {"a": {"type": "string"}}}]}
    merged = LlamaGrammar.from_json_schema(json.dumps({**both, "$defs": {"c": inner}})).schema
    assert [*merged["properties"]] == merged["required"] == ["b", "a"]
    assert merged["additionalProperties"] is False


@pytest.mark.parametrize(
    ("part", "dropped"),
    [
        ({"type": "string", "format": "email"}, "format"),
        ({"type": ["string", "null"], "format": "uri"}, "format"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "maximum, minimum"),
        ({"type": "integer", "multipleOf": 5}, "multipleOf"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, "maxLength"),
        ({"type": "string", "enum": ["a", None]}, "type"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ],
    ids=str,
)
def test_keywords_that_llama_cpp_python_passes_over_are_named_once(
    part: dict[str, Any], dropped: str
) -> None:
    from llama_py.compat.llama_cpp import LlamaGrammar

    schema = {"type": "object", "properties": {"x": part, "y": part}}
    with pytest.warns(UserWarning, match=f"does not enforce {dropped}, as") as found:
        assert "root ::=" in LlamaGrammar.from_json_schema(json.dumps(schema)).grammar
    assert [Path(each.filename).name for each in found] == ["test_llama.py"]


@pytest.mark.parametrize("part", [{"type": "string", "pattern": "[a-z]"}, {"not": {"const": 1}}])
def test_schemas_that_llama_cpp_python_refuses_are_refused(part: dict[str, Any]) -> None:
    from llama_py.compat.llama_cpp import LlamaGrammar
    from llama_py.errors import GrammarError

    with pytest.raises(GrammarError):
        LlamaGrammar.from_json_schema(json.dumps({"type": "object", "properties": {"x": part}}))


def test_the_format_of_a_tokenizer_config_is_that_of_llama_cpp_python() -> None:
    from llama_py.compat.llama_cpp import llama_chat_format

    template = (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
        "{{ m['content'] }} [/INST]{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
    )
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    make = llama_chat_format.hf_tokenizer_config_to_chat_formatter
    messages = [{"role": "user", "content": "Hi"}]
    made = make(config)(messages=messages)
    assert (made.prompt, made.stop) == ("<s>[INST] Hi [/INST]</s>", ["</s>", "<s>"])
    assert make(config, add_generation_prompt=False)(messages=messages).prompt.endswith("[/INST]")
