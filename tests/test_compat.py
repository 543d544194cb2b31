"""Code that was written for llama-cpp-python: its small calls, and what it expects of them."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, LlamaRAMCache, StoppingCriteriaList, TrimMessages
from llama_py.errors import (
    LlamaError,
    MissingPackageError,
    ParameterError,
    ParameterTypeError,
    TemplateError,
    TokenizationError,
)
from tests.models import tiny_model
from tests.vocabularies import model_with, vocabulary

CHAT = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), n_ctx=256, n_threads=1, flash_attn=False) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    shared.reset()
    return shared


# -- tokens to text --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama-spm", "phi-3", "gpt-2", "qwen2"])
def real(request: pytest.FixtureRequest) -> Iterator[Llama]:
    """Vocabularies of real models: two of SentencePiece, two of byte pairs."""
    with Llama(vocabulary(request.param), vocab_only=True) as llm:
        yield llm


@pytest.mark.parametrize(
    "text", ["Hello World", " Hello", "  Hello", "", " ", "\n x", "é \U0001f600", "a  b"]
)
def test_detokenizing_gives_the_text_that_was_tokenized(real: Llama, text: str) -> None:
    assert real.detokenize(real.tokenize(text.encode())).decode() == text
    assert real.tokenizer().decode(real.tokenizer().encode(text)) == text


def test_a_space_goes_behind_bos_and_nowhere_else(real: Llama) -> None:
    (hello,) = real.tokenize(b"x Hello", add_bos=False)[-1:]
    assert real.detokenize([hello]) == b" Hello"
    assert real.detokenize([hello, hello]) == b" Hello Hello"
    assert real.detokenize([hello], prev_tokens=[real.token_bos()]) == b" Hello"
    bos = real.token_bos()
    assert real.detokenize([bos, hello, hello]) == b"Hello Hello"
    assert real.detokenize(np.array([bos, hello])) == b"Hello"  # type: ignore[arg-type]
    spelled = real.detokenize([bos], special=True)
    assert real.detokenize([bos, hello], special=True) == spelled + b" Hello"
    assert spelled
    assert real.detokenize([bos]) == real.detokenize([]) == b""
    with pytest.raises(TokenizationError, match="-7"):
        real.detokenize([bos, -7])


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    path = model_with("llama-spm", tmp_path_factory.mktemp("models"))
    with Llama(path, n_ctx=256, n_threads=1) as llm:
        yield llm


def test_a_reply_begins_with_its_space(sentencepiece: Llama) -> None:
    """Only what stands behind BOS loses it: the first word of a reply is one of many."""
    llm = sentencepiece
    (hello,) = llm.tokenize(b"x Hello", add_bos=False)[-1:]
    options: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "logit_bias": {hello: 1000.0}}
    assert llm.create_completion("Say", **options)["choices"][0]["text"] == " Hello Hello"
    chunks = llm.create_completion("Say", stream=True, **options)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " Hello Hello"
    echo = llm.create_completion("Say", echo=True, **options)
    assert echo["choices"][0]["text"] == "Say Hello Hello"
    tokens = llm.generate(llm.tokenize(b"Say"), temperature=0, logit_bias={hello: 1000.0})
    assert b"".join(llm.detokenize([next(tokens)]) for _ in range(2)) == b" Hello Hello"


def test_the_tokenizer_of_a_model(llm: Llama) -> None:
    tokenizer = llm.tokenizer()
    assert tokenizer.tokenize(b"the fox") == llm.tokenize(b"the fox")
    assert tokenizer.tokenize(b"<|im_end|>") == [llm.token_eos()]
    assert len(tokenizer.tokenize(b"<|im_end|>", special=False)) > 1
    assert tokenizer.detokenize([llm.token_eos()], None, True) == b"<|im_end|>"
    assert tokenizer.encode("fox\ud800") == llm.tokenize(b"fox")
    assert tokenizer.decode([*llm.tokenize(b"fox"), llm.token_eos()]) == "fox"


# -- small calls -----------------------------------------------------------------------------------


def test_the_longest_common_beginning() -> None:
    common = Llama.longest_token_prefix
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 3]) == 2
    assert common([], [1]) == common([2], [1]) == 0
    assert common(np.array([1, 2]), [1, 2]) == 2  # type: ignore[arg-type]


def test_logits_to_log_probabilities() -> None:
    rows = np.array([[0.0, 1.0, 2.0], [5.0, 5.0, -np.inf]], np.float32)
    found = Llama.logits_to_logprobs(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.exp(found).sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(found[1], [-np.log(2), -np.log(2), -np.inf], atol=1e-6)
    np.testing.assert_allclose(Llama.logits_to_logprobs([1000.0, 0.0]), [0, -1000])
    np.testing.assert_allclose(Llama.logits_to_logprobs(rows.T, axis=0), found.T)


def test_what_was_evaluated_by_hand() -> None:
    with Llama(str(tiny_model("full")), n_ctx=64, n_threads=1, logits_all=True) as llm:
        assert llm.input_ids.shape == (0,)
        llm.eval([5, 6, 7])
        assert llm.input_ids.dtype == np.intc
        assert llm.input_ids[: llm.n_tokens].tolist() == [5, 6, 7]
        np.testing.assert_array_equal(np.array(llm.eval_logits, np.float32), llm.scores)


def test_only_the_last_logits_without_logits_all(llm: Llama) -> None:
    llm.eval([5, 6, 7])
    assert len(llm.eval_logits) == 1
    np.testing.assert_array_equal(np.array(llm.eval_logits[-1], np.float32), llm.last_logits)


def test_openais_types_need_its_package(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai.types.chat", None)
    with pytest.raises(MissingPackageError, match="pip install openai") as caught:
        llm.create_chat_completion_openai_v1(CHAT)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, LlamaError)


def test_openais_types(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their fields are those of the dictionaries; stands in for the package where it is absent."""

    class Whole(types.SimpleNamespace):
        pass

    class Chunk(types.SimpleNamespace):
        pass

    chat = types.ModuleType("openai.types.chat")
    chat.ChatCompletion, chat.ChatCompletionChunk = Whole, Chunk  # type: ignore[attr-defined]
    for name in ("openai", "openai.types"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "openai.types.chat", chat)
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    expected = llm.create_chat_completion(CHAT, **options)["choices"]
    whole = llm.create_chat_completion_openai_v1(CHAT, **options)
    assert isinstance(whole, Whole)
    assert whole.choices == expected
    stream = llm.create_chat_completion_openai_v1(CHAT, stream=True, **options)
    chunks = [*stream]
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    text = "".join(chunk.choices[0]["delta"].get("content") or "" for chunk in chunks)
    assert text == expected[0]["message"]["content"]
    left = llm.create_chat_completion_openai_v1(CHAT, stream=True, max_tokens=200)
    next(left)
    left.close()
    assert llm.metrics["cancelled"] == 1


