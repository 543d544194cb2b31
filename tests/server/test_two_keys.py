"""What one key has sent takes another one as long as what nobody has sent.

The processor time of the whole server is read from the kernel, in nanoseconds, around the second
key's request. Each pair is (seen by the other key, seen by nobody), in random order, of things that
take alike. The power of the comparison is stated: the smallest difference that it would see.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import httpx
import pytest

from llama_py import demo_model_path
from tests.adapters import tiny_adapter
from tests.media.encoded import scene
from tests.media.pictures import png, tone, wav
from tests.media.projectors import tiny_projector
from tests.patience import PATIENCE
from tests.server.test_serve import running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/task/*/schedstat")

#: Of the bundled model's embeddings.
WIDTH = 192
PROJECTOR = Path(__file__).parents[1] / "media" / "data" / "mmproj-demo-f16.gguf"
#: Nobody reads the log, so that a line for each request would fill the pipe, and stop the server.
QUIET = ("--log-level", "warning")
KEYS = ("alice-0123456789abcdef", "bob-0123456789abcdefgh")
Body = dict[str, Any]


def _schema(number: int) -> Body:
    names = [f"field_{number}_{each}" for each in range(30)]
    kinds = ("string", "integer", "boolean")
    fields = {name: {"type": kinds[each % 3]} for each, name in enumerate(names)}
    return {"type": "object", "properties": fields, "required": names[:5]}


def _said(number: int, content: Any = None, **options: Any) -> Body:
    text = f"Say {number} words." if content is None else content
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **options}


def _picture(number: int) -> Body:
    data = base64.b64encode(png(scene(number, 320, 240))).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return _said(number, [part, {"type": "text", "text": "?"}])


def _sound(number: int) -> Body:
    data = base64.b64encode(wav(tone(200 + number, 2.0))).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return _said(0, [part, {"type": "text", "text": "?"}])


def _tools(number: int) -> Body:
    function = {"name": f"act_{number}", "description": "Acts.", "parameters": _schema(number)}
    tool = {"type": "function", "function": function}
    return _said(0, tools=[tool], tool_choice="required")


def _grammar(number: int) -> Body:
    words = " | ".join(f'"word {number} {each}"' for each in range(200))
    return _said(0, grammar=f"root ::= ({words})+")


def _prompt(number: int) -> Body:
    return _said(0, f"{number} " + "lorem ipsum " * 60)


KINDS: dict[str, Callable[[int], Body]] = {
    "prompts": _prompt,
    "adapters": _prompt,
    "drafts": lambda number: {**_prompt(number), "max_tokens": 16, "ignore_eos": True},
    "pictures": _picture,
    "sounds": _sound,
    "schemas": lambda number: _said(
        0, response_format={"type": "json_object", "schema": _schema(number)}
    ),
    "tools": _tools,
    "grammars": _grammar,
    "variables": lambda number: _said(0, chat_template_kwargs={"date_string": f"{number} May"}),
}


def _flags(kind: str, folder: Path) -> list[str]:
    """The server's model has this besides."""
    if kind == "adapters":
        return ["--lora", str(tiny_adapter(demo_model_path(), folder / "adapter.gguf"))]
    if kind == "drafts":
        return ["--speculative", "lookup"]
    hears = kind == "sounds"
    return ["--mmproj", str(tiny_projector("gemma4ua", WIDTH) if hears else PROJECTOR)]


def used(pid: int) -> int:
    """Nanoseconds of processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def differences(kind: str, pairs: int, folder: Path) -> list[float]:
    """Milliseconds that what the other key has seen takes more, for each pair."""
    make, found = KINDS[kind], []
    keys = [argument for key in KEYS for argument in ("--api-key", key)]
    with (
        running(demo_model_path(), *_flags(kind, folder), *QUIET, *keys) as server,
        httpx.Client(base_url=server.address, timeout=PATIENCE) as http,
    ):
        pid = server.process.pid

        def ask(key: str, body: Body) -> None:
            head = {"Authorization": f"Bearer {key}"}
            reply = http.post("/v1/chat/completions", json=body, headers=head)
            assert reply.status_code == 200, reply.text

        def cost(body: Body) -> float:
            start = used(pid)
            ask(KEYS[1], body)
            return (used(pid) - start) / 1e6

        rng = random.Random(7)
        for number in range(-4, pairs):
            seen, fresh = make(3 * number + 1_000), make(3 * number + 1_001)
            ask(KEYS[0], seen)
            ask(KEYS[0], make(3 * number + 1_002))
            order = [seen, fresh]
            rng.shuffle(order)
            costs = {json.dumps(each)[:400] + str(each is seen): cost(each) for each in order}
            first, second = costs.values()
            if number >= 0:  # the first ones warm the server up
                found.append(first - second if order[0] is seen else second - first)
    return found


def told(kind: str, found: list[float]) -> tuple[float, float, str]:
    middle, error = mean(found), stdev(found) / len(found) ** 0.5
    said = f"{kind}: {middle:+.3f} ms ± {error:.3f}; {2.8 * error:.3f} ms would be seen"
    return middle, error, said


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_key_has_sent_takes_as_long(kind: str, tmp_path: Path) -> None:
    middle, error, said = told(kind, differences(kind, 200, tmp_path))
    print(said)
    assert abs(middle) < 3.5 * error, said
