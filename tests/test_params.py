"""Options are checked when they are made, and say which one is wrong and what is allowed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_py import demo_model_path
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.errors import LlamaError, ParameterError, ParameterTypeError
from llama_py.params import (
    SAMPLER_NAMES,
    ContextParams,
    GenerationParams,
    ModelParams,
    SamplingParams,
)

CLASSES: list[type[Any]] = [ModelParams, ContextParams, SamplingParams, GenerationParams]


@pytest.mark.parametrize("kind", CLASSES)
def test_defaults_are_allowed_and_nothing_can_be_changed(kind: type[Any]) -> None:
    params = kind()
    name = dataclasses.fields(params)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(params, name, 1)
    assert params == kind()
    with pytest.raises(TypeError):
        kind(no_such_option=1)


#: class, field, values out of range
OUT_OF_RANGE: list[tuple[type[Any], str, list[Any]]] = [
    (ModelParams, "n_gpu_layers", [-2, 2**31]),
    (ModelParams, "split_mode", [-1, 4]),
    (ModelParams, "main_gpu", [-1]),
    (ModelParams, "tensor_split", [(1.0, -1.0), (math.nan,)]),
    (ModelParams, "kv_overrides", [{"a": 2**63}, {"a": "x" * 128}, {"k" * 128: 1}]),
    (ContextParams, "n_ctx", [-1, 2**31]),
    (ContextParams, "n_batch", [0, -1, 2**31]),
    (ContextParams, "n_ubatch", [0]),
    (ContextParams, "n_seq_max", [0, 257]),
    (ContextParams, "n_threads", [0, 513]),
    (ContextParams, "n_threads_batch", [-1]),
    (ContextParams, "rope_scaling_type", [-2, 4]),
    (ContextParams, "pooling_type", [-2, 5]),
    (ContextParams, "attention_type", [-2, 2]),
    (ContextParams, "rope_freq_base", [-1.0, math.nan, math.inf]),
    (ContextParams, "yarn_ext_factor", [math.inf]),
    (ContextParams, "yarn_orig_ctx", [-1]),
    (ContextParams, "type_k", [-1, 4, 10, 999]),
    (ContextParams, "type_v", [999]),
    (SamplingParams, "temperature", [math.nan, math.inf]),
    (SamplingParams, "top_p", [-0.1, 1.1, math.nan]),
    (SamplingParams, "min_p", [-0.1, 1.1]),
    (SamplingParams, "typical_p", [2]),
    (SamplingParams, "xtc_probability", [-1, 2]),
    (SamplingParams, "repeat_penalty", [0, -1.0]),
    (SamplingParams, "frequency_penalty", [-2.1, 2.1]),
    (SamplingParams, "presence_penalty", [-3, 3]),
    (SamplingParams, "penalty_last_n", [-2]),
    (SamplingParams, "dry_multiplier", [-1]),
    (SamplingParams, "adaptive_decay", [1.0]),
    (SamplingParams, "mirostat", [-1, 3]),
    (SamplingParams, "seed", [-(2**40), 2**64]),
    (SamplingParams, "min_tokens", [-1]),
    (SamplingParams, "samplers", [("top_q",)]),
    (SamplingParams, "logit_bias", [{-1: 1.0}, {1: math.nan}]),
    (GenerationParams, "max_tokens", [-1]),
    (GenerationParams, "logprobs", [-1]),
    (GenerationParams, "timeout", [-0.1, math.nan]),
    (GenerationParams, "stop", [("",)]),
]


@pytest.mark.parametrize(("kind", "name", "values"), OUT_OF_RANGE)
def test_out_of_range(kind: type[Any], name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ParameterError, match=name) as caught:
            kind(**{name: value})
        assert isinstance(caught.value, (LlamaError, ValueError))


WRONG_TYPE: list[tuple[type[Any], str, list[Any]]] = [
    (ModelParams, "n_gpu_layers", ["all", 1.0, True, None]),
    (ModelParams, "vocab_only", [1, "yes", None]),
    (ModelParams, "use_mmap", [0]),
    (ModelParams, "tensor_split", [("a",)]),
    (ModelParams, "kv_overrides", [[1], {"a": None}, {"a": [1]}]),
    (ContextParams, "n_ctx", ["1", 1.5, False]),
    (ContextParams, "flash_attn", [1, 0.5]),
    (ContextParams, "swa_full", [None, 1]),
    (ContextParams, "kv_unified", ["no"]),
    (ContextParams, "type_k", [b"q8_0", 8.0]),
    (SamplingParams, "temperature", ["hot", None, True]),
    (SamplingParams, "top_k", [1.5, "1"]),
    (GenerationParams, "max_tokens", ["1", 1.0]),
    (GenerationParams, "stop", [(b"x",), (1,)]),
]


@pytest.mark.parametrize(("kind", "name", "values"), WRONG_TYPE)
def test_wrong_type(kind: type[Any], name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ParameterTypeError, match=name) as caught:
            kind(**{name: value})
        assert isinstance(caught.value, TypeError)


def test_the_message_names_the_value_and_the_range() -> None:
    with pytest.raises(ParameterError, match=r"^top_p=1\.5 is out of range: allowed is 0\.0 to 1"):
        SamplingParams(top_p=1.5)
    with pytest.raises(ParameterError, match=r"^n_ctx must be an integer, not str \('7'\)$"):
        ContextParams(n_ctx="7")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"type_k=4: .* 'q8_0' \(8\)"):
        ContextParams(type_k=4)


def test_numpy_numbers_are_numbers() -> None:
    assert SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3)).top_k == 3
    assert ContextParams(n_ctx=np.int32(64), swa_full=np.bool_(True)).n_ctx == 64  # type: ignore[arg-type]


#: Step -> options with which it alone decides: only the likeliest token can come, or it never does.
STEPS: dict[str, tuple[dict[str, Any], bool]] = {
    "penalties": ({"repeat_penalty": 1e6}, False),
    "dry": ({"dry_multiplier": 1e6, "dry_penalty_last_n": 64}, False),
    "top_n_sigma": ({"top_n_sigma": 0.01}, True),
    "top_k": ({"top_k": 1}, True),
    "typical_p": ({"typical_p": 0.01}, False),
    "top_p": ({"top_p": 0.1}, True),
    "min_p": ({"min_p": 0.9}, True),
    "xtc": ({"xtc_probability": 1.0, "xtc_threshold": 0.05}, False),
    "temperature": ({"temperature": 1e-3}, True),
}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(demo_model_path(), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.mark.parametrize("name", SAMPLER_NAMES)
def test_every_sampler_can_be_named(vocab: Vocab, name: str) -> None:
    """As the only step it does what it is for, and without it that does not happen."""
    options, only = STEPS[name]
    row = np.full(vocab.n_tokens, -30, np.float32)
    row[500:504] = (9.0, 8.8, 8.7, 8.6)  # token 500 is the likeliest, and the others come often

    def share_of_the_likeliest(samplers: tuple[str, ...]) -> float:
        history = [*[501, 502, 500] * 3, 501, 502] if name == "dry" else [500]  # repeats 500
        drawn = [
            Sampler(vocab, SamplingParams(**options, seed=seed, samplers=samplers), history).sample(
                row.copy()
            )
            for seed in range(60)
        ]
        return drawn.count(500) / len(drawn)

    with_it = share_of_the_likeliest((name,))
    assert with_it == (1.0 if only else 0.0)
    other = "min_p" if name != "min_p" else "top_p"
    assert 0.1 < share_of_the_likeliest((other,)) < 0.6


@pytest.mark.parametrize(
    ("options", "greedy", "penalises"),
    [
        ({}, False, False),
        ({"temperature": 0}, True, False),
        ({"temperature": -1}, True, False),
        ({"temperature": 0, "mirostat": 2}, False, False),
        ({"repeat_penalty": 1.1}, False, True),
        ({"presence_penalty": -1, "temperature": 0}, True, True),
        ({"repeat_penalty": 1.1, "penalty_last_n": 0}, False, False),
    ],
)
def test_what_parameters_mean(options: dict[str, Any], greedy: bool, penalises: bool) -> None:
    params = SamplingParams(**options)
    assert (params.greedy, params.penalises) == (greedy, penalises)
