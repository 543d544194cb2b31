"""Agents put system messages anywhere; their prompts stay what they were, whatever the template."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chat import families
from tests.server.serving import demo_settings, serving

#: What the template does with a system message that is not the first.
TEMPLATES = {
    "takes it": None,  # the bundled model's own
    "refuses it": "Apertus-8B-Instruct",
    "drops it": "MiniMax-M1",
    "moves it to the front": "upstage-Solar-Open-100B",
    "has no such role, and lets roles alternate": "google-gemma-2-2b-it",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_turn_reuses_the_prompt_of_the_turn_before(kind: str) -> None:
    name = TEMPLATES[kind]
    options: dict[str, Any] = {"chat_template": families.source(name)} if name else {}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
    ]
    prompts, cached = [], []
    with serving(demo_settings(n_threads=1, **options)) as server, server.openai() as client:
        for number in range(3):
            messages += [
                {"role": "user", "content": f"Say {number}."},
                {"role": "system", "content": f"File {number} was opened."},
            ]
            reply = client.chat.completions.create(
                model="demo", messages=messages, temperature=0, max_tokens=8
            )
            text = reply.choices[0].message.content
            messages.append({"role": "assistant", "content": text})
            prompts.append(reply.usage.prompt_tokens)
            cached.append(reply.usage.prompt_tokens_details.cached_tokens)
        with server.http() as http:
            shown = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    for text in ("Be brief.", "Be kind.", "File 0 was opened.", "File 2 was opened."):
        assert shown.count(text) == 1
    assert cached[1] >= prompts[0]
    assert cached[2] >= prompts[1]
