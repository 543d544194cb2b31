"""Checks an exported file against the checkpoint that it came from.

Owns: two comparisons. Tokens: llama.cpp and the training tokenizer must split every text
alike. Logits: the PyTorch model, with its weights rounded as Q8_0 rounds them, and llama.cpp
on the file must agree. llama.cpp also rounds activations to 8 bits, hence not to the last bit.

    python verify.py RUN/last.pt TOKENIZER.json MODEL.gguf
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import dialogues
import export
import model as models
import numpy as np
import torch
from runner import Runner
from tokenizers import Tokenizer

LARGEST_ERROR = 2e-3

_ODD_TEXTS = (
    *("", " ", "\n", "  two  spaces ", "tabs\tand\nlines\r\n\n\nend", "ends with space "),
    *("12 345 6789 1,000.50", "a1b22c333", "don't I'll we've HELLO'S", "\u0000\u0001\x7f"),
    *("naïve café Ünïcödé ß", "日本語 עברית русский", "🙂👩‍👩‍👧 emoji", "¿Qué? «quoted» — dash…"),
    *("x = {'a': [1, 2]}; // !!??", "a   b    c\u00a0d\u2003e"),
    *("<|im_start|>user\nHi<|im_end|>\n", "<tool_call>\n{}\n</tool_call>"),
)


def _random_text(rng: random.Random) -> str:
    alphabet = "abc XYZ 0123456789 .,!?'\"{}[]:-_\n\t é ß 日 本 🙂 \u00a0"
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60)))


def same_tokens(runner: Runner, tokenizer: Tokenizer, count: int) -> int:
    """How many texts were compared; exits at the first difference."""
    rng = random.Random(3)
    weights = dict.fromkeys(dialogues.SKILLS, 1.0)
    written = [dialogues.write(rng, weights) for _ in range(count)]
    texts = [dialogues.render(dialogue.messages, dialogue.tools) for dialogue in written]
    texts += [*_ODD_TEXTS, *(_random_text(rng) for _ in range(count))]
    for text in texts:
        ours, theirs = tokenizer.encode(text).ids, runner.tokenize(text)
        if ours != theirs:
            sys.exit(f"tokens differ for {text!r}:\n{ours}\n{theirs}")
        back = runner.model.vocab.detokenize(theirs, special=True).decode("utf-8", "replace")
        if back != text:
            sys.exit(f"text differs after a round trip: {text!r} became {back!r}")
    return len(texts)


@torch.no_grad()
def logit_error(runner: Runner, checkpoint: Path, count: int) -> tuple[float, float]:
    """The normalized mean squared error, and the share of equal likeliest tokens."""
    cfg, weights = export.load(checkpoint)
    network = models.Transformer(cfg)
    network.load_state_dict({name: export.rounded(weight) for name, weight in weights.items()})
    rng = random.Random(4)
    shares = dict.fromkeys(dialogues.SKILLS, 1.0)
    wrong = total = 0.0
    equal: list[float] = []
    for _ in range(count):
        dialogue = dialogues.write(rng, shares)
        ids = runner.tokenize(dialogues.render(dialogue.messages, dialogue.tools))
        expected = network(torch.tensor([ids]))[0].numpy()
        got = runner.logits(ids)
        wrong += float(np.square(got - expected).sum())
        total += float(np.square(expected - expected.mean(-1, keepdims=True)).sum())
        equal.append(float((got.argmax(-1) == expected.argmax(-1)).mean()))
    return wrong / total, sum(equal) / len(equal)


def main() -> None:
    """Read the command line, compare, and fail if the file is not the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runner = Runner(args.gguf)
    compared = same_tokens(runner, Tokenizer.from_file(str(args.tokenizer)), 10 * args.count)
    print(f"tokens: {compared} texts split alike")
    error, equal = logit_error(runner, args.checkpoint, args.count)
    print(f"logits: normalized mean squared error {error:.2e}, likeliest token equal {equal:.2%}")
    if error > LARGEST_ERROR:
        sys.exit(f"the error is larger than {LARGEST_ERROR}")


if __name__ == "__main__":
    main()
