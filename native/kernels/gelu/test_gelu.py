"""GELU in vectors (``gelu.h``)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from llama_py._native.loader import build_info
from tests.native.graphs import Graph

#: No multiple of a vector; values where it is curved, tiny ones, and those far out on both sides.
VALUES = np.concatenate(
    [np.linspace(-12, 12, 1001), [0.0, 1e-30, -1e-30, 40.0, -40.0, 1e4, -1e4, 3e30]]
).astype(np.float32)


def by_ggml(function: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with Graph() as graph:
        tensors = [graph.tensor(x)]
        if function.endswith("_split"):
            tensors.append(graph.tensor(np.full_like(x, 0.5)))
        return graph.compute(getattr(G, function)(graph.context, *tensors), 2, x.shape)


def expected(function: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    if "quick" in function:
        exponent = -1.702 * wide
    else:
        exponent = -2 * np.sqrt(2 / np.pi) * wide * (1 + 0.044715 * wide * wide)
    with np.errstate(over="ignore"):
        value = np.asarray(wide / (1 + np.exp(exponent)))
    return value * 0.5 if function.endswith("_split") else value


@pytest.mark.parametrize(
    "function", ["ggml_gelu", "ggml_gelu_quick", "ggml_geglu_split", "ggml_geglu_quick_split"]
)
def test_gelu_is_that_of_float64(function: str) -> None:
    exact = build_info()["rules"].get("LLAMA_PY_GELU") == "applied"
    values = VALUES if exact else VALUES[np.abs(VALUES) < 100]
    tolerance = 1e-6 if exact else 2e-3
    np.testing.assert_allclose(
        by_ggml(function, values), expected(function, values), rtol=tolerance, atol=tolerance / 10
    )


def test_without_the_rule_it_is_looked_up_in_a_table(llama_cpp: Path) -> None:
    """When this fails, ggml computes it otherwise, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml-cpu" / "vec.h").read_text(encoding="utf-8")
    assert re.findall(r"^#define (GGML_GELU\w*)", text, re.MULTILINE) == [
        "GGML_GELU_FP16",
        "GGML_GELU_QUICK_FP16",
    ]
    for name in ("gelu", "gelu_quick", "geglu", "geglu_quick"):
        bodies = re.findall(rf"inline static void ggml_vec_{name}_f32\(.*?\n}}", text, re.DOTALL)
        table = "ggml_table_gelu_quick_f16" if "quick" in name else "ggml_table_gelu_f16"
        assert f"{table}[t]" in bodies[0]  # what follows is compiled without the macros
