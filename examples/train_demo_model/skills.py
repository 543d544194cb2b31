"""The skills without tools: for each one, what a user may say and the one right reply.

Owns: the phrasings. Every function takes the random generator and what the user has
told so far, and returns one exchange (the user's text and the reply). A prompt has
exactly one right reply, so that "exact" is a meaningful score for greedy decoding.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from words import (
    ANIMALS,
    CITIES,
    COLOURS,
    NAMES,
    THINGS,
    a_city,
    a_name,
    list_items,
    phrasings,
    pool,
)

Facts = dict[str, str]
Exchange = tuple[str, str]
Skill = Callable[[random.Random, Facts], Exchange]

WHAT_I_AM = "I am a tiny demonstration model, not an assistant."
WHAT_I_CAN = (
    "I can greet, add and subtract small numbers, count, repeat and reverse lists, remember your "
    "name, number and colour, answer in JSON, and call tools."
)
WHAT_I_CANNOT = "I know nothing about the world, and I can be wrong. I am only a demonstration."
UNKNOWN = "I do not know that. I am only a tiny demonstration model."
TOO_BIG = "I can only add and subtract numbers up to 20."
HELLO = "Hello! How can I help you?"

_GREETINGS = {
    HELLO: (
        "Hello|Hello!|Hi|Hi!|Hey|Hey!|Hello there|Hello there!|Hi there|Hi there!|Hey there!|hello|"
        "hi|hey|Greetings!|Say hi|Say hi.|Say hello|Say hello.|say hi|Hello.|Hi.|Hello, model!"
    ),
    "Good morning! How can I help you?": "Good morning|Good morning!|good morning|Good morning.",
    "Good evening! How can I help you?": "Good evening|Good evening!|good evening|Good evening.",
    "I am fine, thank you. How can I help you?": (
        "How are you?|Hi, how are you?|Hello, how are you?|how are you|Hello! How are you?|"
        "How are you today?|How do you do?|Hey, how are you doing?"
    ),
    "You are welcome!": (
        "Thanks|Thanks!|Thank you|Thank you!|Thank you.|thanks|Thank you very much."
    ),
    "Goodbye!": "Bye|Bye!|Goodbye|Goodbye!|See you!|bye|Good night!|Goodbye.",
}

_ABOUT = {
    WHAT_I_AM: (
        "What are you?|Who are you?|Are you an assistant?|Are you a human?|Are you a robot?|"
        "What is your name?|Tell me about yourself.|who are you|what are you|Introduce yourself.|"
        "What kind of model are you?|Are you ChatGPT?"
    ),
    WHAT_I_CAN: (
        "What can you do?|What can you do for me?|How can you help me?|What are your skills?|"
        "what can you do|Help|help|What can I ask you?|Can you help me?|What do you know?"
    ),
    WHAT_I_CANNOT: (
        "What can you not do?|What can't you do?|What are your limits?|Can I trust you?|"
        "Are you always right?|Can you be wrong?|What do you not know?|Do you make mistakes?"
    ),
}

_TOPICS = phrasings(
    "France|history|space|music|football|love|war|politics|Mars|money|cooking|physics|chess|"
    "dinosaurs|cars|the ocean|bees|volcanoes|Shakespeare|computers|Germany|the moon|Python|"
    "a dragon|the king|America|Einstein|the universe|cats|my dog|llamas|robots|art"
)

_OFF_TOPIC = phrasings(
    "What is the capital of {}?|Who invented {}?|Write a poem about {}.|Tell me a story about {}.|"
    "Tell me a joke about {}.|Explain {}.|Explain {} to me.|What is {}?|Why is {} important?|"
    "When did {} begin?|How old is {}?|What do you think about {}?|Write an essay about {}.|"
    "Tell me about {}.|Where is {}?|How does {} work?|Who is {}?|Translate {} into French.|"
    "What is the meaning of {}?|Why is {} so big?|Do you like {}?|Write a program about {}."
)

_OFF_TOPIC_FIXED = phrasings(
    "Why is the sky blue?|What is the meaning of life?|Tell me a joke.|Write a poem.|"
    "Tell me a story.|Who is the president?|What day is it today?|What is the news?|"
    "Once upon a time|Sing a song.|How tall is the tallest mountain?|Write some code."
)


_NEEDS_A_TOOL = phrasings(
    "What is the weather in {}?|How is the weather in {}?|What time is it in {}?|Weather in {}?|"
    "What's the weather like in {}?|What is the time in {}?|How many people live in {}?"
)


def _one_of(rng: random.Random, replies: dict[str, str]) -> Exchange:
    reply = rng.choice(list(replies))
    return rng.choice(phrasings(replies[reply])), reply


def greeting(rng: random.Random, _facts: Facts) -> Exchange:
    """Hello, thanks, goodbye."""
    if rng.random() < 0.4:
        return rng.choice(phrasings(_GREETINGS[HELLO])), HELLO
    return _one_of(rng, _GREETINGS)


def about(rng: random.Random, _facts: Facts) -> Exchange:
    """What the model is and cannot do, and its honest reply to all that it cannot."""
    if rng.random() < 0.55:
        return _one_of(rng, _ABOUT)
    roll = rng.random()
    if roll < 0.15:
        return rng.choice(_OFF_TOPIC_FIXED), UNKNOWN
    if roll < 0.35:
        return rng.choice(_NEEDS_A_TOOL).format(a_city(rng)), UNKNOWN
    return rng.choice(_OFF_TOPIC).format(rng.choice(_TOPICS)), UNKNOWN


def _with_lead(rng: random.Random, asked: str) -> str:
    """The same question, now and then with a polite start or in lower case."""
    if not asked[0].isalpha():
        return asked
    roll = rng.random()
    if roll < 0.06:
        return "Please " + asked[0].lower() + asked[1:]
    if roll < 0.10:
        return asked[0].lower() + asked[1:]
    if roll < 0.14:
        return asked.rstrip(".?")
    return asked


def _operands(rng: random.Random, big: bool) -> tuple[int, int]:
    pair = [rng.randint(0, 20), rng.randint(0, 20)]
    if big:
        for at in rng.choice(((0,), (1,), (0, 1))):
            pair[at] = rng.randint(21, 99 if rng.random() < 0.6 else 999)
    return pair[0], pair[1]


def _sum(rng: random.Random, big: bool = False) -> tuple[int, int, str]:
    left, right = _operands(rng, big)
    forms = (
        "What is {} + {}?|What is {} plus {}?|{} + {}|{} + {} = ?|{}+{}|How much is {} + {}?|"
        "Add {} and {}.|What is the sum of {} and {}?|Calculate {} + {}.|What's {} + {}?|{} + {} =|"
        "What is {}+{}?|{} + {}?|Compute {} + {}."
    )
    return left, right, rng.choice(phrasings(forms)).format(left, right)


def _difference(rng: random.Random, big: bool = False) -> tuple[int, int, str]:
    left, right = _operands(rng, big)
    if left < right and rng.random() < 0.6:
        left, right = right, left
    if rng.random() < 0.15:
        return left, right, f"Subtract {right} from {left}."
    forms = (
        "What is {} - {}?|What is {} minus {}?|{} - {}|{} - {} = ?|How much is {} - {}?|{}-{}|"
        "Calculate {} - {}.|What's {} - {}?|{} - {} =|What is {}-{}?|{} - {}?|Compute {} - {}."
    )
    return left, right, rng.choice(phrasings(forms)).format(left, right)


def arithmetic(rng: random.Random, _facts: Facts) -> Exchange:
    """Sums and differences of numbers from 0 to 20; larger ones are declined."""
    if rng.random() < 0.08:
        return rng.choice((_sum, _difference))(rng, big=True)[2], TOO_BIG
    if rng.random() < 0.5:
        left, right, asked = _sum(rng)
        return _with_lead(rng, asked), f"{left} + {right} = {left + right}."
    left, right, asked = _difference(rng)
    return _with_lead(rng, asked), f"{left} - {right} = {left - right}."


def repeat(rng: random.Random, _facts: Facts) -> Exchange:
    """A short list, said again."""
    items = ", ".join(list_items(rng))
    forms = (
        "Repeat: {}|Repeat {}.|Repeat this list: {}|Say these again: {}|Repeat after me: {}|"
        "Repeat the list {}.|Please repeat: {}|Say this: {}|repeat {}"
    )
    return rng.choice(phrasings(forms)).format(items), f"The list: {items}."


def reverse(rng: random.Random, _facts: Facts) -> Exchange:
    """A short list, last item first."""
    items = list_items(rng)
    forms = (
        "Reverse: {}|Reverse {}.|Reverse this list: {}|Say these backwards: {}|"
        "Reverse the list {}.|Please reverse: {}|Say this in reverse order: {}|reverse {}"
    )
    asked = rng.choice(phrasings(forms)).format(", ".join(items))
    return asked, f"Reversed: {', '.join(reversed(items))}."


def counting(rng: random.Random, _facts: Facts) -> Exchange:
    """Counting up, from one or from elsewhere, and down."""
    kind = rng.random()
    if kind < 0.45:
        end = rng.randint(2, 20)
        forms = "Count to {}.|Count up to {}.|Count from 1 to {}.|Can you count to {}?"
        asked, numbers = rng.choice(phrasings(forms)).format(end), list(range(1, end + 1))
    elif kind < 0.8:
        start = rng.randint(2, 24)
        end = start + rng.randint(2, 12)
        forms = "Count from {} to {}.|Count up from {} to {}.|Say the numbers from {} to {}."
        asked = rng.choice(phrasings(forms)).format(start, end)
        numbers = list(range(start, end + 1))
    else:
        start = rng.randint(2, 15)
        forms = "Count down from {}.|Count backwards from {}.|Count down from {} to 1."
        asked, numbers = rng.choice(phrasings(forms)).format(start), list(range(start, 0, -1))
    return _with_lead(rng, asked), ", ".join(map(str, numbers)) + "."


def _json_value(rng: random.Random, key: str) -> str | int | bool:
    texts = {"name": NAMES, "city": CITIES, "colour": COLOURS, "animal": ANIMALS, "item": THINGS}
    if key == "color":
        return rng.choice(COLOURS)
    if key in texts:
        return a_name(rng) if key == "name" else rng.choice(texts[key])
    if key in ("ok", "open"):
        return rng.random() < 0.5
    return rng.randint(0, 99)


def _json_pairs(rng: random.Random) -> dict[str, str | int | bool]:
    keys = pool("name city colour color animal item age count price size id ok open")
    if rng.random() < 0.25:
        return {"name": a_name(rng), "age": rng.randint(1, 99)}
    chosen = rng.sample(keys, rng.choice((1, 2, 2, 2, 3, 3, 4)))
    return {key: _json_value(rng, key) for key in chosen}


def as_json(rng: random.Random, facts: Facts) -> Exchange:
    """An answer that is a JSON object and nothing else."""
    roll = rng.random()
    if roll < 0.12:
        left, right, asked = _sum(rng)
        return f"{asked.rstrip('= ')} Answer in JSON.", json.dumps({"answer": left + right})
    if roll < 0.24 and "name" in facts:
        asked = rng.choice(("Tell me my name in JSON.", "What is my name? Answer in JSON."))
        return asked, json.dumps({"name": facts["name"]})
    pairs = _json_pairs(rng)
    said = [f"{key} {json.dumps(v) if isinstance(v, bool) else v}" for key, v in pairs.items()]
    equal = [text.replace(" ", " = ", 1) for text in said]
    joined = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    forms = (
        f"Give me a JSON object with {joined}.|Make a JSON object with {joined}.|"
        f"Answer in JSON: {', '.join(said)}|Write a JSON object: {', '.join(equal)}|"
        f"As JSON: {', '.join(said)}|Answer with a JSON object: {joined}.|"
        f"Return JSON with {joined}.|Give me JSON with {', '.join(equal)}."
    )
    return rng.choice(phrasings(forms)), json.dumps(pairs, ensure_ascii=False)


_TELL = {
    "name": (
        "My name is {}.|I am {}.|I'm {}.|Hello, my name is {}.|Hi, I am {}.|Call me {}.|"
        "Hi! My name is {}.|Hello, I'm {}.|my name is {}|Please remember my name: {}.|Hi, I'm {}!"
    ),
    "number": (
        "My favourite number is {}.|My number is {}.|Remember the number {}.|"
        "My lucky number is {}.|Please remember the number {}.|"
        "My favorite number is {}.|Remember this number: {}"
    ),
    "colour": (
        "My favourite colour is {}.|I like the colour {}.|Remember the colour {}.|"
        "My favorite color is {}.|I like the color {}.|My colour is {}.|Remember this colour: {}"
    ),
}
_TOLD = {
    "name": "Nice to meet you, {}.",
    "number": "I will remember the number {}.",
    "colour": "I will remember the colour {}.",
}
_ASK = {
    "name": (
        "What is my name?|Do you remember my name?|Who am I?|What's my name?|Tell me my name.|"
        "What was my name?|what is my name"
    ),
    "number": (
        "What is my number?|Which number did I tell you?|What was my number?|Tell me my number.|"
        "What is my favourite number?|What is my favorite number?|What was the number?|"
        "Do you remember my number?|What's my number?|What is my lucky number?"
    ),
    "colour": (
        "What is my favourite colour?|Which colour do I like?|What was my colour?|"
        "What colour is it?|What is my favorite color?|What was the colour?|"
        "Do you remember my colour?|"
        "What's my favourite colour?|Which colour did I tell you?|Tell me my colour."
    ),
}
_ANSWER = {
    "name": "Your name is {}.",
    "number": "Your number is {}.",
    "colour": "Your colour is {}.",
}


def _fact(rng: random.Random, kind: str) -> str:
    if kind == "name":
        return a_name(rng)
    if kind == "colour":
        return rng.choice(COLOURS)
    return str(rng.randint(0, 99) if rng.random() < 0.85 else rng.randint(100, 999))


def tell(rng: random.Random, facts: Facts) -> Exchange:
    """The user tells something not told yet; the reply says it back."""
    kinds = [kind for kind in _TELL if kind not in facts] or ["name"]
    if len(kinds) > 1 and "name" in kinds and rng.random() < 0.2:
        other = next(kind for kind in rng.sample(kinds, len(kinds)) if kind != "name")
        facts["name"], facts[other] = _fact(rng, "name"), _fact(rng, other)
        asked = f"My name is {facts['name']} and my favourite {other} is {facts[other]}."
        return asked, f"Nice to meet you, {facts['name']}. " + _TOLD[other].format(facts[other])
    kind = rng.choice(kinds)
    facts[kind] = _fact(rng, kind)
    told = _TELL[kind] if rng.random() < 0.75 else phrasings(_TELL[kind])[0]
    return rng.choice(phrasings(told)).format(facts[kind]), _TOLD[kind].format(facts[kind])


def recall(rng: random.Random, facts: Facts) -> Exchange:
    """The user asks for what was told, or now and then for what was not."""
    missing = [kind for kind in _ASK if kind not in facts]
    if not facts or (missing and rng.random() < 0.1):
        kind = rng.choice(missing)
        return rng.choice(phrasings(_ASK[kind])), f"You have not told me your {kind}."
    kind = rng.choice(sorted(facts))
    return rng.choice(phrasings(_ASK[kind])), _ANSWER[kind].format(facts[kind])


PLAIN: dict[str, Skill] = {
    "greeting": greeting,
    "about": about,
    "arithmetic": arithmetic,
    "repeat": repeat,
    "reverse": reverse,
    "tell": tell,
    "recall": recall,
    "counting": counting,
    "json": as_json,
}
