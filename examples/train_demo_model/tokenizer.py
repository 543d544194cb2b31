"""The byte-level BPE vocabulary of the demonstration models.

Owns: training it on generated dialogues, and its special tokens. The pre-tokenizer is the
GPT-2 pattern; llama.cpp applies the same one under the name in `PRE_TOKENIZER`, which
(unlike "gpt-2") leaves spaces before punctuation alone when it turns tokens into text.

    python tokenizer.py OUT.json
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import dialogues
import words
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

PRE_TOKENIZER = "trillion"
SIZE = 1536
SEED = 1
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)


def texts(count: int) -> Iterator[str]:
    """Rendered dialogues, every skill alike."""
    rng = random.Random(SEED)
    weights = dict.fromkeys(dialogues.SKILLS, 1.0)
    for _ in range(count):
        dialogue = dialogues.write(rng, weights)
        yield dialogues.render(dialogue.messages, dialogue.tools)
    for number in range(100):
        yield f" {number}" * 400
    for word in (*words.NAMES, *words.CITIES, *words.THINGS, *words.COLOURS):
        yield f' {word} "{word}"' * 400


def train() -> Tokenizer:
    """Learn the merges; all 256 bytes are tokens, so any text can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, normalized=False, special=True) for text in (*CONTROL, *VISIBLE)]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(30000), trainer)
    return tokenizer


if __name__ == "__main__":
    train().save(sys.argv[1])
