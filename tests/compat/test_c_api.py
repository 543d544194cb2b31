"""``llama_cpp.llama_cpp``: the C API with integers for pointers, and ``_internals`` on it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from llama_py.compat.llama_cpp import _internals, mtmd_cpp
from llama_py.compat.llama_cpp import llama_cpp as C
from llama_py.demo import demo_model_path


def test_pointers_are_integers_and_null_is_none(llm: Any) -> None:
    assert isinstance(llm.model, int)
    assert isinstance(llm.ctx, int)
    assert C.llama_get_model(llm.ctx) == llm.model
    assert C.llama_model_get_vocab(llm.model) == llm._model.vocab
    assert C.llama_model_load_from_file(b"nowhere.gguf", C.llama_model_default_params()) is None
    assert C.llama_model_p(5) == 5
    assert C.llama_model_p_ctypes is ctypes.c_void_p


def test_deprecated_names_do_what_the_new_ones_do(llm: Any) -> None:
    vocab, token = llm._model.vocab, llm.token_eos()
    pairs = [
        ("llama_token_get_text", "llama_vocab_get_text"),
        ("llama_token_get_attr", "llama_vocab_get_attr"),
        ("llama_token_is_eog", "llama_vocab_is_eog"),
        ("llama_token_is_control", "llama_vocab_is_control"),
    ]
    for old, new in pairs:
        assert getattr(C, old)(vocab, token) == getattr(C, new)(vocab, token), old
    assert C.llama_token_eos(vocab) == token
    assert C.llama_n_vocab(vocab) == llm.n_vocab()
    assert C.llama_n_embd(llm.model) == llm.n_embd()
    assert C.llama_get_state_size(llm.ctx) == C.llama_state_get_size(llm.ctx) > 0


def test_helpers_of_the_module(llm: Any) -> None:
    address = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value
    assert isinstance(address, int)
    assert C.llama_max_devices() == C.LLAMA_MAX_DEVICES
    assert (C._base_path / "x").parent.is_dir()

    @C.ctypes_function("llama_vocab_n_tokens", [C.llama_vocab_p_ctypes], ctypes.c_int32)
    def count(vocab: int, /) -> Any: ...

    assert count(llm._model.vocab) == llm.n_vocab()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = C.nothing


def test_overrides_have_their_union_under_its_name() -> None:
    overrides = (C.llama_model_kv_override * 2)()
    overrides[0].key = b"general.name"
    overrides[0].tag = C.LLAMA_KV_OVERRIDE_TYPE_INT
    overrides[0].value.val_i64 = 7
    params = C.llama_model_default_params()
    params.kv_overrides = overrides
    assert params.kv_overrides[0].val_i64 == 7
    params.vocab_only = True
    overrides[0].key = b"tokenizer.ggml.eos_token_id"
    model = C.llama_model_load_from_file(demo_model_path().encode(), params)
    assert C.llama_vocab_eos(C.llama_model_get_vocab(model)) == 7
    C.llama_model_free(model)


def test_a_whole_program_on_the_c_api() -> None:
    """The low-level example of llama-cpp-python: load, tokenize, decode, sample, free."""
    model = C.llama_load_model_from_file(demo_model_path().encode(), C.llama_model_default_params())
    params = C.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
    ctx = C.llama_new_context_with_model(model, params)
    vocab = C.llama_model_get_vocab(model)
    tokens = (C.llama_token * 16)()
    count = C.llama_tokenize(vocab, b"The sky is", 10, tokens, 16, True, False)
    batch = C.llama_batch_get_one(tokens, count)
    assert C.llama_decode(ctx, batch) == 0
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    C.llama_sampler_chain_add(chain, C.llama_sampler_init_greedy())
    token = C.llama_sampler_sample(chain, ctx, -1)
    row = np.ctypeslib.as_array(
        C.llama_get_logits_ith(ctx, -1), shape=(C.llama_vocab_n_tokens(vocab),)
    )
    assert token == int(row.argmax())
    buffer = ctypes.create_string_buffer(32)
    size = C.llama_token_to_piece(vocab, C.llama_token(token), buffer, 32, 0, True)
    assert buffer.raw[:size]
    C.llama_sampler_free(chain)
    C.llama_free(ctx)
    C.llama_free_model(model)


def test_internals_load_decode_and_sample(llm: Any) -> None:
    model = _internals.LlamaModel(
        path_model=demo_model_path(), params=_internals.LlamaModel.default_params(), verbose=False
    )
    params = _internals.LlamaContext.default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
    context = _internals.LlamaContext(model=model, params=params, verbose=False)
    tokens = model.tokenize(b"The sky is", add_bos=True, special=False)
    assert tokens == llm.tokenize(b"The sky is")
    assert model.detokenize(tokens) == b"The sky is"
    batch = _internals.LlamaBatch(n_tokens=64, embd=0, n_seq_max=1)
    batch.set_batch(tokens, n_past=0, logits_all=False)
    assert batch.n_tokens() == len(tokens)
    context.decode(batch)
    sampler = _internals.LlamaSampler()
    sampler.add_penalties(model.n_vocab(), 64, 1.0, 0.0, 0.0)
    sampler.add_logit_bias(model.n_vocab(), {7: 1000.0})
    sampler.add_greedy()
    assert sampler.clone().sample(context) == sampler.sample(context) == 7
    assert model.metadata() == llm.metadata
    assert model.n_params() > 0
    for each in (sampler, batch, context, model, model):
        each.close()
    with pytest.raises(ValueError, match="Model path does not exist"):
        _internals.LlamaModel(path_model="nowhere", params=params)
    assert _internals.normalize_embedding([3.0, 4.0]) == [0.6, 0.8]


def test_a_context_used_by_hand_does_not_disturb_later_calls(llm: Any) -> None:
    wanted = llm("The sky is", max_tokens=6, temperature=0)["choices"][0]["text"]
    tokens = llm.tokenize(b"Something else entirely")
    llm._ctx.kv_cache_clear()
    llm._batch.set_batch(tokens, n_past=0, logits_all=True)
    llm._ctx.decode(llm._batch)
    assert llm._ctx.get_logits_ith(len(tokens) - 1)[0] == llm._ctx.get_logits_ith(-1)[0]
    assert llm("The sky is", max_tokens=6, temperature=0)["choices"][0]["text"] == wanted


def test_mtmd_is_bound() -> None:
    assert mtmd_cpp.mtmd_default_marker()
    assert mtmd_cpp.mtmd_context_p_ctypes is ctypes.c_void_p