def test_openais_types_are_real(llm: Llama) -> None:
    chat = pytest.importorskip("openai.types.chat")
    whole = llm.create_chat_completion_openai_v1(
        CHAT, max_tokens=3, logprobs=True, temperature=0, ignore_eos=True
    )
    assert isinstance(whole, chat.ChatCompletion)
    assert whole.usage.completion_tokens == 3
    for chunk in llm.create_chat_completion_openai_v1(CHAT, max_tokens=3, stream=True):
        assert isinstance(chunk, chat.ChatCompletionChunk)


def test_what_openais_clients_send_is_taken(llm: Llama) -> None:
    sent: Any = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u"}
    plain = llm.create_chat_completion(CHAT, max_tokens=2, temperature=0)
    assert (
        llm.create_chat_completion(CHAT, max_tokens=2, temperature=0, **sent)["choices"]
        == plain["choices"]
    )
    response = llm.create_completion("the", max_tokens=2, ignore_eos=True, **sent)
    assert response["usage"]["completion_tokens"] == 2


# -- generate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["function", "list", "StoppingCriteriaList"])
def test_generate_stops_at_a_criterion(llm: Llama, form: str) -> None:
    def three(tokens: Any, _logits: Any) -> bool:
        return len(tokens) >= 3 + 3

    criteria: Any = {
        "function": three,
        "list": [three],
        "StoppingCriteriaList": StoppingCriteriaList([three]),
    }[form]
    assert len([*llm.generate([5, 6, 7], stopping_criteria=criteria)]) == 3


def test_generate_says_what_is_no_criterion(llm: Llama) -> None:
    with pytest.raises(ParameterTypeError, match="stopping_criteria must be a function"):
        next(llm.generate([5], stopping_criteria=3))  # type: ignore[arg-type]


def test_tokens_can_be_sent_to_generate(llm: Llama) -> None:
    """They stand behind the token that came last, and generation goes on after them."""
    tokens = llm.generate([5, 6, 7], temperature=0)
    first = next(tokens)
    second = next(tokens)
    third = tokens.send([40, 41])
    fourth = next(tokens)
    tokens.close()
    llm.reset()
    expected = [*itertools.islice(llm.generate([5, 6, 7, first, second, 40, 41], temperature=0), 2)]
    assert [third, fourth] == expected
    unsent = [*itertools.islice(llm.generate([5, 6, 7], temperature=0), 4)]
    assert unsent[2:] != expected  # else this shows nothing


def test_what_was_sent_is_reused(llm: Llama) -> None:
    tokens = llm.generate(list(range(20, 60)), temperature=0)
    next(tokens)
    next(tokens)
    evaluated = llm.metrics["evaluated"]
    tokens.send([5, 6])
    assert llm.metrics["evaluated"] - evaluated <= 4
    with pytest.raises(TokenizationError, match="99999"):
        tokens.send([99999])
    with pytest.raises(StopIteration):
        next(tokens)
    assert next(llm.generate([5], temperature=0)) >= 0


