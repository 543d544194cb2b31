"""Checks that PyTorch and the engine agree about a trained projector.

    python verify.py RUN

Three things are compared, for held-back pictures: the vectors of the encoder with libmtmd's, the
next token's likelihoods after whole conversations with those of a chat, and the tokens' number.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawing import Shown, draw_shape
from encoder import Encoder
from frozen import FrozenModel
from numpy.typing import NDArray
from prompts import CELL, Prompts
from questions import Turn, conversation
from train_vision import FILE

from llama_py import Image, Llama, demo_model_path

#: Normalised mean squared error, of F16 (the encoder) and of Q8_0 (the language model).
MOST = 1e-3


def nmse(found: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """How far values are from the right ones."""
    return float(((found - right) ** 2).sum() / (right**2).sum())


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """What a program sends: all turns, without the last one's reply."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        content = [Image(each.picture) if isinstance(each, Shown) else each for each in turn.parts]
        messages += [
            {"role": "user", "content": content},
            {"role": "assistant", "content": turn.reply},
        ]
    return messages[:-1]


class Verification:
    """Compares; see the module."""

    def __init__(self, llm: Llama, weights: Path) -> None:
        self._llm = llm
        self._language = FrozenModel(Path(demo_model_path()))
        self._encoder = Encoder(self._language.width)
        self._encoder.load_state_dict(torch.load(weights, weights_only=True)["encoder"])
        vocab = llm.vocab
        self._prompts = Prompts(
            lambda text: vocab.tokenize(text, add_special=False, parse_special=True)
        )

    @torch.no_grad()
    def vectors(self, shown: Shown) -> float:
        """The error of a picture's vectors."""
        projector = self._llm.runtime.loaded.media.encoder.projector
        chunks = projector.split_pixels(shown.picture, "a picture")
        found = projector.encode(chunks, 0)
        return nmse(found, self._encoder(torch.from_numpy(shown.picture[None]))[0].numpy())

    @torch.no_grad()
    def logits(self, turns: Sequence[Turn]) -> float:
        """The error of the logits behind a conversation."""
        batch = self._prompts.batch([turns])
        x = self._language.embeddings[batch.tokens.clamp(min=0)]
        pictures = torch.from_numpy(np.stack([each.picture for each in batch.shown]))
        cells = self._encoder(pictures).flatten(0, 1)
        x = x.masked_scatter((batch.tokens == CELL)[..., None], cells)
        length = x.shape[1] - len(self._prompts.reply(turns[-1]))
        right = self._language.logits(self._language.hidden(x[:, :length])[0, -1]).numpy()
        said = self._llm.create_chat_completion(messages_of(turns), temperature=0, max_tokens=1)
        if said["usage"]["prompt_tokens"] != length:
            raise ValueError(f"{length} tokens here, and in the engine {said['usage']}")
        return nmse(np.asarray(self._llm.last_logits), right)


def main() -> None:
    """Read the command line, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(7)
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "flash_attn": False}
    with Llama(demo_model_path(), mmproj=args.run / FILE, **options) as llm:
        verification = Verification(llm, args.run / "last.pt")
        vectors = [verification.vectors(draw_shape(rng)) for _ in range(20)]
        logits = [
            verification.logits(conversation(rng, lambda: draw_shape(rng), turns))
            for turns in (1, 2, 3)
            for _ in range(10)
        ]
    print(f"vectors: {max(vectors):.1e}, logits: {max(logits):.1e}")
    if max(*vectors, *logits) > MOST:
        raise SystemExit(f"more than {MOST}: PyTorch and the engine disagree")


if __name__ == "__main__":
    main()
