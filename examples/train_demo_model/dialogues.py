"""Whole dialogues: mixing the skills over several turns, from a seed.

Owns: the order of turns, the system messages, the held-out rule, and the rendering of a
dialogue to the text which the model sees (through the very template in the GGUF file).

Held out: a reply is held out when a hash over everything said before it falls in one of
sixteen classes. Training gives such replies no loss; the evaluation uses only those. So
no evaluated conversation was ever answered in training, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import skills
import tool_skills
from words import phrasings, pool

Json = dict[str, Any]

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8").strip()
SKILLS = pool(
    "greeting about arithmetic repeat reverse recall counting json tool_call tool_answer no_tool"
)
HELD_OUT_CLASSES = 16

_SYSTEM = phrasings(
    "You are a helpful assistant.|You are a helpful assistant.|You are helpful.|Be brief.|"
    "You are a tiny demonstration model.|Answer briefly.|You are a friendly assistant.|"
    "You are a test model.|Answer the user.|You are an AI assistant."
)


@dataclass
class Dialogue:
    """Messages, the tools listed, and for each assistant message the skill it shows."""

    messages: list[Json]
    tools: list[Json]
    labels: list[str] = field(default_factory=list)

    def replies(self) -> Iterator[tuple[str, int]]:
        """Each assistant message: its skill and its place in the messages."""
        places = [at for at, said in enumerate(self.messages) if said["role"] == "assistant"]
        yield from zip(self.labels, places, strict=True)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


_COMPILED = _environment().from_string(TEMPLATE)


def render(messages: list[Json], tools: list[Json], prompt: bool = False) -> str:
    """The text of these messages; with `prompt`, up to where the model has to answer."""
    return _COMPILED.render(messages=messages, tools=tools, add_generation_prompt=prompt)


def reply_text(message: Json) -> str:
    """An assistant message as the model has to write it."""
    rendered = render([message], [])
    return rendered.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")


def is_held_out(dialogue: Dialogue, place: int) -> bool:
    """Whether the reply at this place is for evaluation only."""
    said = [
        {key: value for key, value in message.items() if not key.startswith("tool_call_id")}
        for message in dialogue.messages[:place]
    ]
    key = json.dumps([dialogue.tools, said], sort_keys=True).encode()
    return hashlib.blake2b(key, digest_size=4).digest()[0] % HELD_OUT_CLASSES == 0


class Writer:
    """Writes one dialogue, turn by turn, and keeps what the user has told in it."""

    def __init__(self, rng: random.Random, with_tools: bool) -> None:
        self.rng = rng
        self.tools = tool_skills.some_tools(rng) if with_tools else []
        self.facts: skills.Facts = {}
        self.dialogue = Dialogue([], [tool.definition for tool in self.tools])
        if rng.random() < 0.5:
            self.dialogue.messages.append({"role": "system", "content": rng.choice(_SYSTEM)})

    def add(self, skill: str) -> None:
        """One exchange that shows this skill (`tell` counts as small talk)."""
        if skill == "tell" and len(self.facts) == 3:
            skill = "recall"
        if skill in ("tool_call", "tool_answer"):
            self._add_tool_use()
            return
        while True:
            source = self.rng.choice(list(skills.PLAIN)) if skill == "no_tool" else skill
            if source == "tell" and len(self.facts) == 3:
                continue
            asked, reply = skills.PLAIN[source](self.rng, self.facts)
            if not self._wants_a_tool(asked, reply):
                break
        self.dialogue.messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": reply},
        ]
        self.dialogue.labels.append("no_tool" if self.tools else source)

    def _wants_a_tool(self, asked: str, reply: str) -> bool:
        """Sums belong to the adding tool where one is listed, the weather to its tool."""
        kinds = {tool.kind for tool in self.tools}
        if "add" in kinds and (reply == skills.TOO_BIG or " + " in reply or '"answer"' in reply):
            return True
        return reply == skills.UNKNOWN and any(kind in asked for kind in kinds)

    def _add_tool_use(self) -> None:
        call_id = f"call_{len(self.dialogue.messages)}"
        self.dialogue.messages += tool_skills.exchange(self.rng, self.tools, call_id)
        self.dialogue.labels += ["tool_call", "tool_answer"]


def _turns(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 9, 12))


def write(rng: random.Random, weights: dict[str, float]) -> Dialogue:
    """A dialogue of a random length in which skills appear about as often as weighted."""
    tool_share = sum(weights[skill] for skill in ("tool_call", "tool_answer", "no_tool"))
    writer = Writer(rng, rng.random() < tool_share / sum(weights.values()))
    if writer.tools:
        for _ in range(rng.choice((1, 1, 2, 3, 4, 6))):
            writer.add("no_tool" if rng.random() < 0.35 else "tool_call")
        return writer.dialogue
    plain = [skill for skill in SKILLS if skill in skills.PLAIN]
    shares = [weights[skill] for skill in plain]
    for _ in range(_turns(rng)):
        skill = rng.choices(plain, shares)[0]
        if (skill == "recall" and not writer.facts and rng.random() < 0.9) or rng.random() < 0.08:
            writer.add("tell")
        else:
            writer.add(skill)
    return writer.dialogue


def write_for(rng: random.Random, skill: str) -> Dialogue:
    """A dialogue whose last reply shows this skill, for evaluation (may not be held out)."""
    tools = skill in ("tool_call", "tool_answer", "no_tool")
    writer = Writer(rng, tools)
    if skill == "recall":
        writer.add("tell")
    for _ in range(rng.choice((0, 1, 2, 3, 4, 5)) if skill != "recall" else rng.randint(2, 6)):
        others = ["no_tool", "tool_call"] if tools else list(skills.PLAIN)
        writer.add(rng.choice(others))
    writer.add(skill)
    if skill == "tool_call":
        del writer.dialogue.messages[-2:], writer.dialogue.labels[-1:]
    return writer.dialogue


def held_out(seed: int, skill: str, count: int) -> list[Dialogue]:
    """So many different held-out dialogues whose last reply shows this skill."""
    rng = random.Random(f"{seed} {skill}")
    found: dict[str, Dialogue] = {}
    while len(found) < count:
        dialogue = write_for(rng, skill)
        place = len(dialogue.messages) - 1
        if dialogue.labels[-1] == skill and is_held_out(dialogue, place):
            found.setdefault(render(dialogue.messages, dialogue.tools), dialogue)
    return list(found.values())
