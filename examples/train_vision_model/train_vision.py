"""Trains an encoder of pictures in front of the bundled model, which does not change.

    pip install torch numpy gguf scikit-learn .
    python train_vision.py RUN

It takes minutes on two cores; ``RUN/mmproj-demo-f16.gguf`` is the projector. A run that was
interrupted goes on where it was. Three things are learned, one after another:

* what to say to the language model, as vectors for each of the 26 things that a picture may show,
  so that it replies right to all questions;
* to see: the encoder learns to make these vectors of pictures;
* both together, through the language model.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digits import Digits
from drawing import NAMES, Shown, draw_shape
from encoder import CELLS, Encoder, export
from frozen import FrozenModel
from prompts import CELL, NOT, Batch, Prompts
from questions import conversation
from torch import Tensor, nn
from torch.nn import functional as F

from llama_py import demo_model_path
from llama_py.core.model import Model

FILE = "mmproj-demo-f16.gguf"
#: Steps between two checkpoints, and those in which the rate rises.
EVERY, RISING = 50, 50
#: How loud the noise is that is added to the vectors: the encoder will not make them exactly.
NOISE = 0.3
#: How much likelier the nearest thing is than the others.
SHARP = 10.0

Rng = np.random.Generator
Cells = Callable[[list[Shown]], Tensor]


class Words(nn.Module):
    """The vectors for what a picture may show. They begin as those of its name, over and over."""

    def __init__(self, embeddings: Tensor, prompts: Prompts) -> None:
        super().__init__()
        rows = []
        for name in NAMES:
            tokens = prompts.tokenize(name)
            rows.append(embeddings[(tokens * CELLS)[:CELLS]])
        table = torch.stack(rows)
        self.loudness = float(table.square().mean().sqrt())
        self.table = nn.Parameter(table + 0.1 * self.loudness * torch.randn_like(table))

    def forward(self, shown: list[Shown]) -> Tensor:
        """The vectors ``(n, cells, width)``."""
        return self.table[[NAMES.index(each.name) for each in shown]]


class Stage:
    """Steps with a rate that rises, and falls to zero."""

    def __init__(self, name: str, module: nn.Module, steps: int, rate: float) -> None:
        self.name, self.steps, self.step, self._rate = name, steps, 0, rate
        self._module = module
        self.optimizer = torch.optim.AdamW(
            module.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01
        )

    def follow(self, loss: Tensor) -> None:
        """One step down the loss."""
        falling = 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * min(1.0, (self.step + 1) / RISING) * falling
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1


class Training:
    """Learns from conversations and pictures, each of which occurs only once.

    Args:
        out: the folder of the checkpoint, from which it goes on, and of the projector.
        steps: of the three stages.
        size: conversations of a step, if they have one turn.
        half: compute the language model in BF16, for processors that have it.
    """

    def __init__(
        self, out: Path, steps: tuple[int, int, int], size: int, seed: int, half: bool
    ) -> None:
        path = Path(demo_model_path())
        vocab = Model(path).vocab
        self._prompts = Prompts(
            lambda text: vocab.tokenize(text, add_special=False, parse_special=True)
        )
        self._language = FrozenModel(path)
        self._digits = Digits()
        torch.manual_seed(seed)
        self._words = Words(self._language.embeddings, self._prompts)
        self._encoder = Encoder(self._language.width)
        self._stages = [
            Stage("words", self._words, steps[0], 3e-2 * self._words.loudness),
            Stage("seeing", self._encoder, steps[1], 1.5e-3),
            Stage("both", self._encoder, steps[2], 8e-4),
        ]
        self._out, self._size, self._seed, self._half = out, size, seed, half
        self._seconds = 0.0
        self._resume()

    def run(self) -> None:
        """Learn until the last step; print and save now and then."""
        learn = (self._learn_words, self._learn_to_see, self._learn_both)
        judged: tuple[Cells, ...] = (self._words, self._seen, self._seen)
        began, losses = time.monotonic(), list[float]()
        for number, stage in enumerate(self._stages):
            while stage.step < stage.steps:
                # Each step has its own generator: a run that was interrupted learns the same.
                rng = np.random.default_rng([self._seed, number, stage.step])
                torch.manual_seed(stage.step)
                loss = learn[number](rng)
                stage.follow(loss)
                losses.append(loss.item())
                if stage.step % EVERY == 0 or stage.step == stage.steps:
                    right = self._right(judged[number])
                    now = time.monotonic()
                    self._seconds, began = self._seconds + now - began, now
                    mean = sum(losses) / len(losses)
                    losses.clear()
                    self._save()
                    at = f"{stage.name} {stage.step:4} {self._seconds:4.0f} s"
                    print(f"{at}  loss {mean:.4f}  {right}", flush=True)

    # -- the stages -------------------------------------------------------------------------------

    def _learn_words(self, rng: Rng) -> Tensor:
        def noisy(shown: list[Shown]) -> Tensor:
            cells = self._words(shown)
            return cells + NOISE * self._words.loudness * torch.randn_like(cells)

        return F.cross_entropy(*self._predicted(self._batch(rng, self._size), noisy))

    def _learn_to_see(self, rng: Rng) -> Tensor:
        shown = [self._draw(rng) for _ in range(2 * self._size)]
        table, seen = self._words.table.detach(), self._seen(shown)
        which = torch.tensor([NAMES.index(each.name) for each in shown])
        # 0 where they are equal. Vectors between those of two things say neither, so the nearest
        # ones have to be those of the right thing, beside being close.
        far = (seen[:, None] - table).square().mean((2, 3)) / table.square().mean()
        return F.mse_loss(seen, table[which]) / table.square().mean() + F.cross_entropy(
            -SHARP * far, which
        )

    def _learn_both(self, rng: Rng) -> Tensor:
        return F.cross_entropy(*self._predicted(self._batch(rng, self._size), self._seen))

    def _seen(self, shown: list[Shown]) -> Tensor:
        pictures = torch.from_numpy(np.stack([each.picture for each in shown]))
        cells: Tensor = self._encoder(pictures)
        return cells

    def _draw(self, rng: Rng, *, held_back: bool = False) -> Shown:
        if rng.random() < 0.5:
            return draw_shape(rng)
        return self._digits.draw_held_back(rng) if held_back else self._digits.draw(rng)

    def _batch(self, rng: Rng, size: int, *, held_back: bool = False) -> Batch:
        turns = int(rng.choice((1, 2, 3), p=(0.6, 0.25, 0.15)))
        return self._prompts.batch(
            [
                conversation(rng, lambda: self._draw(rng, held_back=held_back), turns)
                for _ in range(size // turns)
            ]
        )

    def _predicted(self, batch: Batch, cells: Cells) -> tuple[Tensor, Tensor]:
        """The logits before each token that is learned, and these tokens."""
        x = self._language.embeddings[batch.tokens.clamp(min=0)]
        x = x.masked_scatter((batch.tokens == CELL)[..., None], cells(batch.shown).flatten(0, 1))
        learned = batch.targets != NOT
        with torch.autocast("cpu", torch.bfloat16, enabled=self._half):
            logits = self._language.logits(self._language.hidden(x)[learned])
        return logits.float(), batch.targets[learned]

    @torch.no_grad()
    def _right(self, cells: Cells) -> str:
        """Right replies about held-back pictures, by what was asked."""
        rng = np.random.default_rng([self._seed, 9])
        right, asked = Counter[str](), Counter[str]()
        for _ in range(6):
            batch = self._batch(rng, 72, held_back=True)
            logits, targets = self._predicted(batch, cells)
            hits = iter((logits.argmax(-1) == targets).tolist())
            for turn in batch.turns:
                asked[turn.kind] += 1
                right[turn.kind] += _all(hits, len(self._prompts.reply(turn)))
        return ", ".join(f"{kind} {right[kind] / asked[kind]:.0%}" for kind in sorted(asked))

    # -- the checkpoint ---------------------------------------------------------------------------

    def _save(self) -> None:
        state = {
            "words": self._words.state_dict(),
            "encoder": self._encoder.state_dict(),
            "optimizers": [stage.optimizer.state_dict() for stage in self._stages],
            "steps": [stage.step for stage in self._stages],
            "seconds": self._seconds,
        }
        part = self._out / "last.part"
        torch.save(state, part)
        part.replace(self._out / "last.pt")
        export(self._encoder, self._out / FILE)

    def _resume(self) -> None:
        path = self._out / "last.pt"
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self._words.load_state_dict(state["words"])
        self._encoder.load_state_dict(state["encoder"])
        self._seconds = state["seconds"]
        for stage, step, optimizer in zip(
            self._stages, state["steps"], state["optimizers"], strict=True
        ):
            stage.step = step
            stage.optimizer.load_state_dict(optimizer)


def _all(hits: Iterator[bool], count: int) -> bool:
    """Whether the next ones are all true; they are taken either way."""
    return False not in list(islice(hits, count))


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs=3, default=(1200, 3000, 3800))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    Training(args.out, tuple(args.steps), args.batch, args.seed, args.bf16).run()


if __name__ == "__main__":
    main()
