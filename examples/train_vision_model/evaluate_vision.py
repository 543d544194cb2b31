"""What a projector gets right of pictures that training never showed, through ``llama_py`` itself.

    python evaluate_vision.py RUN/mmproj-demo-f16.gguf

Prints the right replies to each kind of question: all held-back digits, and as many shapes; then
conversations of one to three turns, as they were trained, with other pictures.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from digits import Digits
from drawing import Shown, draw_digit, draw_shape
from questions import Turn, conversation
from verify import messages_of

from llama_py import Llama, demo_model_path

#: Not that of the training.
SEED = 7531
DIALOGUES = 300


def asked() -> Iterator[tuple[str, list[Turn]]]:
    """Conversations, and what they are counted as."""
    rng, digits = np.random.default_rng(SEED), Digits()
    for at in digits.held_back:
        digit = draw_digit(digits.grey[at], int(digits.value[at]))
        yield "digits", [Turn((digit, "What is this?"), digit.name, "digit")]
        shape = draw_shape(rng)
        yield "shapes", [Turn((shape, "What is this?"), shape.name, "shape")]

    def draw() -> Shown:
        return draw_shape(rng) if rng.random() < 0.5 else digits.draw_held_back(rng)

    for number in range(DIALOGUES):
        turns = conversation(rng, draw, 1 + number % 3)
        for count, turn in enumerate(turns, 1):
            yield f"in dialogues: {turn.kind}", turns[:count]


def main() -> None:
    """Read the command line, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("projector", type=Path)
    args = parser.parse_args()
    right, all_of = Counter[str](), Counter[str]()
    with Llama(demo_model_path(), mmproj=args.projector, n_ctx=2048, n_threads=1) as llm:
        for kind, turns in asked():
            said = llm.create_chat_completion(messages_of(turns), temperature=0, max_tokens=8)
            all_of[kind] += 1
            right[kind] += said["choices"][0]["message"]["content"] == turns[-1].reply
    for kind, count in all_of.items():
        print(f"{kind:28} {right[kind]:4} of {count:4}  {right[kind] / count:6.1%}")


if __name__ == "__main__":
    main()
