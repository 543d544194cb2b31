"""What of the texts that a replica was sent is still in its memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from llama_py.cluster.held import HeldTexts
from llama_py.dialects.routing_hints import Hint, hint_of


def text(content: str) -> Hint:
    return hint_of({"prompt": content})


class Memory:
    """Says how many tokens are there."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def find(self, prompts: Sequence[tuple[Sequence[int], Hashable]]) -> list[int]:
        return [self.counts.get(str(whose), 0) for _, whose in prompts]


def test_what_is_in_memory_is_held() -> None:
    held, hint = HeldTexts(), text("x" * 4096)
    held.note(hint, range(1000), "mine")
    assert held.look(Memory(mine=1000).find) == ([*hint.blocks], [])


def test_as_much_of_the_text_is_held_as_of_its_tokens() -> None:
    held, hint = HeldTexts(), text("x" * 4096)
    held.note(hint, range(1000), "mine")
    assert held.look(Memory(mine=500).find) == ([*hint.blocks[:2]], [*hint.blocks[2:]])


def test_what_was_lost_is_held_again_when_it_was_evaluated_again() -> None:
    held, hint = HeldTexts(), text("x" * 4096)
    held.note(hint, range(1000), "mine")
    held.look(Memory().find)
    held.note(hint, range(1000), "mine")
    assert held.look(Memory(mine=1000).find) == ([*hint.blocks], [])


def test_a_common_beginning_is_held_as_long_as_one_text_has_it() -> None:
    held, one, other = HeldTexts(), text("a" * 1024 + "b"), text("a" * 1024 + "c")
    held.note(one, range(10), "one")
    held.note(other, range(10), "other")
    there, lost = held.look(Memory(other=10).find)
    assert one.blocks[0] in there
    assert lost == [one.blocks[1]]


def test_what_continues_a_text_takes_its_place() -> None:
    held = HeldTexts(most=2)
    for count in range(1, 6):
        held.note(text("x" * 1024 * count), range(100 * count), "mine")
    there, lost = held.look(Memory(mine=500).find)
    assert len(there) == 5
    assert not lost


def test_it_is_bounded() -> None:
    held = HeldTexts(most=4, most_told=8)
    for number in range(50):
        held.note(text(f"{number}" * 2000), range(10), "mine")
    there, lost = held.look(Memory(mine=10).find)
    assert len(there) <= 8
    assert len(lost) <= 8
