"""Models whose positions are a table (gpt2): behind its last row, llama.cpp ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny_model
from tests.patience import PATIENCE

POSITIONS = 64
#: Far more cells than positions, so that only the positions can run out.
PROGRAM = """
import json, sys
from llama_py import ContextOverflowError, Llama
given = json.loads(sys.argv[1])
with Llama(given["path"], n_ctx=512, n_threads=1, flash_attn=False) as llm:
    options = {"max_tokens": 500, "temperature": 0, "ignore_eos": True, **given["options"]}
    found = []
    for count in given["prompts"]:
        try:
            response = llm.create_completion([*range(40, 40 + count)], **options)
        except ContextOverflowError:
            found.append("refused")
            continue
        choices = response["choices"]
        reasons = {choice["finish_reason"] for choice in choices}
        found.append([*reasons, response["usage"]["completion_tokens"] // len(choices)])
    print(json.dumps(found))
"""


def lengths(prompts: list[int], **options: Any) -> Any:
    """How replies to prompts of so many tokens end, and after how many tokens: in a process of its
    own, which a position too many would end."""
    path = str(tiny_model("learned", n_ctx_train=POSITIONS))
    given = json.dumps({"path": path, "prompts": prompts, "options": options})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [{}, {"n": 3}], ids=["one", "three"])
def test_a_reply_ends_at_the_last_position(options: dict[str, Any]) -> None:
    """The last position holds a token; what is sampled from it is the last one of the reply."""
    found = lengths([1, 10, POSITIONS - 1, POSITIONS, POSITIONS + 1], **options)
    assert found == [["length", POSITIONS], ["length", POSITIONS - 9], ["length", 2],
                     ["length", 1], "refused"]  # fmt: skip
