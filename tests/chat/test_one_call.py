"""``parallel_tool_calls=False``: one call, whatever the family's way to write them is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from tests.chat import families
from tests.chat.families import TOOLS, USER
from tests.chat.fitting import fits
from tests.chat.openai import chat_request
from tests.models import tiny_model
from tests.steering import Steer, split_tokens

FAMILIES = (
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Bielik-11B-v3.0-Instruct",
    "GLM-4.6",
    "IFM-K2-Horizon",
    "Kimi-K3",
    "MiMo-VL",
    "Reka-Edge",
    "ibm-granite-granite-4.0",
    "inclusionai-ling-3.0-flash",
    "llm-jp-llm-jp-4.1-8b-thinking",
)


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full")) as model:
        yield model.vocab


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_writes_one_call(family: str, choice: str, vocab: Vocab) -> None:
    template = families.load(family)
    one, two = (families.sample(family, kind).text.rstrip() for kind in ("call", "calls"))

    def takes(text: str, parallel: bool) -> bool:
        asked = chat_request(
            USER,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=parallel,
            enable_thinking=False,
        )
        grammar = template.render(asked).grammar
        return any(fits(grammar, text + end, vocab) for end in ("", "\n"))

    assert takes(one, parallel=False)
    assert not takes(two, parallel=False)
    assert takes(one, parallel=True)
    assert takes(two, parallel=True)


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize(("parallel", "count"), [(False, 1), (True, 2), (None, 2)])
def test_the_bundled_model_writes_one_call(choice: str, parallel: bool | None, count: int) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    with Llama(demo_model_path(), n_ctx=2048, n_threads=1) as llm:
        wanted = [*split_tokens(llm.vocab, f"{call}\n{call}", random.Random(0)), llm.token_eos()]
        options: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
        response: Any = llm.create_chat_completion(
            USER,
            tools=TOOLS,
            tool_choice=choice,
            temperature=0,
            max_tokens=len(wanted) + 20,
            logits_processor=[Steer(wanted)],
            **options,
        )
    (reply,) = response["choices"]
    assert len(reply["message"]["tool_calls"]) == count
    assert reply["finish_reason"] == "tool_calls"
