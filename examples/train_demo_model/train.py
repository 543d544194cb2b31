"""Trains one demonstration model on generated dialogues.

Owns: the optimizers, the schedule, the checks while training and the checkpoints. Skills
whose held-out replies are still wrong get a larger share of the dialogues.

    python train.py --arch llama --tokenizer TOKENIZER.json --out RUN --steps 9000
    python train.py ... --minutes 45        # decays towards a time instead of a step
    python train.py ... --resume            # goes on from RUN/last.pt
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import data
import dialogues
import model as models
import torch
from muon import Muon
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

CHECK_EVERY = 400
CHECKED = 32


class Schedule:
    """Progress from 0 to 1 (by steps or by time) and the learning rate's factor."""

    def __init__(self, steps: int, minutes: float, warmup: int = 60) -> None:
        self.steps, self.minutes, self.warmup = steps, minutes, warmup
        self.started = time.monotonic()
        self.spent_before = 0.0

    def spent(self) -> float:
        """Minutes trained, earlier runs included."""
        return self.spent_before + (time.monotonic() - self.started) / 60

    def progress(self, step: int) -> float:
        """How much of the training is over."""
        return step / self.steps if self.steps else self.spent() / self.minutes

    def factor(self, step: int) -> float:
        """Warm up, hold, then fall linearly over the last 45 %."""
        falling = min(1.0, max(0.0, (1.0 - self.progress(step)) / 0.45))
        return min(1.0, (step + 1) / self.warmup) * max(0.01, falling)


def loss_of(network: models.Transformer, batch: data.Batch) -> Tensor:
    """Cross-entropy on the marked tokens only."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network.hidden(batch.tokens).flatten(0, 1)
        targets = batch.targets.flatten()
        marked = (targets != data.IGNORED).nonzero().flatten()
        # A multiple of 256 rows: few different shapes. The first token is never marked.
        marked = F.pad(marked, (0, -len(marked) % 256))
        logits = F.linear(hidden[marked], network.embed.weight)
    return F.cross_entropy(logits.float(), targets[marked], ignore_index=data.IGNORED)


class Checker:
    """Held-out replies, checked with the reference reply fed in.

    A reply whose every token is the most likely one is what greedy decoding writes.
    """

    def __init__(self, encoder: data.Encoder, count: int) -> None:
        self.rows: dict[str, list[data.Row]] = {}
        for skill in dialogues.SKILLS:
            self.rows[skill] = []
            for dialogue in dialogues.held_out(11, skill, count):
                text = dialogues.render(dialogue.messages, dialogue.tools)
                wanted = [False] * (len(dialogue.labels) - 1) + [True]
                self.rows[skill].append(encoder.with_targets(text, wanted))

    @torch.no_grad()
    def exact(self, network: models.Transformer) -> dict[str, float]:
        """The share of exact replies for each skill."""
        shares = {}
        for skill, rows in self.rows.items():
            right = 0
            ordered = sorted(rows, key=lambda row: len(row[0]))
            for start in range(0, len(rows), 8):
                batch = data.pad(ordered[start : start + 8])
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    hidden = network.hidden(batch.tokens)
                    guesses = F.linear(hidden, network.embed.weight).argmax(-1)
                fine = (guesses == batch.targets) | (batch.targets == data.IGNORED)
                right += int(fine.all(1).sum())
            shares[skill] = right / len(rows)
        return shares


def optimizers(network: models.Transformer) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in network.named_parameters() if p.ndim == 1 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon(matrices, lr=0.01, weight_decay=0.02), adam]


class Training:
    """One run: network, its average, optimizers and where it writes to."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        tokenizer = Tokenizer.from_file(args.tokenizer)
        self.encoder = data.Encoder(tokenizer)
        self.cfg = models.config(args.arch, tokenizer.get_vocab_size())
        self.network = models.Transformer(self.cfg)
        self.average = models.Transformer(self.cfg)
        self.average.load_state_dict(self.network.state_dict())
        self.optimizers = optimizers(self.network)
        self.rates = [args.rate * o.param_groups[0]["lr"] for o in self.optimizers]
        self.schedule = Schedule(args.steps, args.minutes)
        self.needs = dict.fromkeys(dialogues.SKILLS, 1.0)
        self.weights = dict(self.needs)
        self._weigh()
        self.step = self.seen = 0
        if args.resume:
            self._resume()

    def _resume(self) -> None:
        saved: dict[str, Any] = torch.load(self.out / "last.pt", weights_only=True)
        self.network.load_state_dict(saved["raw"])
        self.average.load_state_dict(saved["model"])
        states = saved["optimizers"] or []  # none after a warm start
        for optimizer, state in zip(self.optimizers, states, strict=False):
            optimizer.load_state_dict(state)
        self.step, self.seen = saved["step"], saved["seen"]
        self.schedule.spent_before = saved["minutes"]
        self.needs.update(saved["weights"])
        self._weigh()

    def _weigh(self) -> None:
        """Set the weights that the dialogues are drawn with."""
        for skill, need in self.needs.items():
            self.weights[skill] = need * (self.args.tools if "tool" in skill else 1.0)

    def save(self) -> None:
        """Write the checkpoint which both export and resume read."""
        state = {
            "config": asdict(self.cfg),
            "model": self.average.state_dict(),
            "raw": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seen": self.seen,
            "minutes": self.schedule.spent(),
            "weights": self.needs,
        }
        torch.save(state, self.out / "new.pt")
        (self.out / "new.pt").replace(self.out / "last.pt")

    def update(self, batch: data.Batch) -> float:
        """One optimizer step."""
        loss = loss_of(self.network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        factor = self.schedule.factor(self.step)
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(0.995, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            averaged: list[Tensor] = list(self.average.parameters())
            raw: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(averaged, raw, 1.0 - keep)
        self.step, self.seen = self.step + 1, self.seen + batch.tokens.numel()
        return float(loss.detach())

    def check(self, checker: Checker, loss: float) -> None:
        """Print how each skill does and give the weak ones more dialogues."""
        shares = checker.exact(self.average)
        for skill, share in shares.items():
            self.needs[skill] = 0.25 + 3.0 * (1.0 - share)
        self._weigh()
        speed = self.seen / max(self.schedule.spent() * 60, 1e-9)
        listed = " ".join(f"{skill}={100 * share:.0f}" for skill, share in shares.items())
        head = f"step {self.step} {self.schedule.spent():.1f} min loss {loss:.4f} {speed:.0f} t/s"
        print(f"{head} | {listed}", flush=True)
        self.save()

    def run(self) -> None:
        """Train to the end of the schedule."""
        checker = Checker(self.encoder, CHECKED)
        seed = self.args.seed * 1000003 + self.step
        loss = 0.0
        for batch in data.batches(self.encoder, seed, self.weights, self.args.batch):
            value = self.update(batch)
            loss = value if not loss else 0.98 * loss + 0.02 * value
            over = self.schedule.progress(self.step) >= 1.0
            if over or self.step % CHECK_EVERY == 0:
                self.check(checker, loss)
            if over:
                return


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=("llama", "gemma3"), required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--batch", type=int, default=4096, help="tokens for each step")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--tools", type=float, default=1.0, help="factor on dialogues with tools")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    Training(args).run()


if __name__ == "__main__":
    main()
