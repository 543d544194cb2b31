"""``check_heads``: whether a model file has next-token heads (MTP) that llama.cpp can compute.

It ends the process if it is asked to compute others.
"""

from __future__ import annotations

from llama_py.errors import ParameterError
from llama_py.gguf.check import GGUFInfo

__all__ = ["check_heads"]

#: Architectures whose heads llama.cpp computes; and of those, the ones with several.
_ONE_HEAD = frozenset(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe glm5-next nemotron_h_moe
    qwen35 qwen35moe qwen3next
    """.split()  # noqa: SIM905
)
_MANY_HEADS = frozenset({"hy_v3", "mimo2", "step35"})


def check_heads(info: GGUFInfo) -> None:
    """Raise where a model has no heads that could be computed.

    Raises:
        ParameterError: with the reason.
    """
    problem = ""
    if not info.n_heads:
        problem = "it has no next-token heads (files are often converted without them)"
    elif info.architecture not in _ONE_HEAD | _MANY_HEADS:
        problem = f"llama.cpp cannot compute the next-token heads of {info.architecture}"
    elif info.n_heads > 1 and info.architecture in _ONE_HEAD:
        problem = f"llama.cpp computes one head of {info.architecture}, and it has {info.n_heads}"
    if problem:
        raise ParameterError(
            f"speculative: {info.path} cannot draft for itself: {problem}; use PromptLookup() or a "
            "DraftModel"
        )
