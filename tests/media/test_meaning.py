"""It is the right picture: a trained projector names what was held back, however it is asked.

Projectors with random weights show that everything is the same; these tests, that it is right.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llama_py import Image, LlamaDiskCache
from tests.media.meaning import (
    ENOUGH,
    PROJECTOR,
    Asked,
    digits,
    name_of,
    name_second_of,
    reading,
    shapes,
)
from tests.server.serving import Server, demo_settings, serving

#: Pictures of each kind that are named over HTTP, and alone.
FEW, MANY = 12, 150
ASK = "What is this?"

pytestmark = pytest.mark.skipif(
    not PROJECTOR.is_file(), reason="examples/train_vision_model has not made the projector yet"
)


@pytest.fixture(scope="module")
def model() -> Iterator[Asked]:
    with reading() as asked:
        yield asked


def mixed(count: int, start: int = 0) -> list[Any]:
    """Digits and shapes in turn, others for another ``start``."""
    half = count // 2
    pairs = zip(digits()[start:][:half], shapes(MANY)[start:][:half], strict=True)
    return [each for pair in pairs for each in pair]


def right(replies: Sequence[str], expected: Sequence[str]) -> float:
    """The part of the replies that is right."""
    found = [reply == name for reply, name in zip(replies, expected, strict=True)]
    return sum(found) / len(found)


def colour_in(reply: str) -> str:
    """The model may say the name again, in which the colour comes first."""
    return reply.partition(" ")[0]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("kind", ["digits", "shapes"])
def test_held_back_pictures_are_named(model: Asked, kind: str) -> None:
    shown = digits()[:MANY] if kind == "digits" else shapes(MANY)
    replies = [model.ask([name_of(each)]) for each in shown]
    assert right(replies, [each.name for each in shown]) >= ENOUGH


def test_a_second_question_is_about_the_same_picture_which_is_not_encoded_again(
    model: Asked,
) -> None:
    shown = shapes(40)
    colours = []
    for each in shown:
        first = [name_of(each), said(model.ask([name_of(each)]))]
        encoded = model.encoded
        colours.append(colour_in(model.ask([*first, asked("What colour is it?")])))
        assert model.encoded == encoded
    assert right(colours, [each.colour for each in shown]) >= ENOUGH


def test_the_second_of_two_pictures_is_named(model: Asked) -> None:
    shown = mixed(80)
    pairs = list(zip(shown, shown[1:] + shown[:1], strict=True))
    replies = [model.ask([name_second_of(*pair)]) for pair in pairs]
    assert right(replies, [second.name for _, second in pairs]) >= ENOUGH


def test_a_later_picture_is_named_behind_an_earlier_one(model: Asked) -> None:
    shown = mixed(40)
    pairs = list(zip(shown, shown[1:] + shown[:1], strict=True))
    replies = [
        model.ask([name_of(before), said(before.name), name_of(later)]) for before, later in pairs
    ]
    assert right(replies, [later.name for _, later in pairs]) >= ENOUGH


def test_beside_three_streams_with_other_pictures_each_gets_its_own(model: Asked) -> None:
    shown = [mixed(20, 10 * number) for number in range(4)]
    alone = [[model.ask([name_of(each)]) for each in own] for own in shown]
    with reading() as together:
        replies: list[list[str]] = [[] for _ in shown]

        def talk(number: int) -> None:
            for each in shown[number]:
                replies[number].append(together.ask([name_of(each)]))

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(len(shown))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == alone
    for own, their in zip(replies, shown, strict=True):
        assert right(own, [each.name for each in their]) >= 0.8  # of 20


def test_branches_of_a_conversation_remember_its_picture_and_see_their_own(model: Asked) -> None:
    colours, named, expected_colours, expected_names = [], [], [], []
    for trunk, one in zip(shapes(20), digits(), strict=False):
        begun = [name_of(trunk), said(trunk.name)]
        model.ask([name_of(trunk)], session_id="trunk")
        encoded = model.encoded
        colours.append(
            colour_in(model.ask([*begun, asked("What colour is it?")], session_id="left"))
        )
        assert model.encoded == encoded
        assert model.reused > 20
        named.append(model.ask([*begun, name_of(one)], session_id="right"))
        assert model.reused > 20
        colours.append(
            colour_in(model.ask([*begun, asked("What is the colour?")], session_id="left"))
        )
        expected_colours += [trunk.colour] * 2
        expected_names.append(one.name)
    assert right(colours, expected_colours) >= ENOUGH
    assert right(named, expected_names) >= ENOUGH


def test_after_a_restart_from_disk_nothing_is_encoded(tmp_path: Path) -> None:
    """Of conversations that are long enough to be written."""
    pairs = [*zip(mixed(20), mixed(20, 20), strict=True)]
    with reading() as before, LlamaDiskCache(str(tmp_path)) as store:
        before.llm.set_cache(store)
        replies = [before.ask([name_second_of(*pair)]) for pair in pairs]
        assert before.encoded == 2 * len(pairs)
    with reading() as after, LlamaDiskCache(str(tmp_path)) as store:
        after.llm.set_cache(store)
        again = []
        for pair in pairs:
            again.append(after.ask([name_second_of(*pair)]))
            assert after.reused > 32
        assert after.encoded == 0
    assert again == replies
    assert right(again, [second.name for _, second in pairs]) >= ENOUGH


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options: dict[str, Any] = {"mmproj": str(PROJECTOR), "n_ctx": 2048, "n_threads": 1}
    with serving(demo_settings(flash_attn=False, **options)) as serves:
        yield serves


def chat(server: Server, image: Image) -> str:
    content = [
        {"type": "image_url", "image_url": {"url": image.data_url()}},
        {"type": "text", "text": ASK},
    ]
    reply = server.openai().chat.completions.create(
        model="demo", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=8
    )
    return str(reply.choices[0].message.content)


def responses(server: Server, image: Image) -> str:
    content = [
        {"type": "input_image", "image_url": image.data_url()},
        {"type": "input_text", "text": ASK},
    ]
    reply = server.openai().responses.create(
        model="demo",
        input=[{"role": "user", "content": content}],
        temperature=0,
        max_output_tokens=8,
    )
    return str(reply.output_text)


def messages(server: Server, image: Image) -> str:
    data = base64.b64encode(image.data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": ASK}]
    reply = server.anthropic().messages.create(
        model="demo",
        messages=[{"role": "user", "content": content}],
        max_tokens=8,
        extra_body={"temperature": 0},
    )
    return str(reply.content[0].text)


@pytest.mark.parametrize("dialect", [chat, responses, messages])
def test_every_dialect_gets_the_same_names(
    model: Asked, server: Server, dialect: Callable[[Server, Image], str]
) -> None:
    shown = mixed(FEW)
    replies = [dialect(server, Image(each.picture)) for each in shown]
    assert replies == [model.ask([name_of(each)]) for each in shown]
    assert right(replies, [each.name for each in shown]) >= 0.8  # of 12