def test_a_grammar_takes_no_tokens(llm: Llama) -> None:
    from llama_py import LlamaGrammar

    tokens = llm.generate([5], grammar=LlamaGrammar.from_string('root ::= "a"{8}'))
    next(tokens)
    with pytest.raises(ParameterError, match="grammar"):
        tokens.send([6])


# -- what is set after loading ---------------------------------------------------------------------


def test_the_chat_format_can_be_changed(llm: Llama) -> None:
    own = llm.render_chat(CHAT).prompt
    llm.chat_format = "vicuna"
    try:
        assert "USER: the quick brown fox" in llm.render_chat(CHAT).prompt
        assert llm.chat_format == "vicuna"
        with pytest.raises(ParameterError, match=r"'vicuna-x'; did you mean 'vicuna'"):
            llm.chat_format = "vicuna-x"
        with pytest.raises(ParameterTypeError, match="chat_format must be a name"):
            llm.chat_format = 3  # type: ignore[assignment]
        assert "USER: the quick brown fox" in llm.render_chat(CHAT).prompt
    finally:
        llm.chat_format = None
    assert llm.render_chat(CHAT).prompt == own


def test_what_is_no_cache_is_refused_at_once(llm: Llama) -> None:
    for wrong in (object(), {}, LlamaRAMCache, "cache"):
        with pytest.raises(ParameterTypeError, match="LlamaRAMCache, a LlamaDiskCache or None"):
            llm.set_cache(wrong)  # type: ignore[arg-type]
    assert next(llm.generate([5], temperature=0)) >= 0
    with LlamaRAMCache() as cache:
        llm.set_cache(cache)
        llm.create_completion("the quick brown fox " * 20, max_tokens=1)
        assert len(cache) == 1
        llm.set_cache(None)


# -- rendering -------------------------------------------------------------------------------------


def test_a_conversation_can_be_rendered(llm: Llama) -> None:
    rendered = llm.render_chat(CHAT)
    assert rendered.prompt == (
        "<|im_start|>user\nthe quick brown fox<|im_end|>\n<|im_start|>assistant\n"
    )
    llm.create_chat_completion(CHAT, max_tokens=1)
    tokens = llm.tokenize(rendered.prompt, special=True)
    assert llm.cache_info["evaluated"] == len(tokens)
    schema = {"type": "object", "properties": {}}
    options: Any = {"response_format": {"type": "json_object", "schema": schema}}
    assert llm.render_chat(CHAT, **options).schema == schema
    for wrong in ("hello", [3], []):
        with pytest.raises(ParameterError, match="messages"):
            llm.render_chat(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="did you mean 'temperature'"):
        llm.render_chat(CHAT, temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("policy", [5, "trim", TrimMessages])
def test_what_is_no_overflow_policy(llm: Llama, policy: Any) -> None:
    expected = r"overflow=.*TrimMessages\(\)"
    with pytest.raises(ParameterTypeError, match=expected):
        llm.create_chat_completion(CHAT, overflow=policy)
    with pytest.raises(ParameterTypeError, match=expected):
        llm.chat_session(overflow=policy)
    with pytest.raises(ParameterTypeError, match=expected):
        llm.chat_session().send("a", overflow=policy)
    assert llm.create_chat_completion(CHAT, max_tokens=1, overflow=TrimMessages())["choices"]


# -- before the weights are loaded -----------------------------------------------------------------


def test_a_template_that_does_not_parse_is_told_of_before_loading(tmp_path: Path) -> None:
    loaded: list[float] = []
    reasons = {
        "{{": "line 1: unexpected 'end of template'",
        "a\n{% for x in %}": "line 2: Expected an expression",
        "{% if a %}": "line 1: Unexpected end of template",
        "{{ x )": r"line 1: unexpected '\)'",
    }
    for template, reason in reasons.items():
        with pytest.raises(TemplateError, match=f"chat template does not parse: {reason}"):
            Llama(
                str(tiny_model("full")),
                n_ctx=64,
                chat_template=template,
                progress=lambda done: loaded.append(done),
            )
    wrong: list[dict[str, Any]] = [{"chat_format": "no-such"}, {"n_ctx": -1}, {"n_seq_max": 0}]
    for options in wrong:
        with pytest.raises(ParameterError):
            Llama(
                str(tiny_model("full")),
                **options,
                progress=lambda done: loaded.append(done),
            )
    assert loaded == []


def test_an_empty_path() -> None:
    with pytest.raises(ParameterError, match="model_path is empty"):
        Llama("")


def test_a_model_whose_own_template_does_not_parse() -> None:
    """It can do everything but chat, and a chat says why."""
    with Llama(str(tiny_model("full", chat_template="a\n{{ messages[ }}")), n_ctx=64) as llm:
        for _ in range(2):
            with pytest.raises(TemplateError, match=r"does not parse: line 2: unexpected '}'"):
                llm.create_chat_completion(CHAT)
        assert llm.create_completion([5], max_tokens=1, ignore_eos=True)["choices"]
        llm.chat_format = "vicuna"
        assert llm.create_chat_completion(CHAT, max_tokens=1)["choices"]
