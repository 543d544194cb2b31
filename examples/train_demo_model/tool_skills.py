"""The skills with tools: which tools there are, how users ask for them, how results read.

Owns: tool definitions in the OpenAI form (with several names and parameter names each, so
that the call has to be copied from the listing) and the exchange around one call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from words import CONDITIONS, GOODS, THINGS, a_city, a_name, made_up, phrasings, pool

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One use of a tool: what is asked, the arguments, the result and the final reply."""

    asked: str
    arguments: Json
    result: Json
    reply: str


@dataclass(frozen=True)
class Tool:
    """A tool as one dialogue lists it, with the way to make up a use of it."""

    kind: str
    definition: Json
    use: Callable[[random.Random], Call]

    @property
    def name(self) -> str:
        """The name under which this dialogue lists the tool."""
        return str(self.definition["function"]["name"])


def define(name: str, description: str, parameters: dict[str, str]) -> Json:
    """The OpenAI form of a tool whose parameters are all required."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    function: Json = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = {
        "type": "object",
        "properties": properties,
        "required": list(parameters),
    }
    return {"type": "function", "function": function}


def _pick(rng: random.Random, choices: str) -> str:
    return rng.choice(phrasings(choices))


def _weather(rng: random.Random) -> Tool:
    name = _pick(rng, "get_weather|get_weather|get_weather|weather|get_current_weather")
    key = _pick(rng, "city|city|city|location|place")
    about = _pick(rng, "Get the weather of a city.|Get the current weather.|Weather in a city||")

    def use(rng: random.Random) -> Call:
        city = a_city(rng)
        degrees, sky = rng.randint(0, 35), rng.choice(CONDITIONS)
        asked = _pick(
            rng,
            "What is the weather in {}?|What is the weather like in {}?|How is the weather in {}?|"
            "What's the weather in {}?|Tell me the weather in {}.|Weather in {}?|"
            "What is the weather in {} today?|What's the weather like in {}?",
        ).format(city)
        result: Json = {"temperature": degrees, "condition": sky}
        return Call(asked, {key: city}, result, f"It is {degrees} degrees and {sky} in {city}.")

    return Tool("weather", define(name, about, {key: "string"}), use)


def _time(rng: random.Random) -> Tool:
    name = _pick(rng, "get_time|get_time|get_time|time|get_current_time")
    key = _pick(rng, "city|city|city|location|place")
    about = _pick(rng, "Get the time in a city.|Get the current time.|Time in a city||")

    def use(rng: random.Random) -> Call:
        city = a_city(rng)
        clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        asked = _pick(
            rng,
            "What time is it in {}?|What is the time in {}?|Tell me the time in {}.|Time in {}?|"
            "What's the time in {}?|What time is it now in {}?",
        ).format(city)
        return Call(asked, {key: city}, {"time": clock}, f"It is {clock} in {city}.")

    return Tool("time", define(name, about, {key: "string"}), use)


def _add(rng: random.Random) -> Tool:
    name = _pick(rng, "add|add|add_numbers|calculate_sum|sum")
    about = _pick(rng, "Add two numbers.|Add a and b.|Sum of two numbers||")
    first, second = _pick(rng, "a b|a b|x y|left right").split()

    def use(rng: random.Random) -> Call:
        top = 20 if rng.random() < 0.5 else 99
        left, right = rng.randint(0, top), rng.randint(0, top)
        asked = _pick(
            rng, "What is {} + {}?|Add {} and {}.|{} + {}|What is {} plus {}?|Calculate {} + {}."
        ).format(left, right)
        reply = f"{left} + {right} = {left + right}."
        return Call(asked, {first: left, second: right}, {"result": left + right}, reply)

    kind = _pick(rng, "number|integer")
    return Tool("add", define(name, about, {first: kind, second: kind}), use)


def _price(rng: random.Random) -> Tool:
    name = _pick(rng, "lookup_price|lookup_price|get_price|price")
    key = _pick(rng, "item|item|product|name")
    about = _pick(rng, "Look up the price of an item.|Get a price.|Price of an item||")

    def use(rng: random.Random) -> Call:
        item, price = rng.choice(GOODS), rng.randint(1, 99)
        asked = _pick(
            rng,
            "How much is the {}?|What does the {} cost?|What is the price of the {}?|"
            "How much does a {} cost?|What is the price of a {}?|Look up the price of the {}.",
        ).format(item)
        return Call(asked, {key: item}, {"price": price}, f"The {item} costs {price} dollars.")

    return Tool("price", define(name, about, {key: "string"}), use)


def _timer(rng: random.Random) -> Tool:
    name = _pick(rng, "set_timer|set_timer|start_timer|timer")
    about = _pick(rng, "Set a timer.|Start a timer in minutes.||")

    def use(rng: random.Random) -> Call:
        minutes = rng.randint(2, 60)
        asked = _pick(
            rng,
            "Set a timer for {} minutes.|Start a timer for {} minutes.|Timer for {} minutes.|"
            "Please set a timer for {} minutes.|Wake me in {} minutes.",
        ).format(minutes)
        reply = f"The timer is set for {minutes} minutes."
        return Call(asked, {"minutes": minutes}, {"status": "ok"}, reply)

    return Tool("timer", define(name, about, {"minutes": _pick(rng, "integer|number")}), use)


def _message(rng: random.Random) -> Tool:
    name = _pick(rng, "send_message|send_message|send|message")
    about = _pick(rng, "Send a message to a person.|Send a message.||")

    def use(rng: random.Random) -> Call:
        person = a_name(rng)
        text = _pick(rng, "hello|good morning|see you soon|thank you|I am late|call me|well done")
        asked = _pick(
            rng, "Send {} the message: {}|Send a message to {}: {}|Write to {}: {}|Tell {}: {}"
        ).format(person, text)
        reply = f"The message was sent to {person}."
        return Call(asked, {"to": person, "text": text}, {"status": "sent"}, reply)

    return Tool("message", define(name, about, {"to": "string", "text": "string"}), use)


def _named(rng: random.Random) -> Tool:
    """A tool no one has heard of, asked for by its name and its parameters."""
    verb = _pick(rng, "get|find|lookup|read|check|my|test|run")
    name = f"{verb}_{rng.choice(THINGS) if rng.random() < 0.94 else made_up(rng)}"
    keys = rng.sample(pool("id name city value key item user code query text"), rng.choice((1, 2)))
    about = _pick(rng, "|A tool.|Does something.")
    kinds = {key: "integer" if key in ("id", "value", "code") else "string" for key in keys}

    def argument(rng: random.Random, key: str) -> str | int:
        if kinds[key] == "integer":
            return rng.randint(0, 99)
        if key == "city":
            return a_city(rng)
        return a_name(rng) if key in ("name", "user") else rng.choice(THINGS)

    def use(rng: random.Random) -> Call:
        arguments = {key: argument(rng, key) for key in kinds}
        said = " and ".join(f"{key} {value}" for key, value in arguments.items())
        asked = _pick(rng, "Call {} with {}.|Use {} with {}.|Use the tool {} with {}.").format(
            name, said
        )
        value = rng.randint(0, 99) if rng.random() < 0.5 else a_name(rng)
        return Call(asked, arguments, {"result": value}, f"The result is {value}.")

    return Tool("named", define(name, about, kinds), use)


_MAKERS = (_weather, _time, _add, _add, _price, _timer, _message, _named)


def some_tools(rng: random.Random) -> list[Tool]:
    """One to three different tools in a random order."""
    chosen: dict[str, Tool] = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        tool = rng.choice(_MAKERS)(rng)
        chosen.setdefault(tool.kind, tool)
    tools = list(chosen.values())
    rng.shuffle(tools)
    return tools


def exchange(rng: random.Random, tools: list[Tool], call_id: str) -> list[Json]:
    """The four messages of one use of one of the tools."""
    tool = rng.choice(tools)
    call = tool.use(rng)
    function = {"name": tool.name, "arguments": call.arguments}
    return [
        {"role": "user", "content": call.asked},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": json.dumps(call.result)},
        {"role": "assistant", "content": call.reply},
    ]
