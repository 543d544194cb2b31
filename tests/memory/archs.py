"""Reuse on every architecture that llama.cpp's ``test-llama-archs -o DIR`` can write.

    python -m tests.memory.archs DIR [--write docs/architectures.md] [--results FILE]
                                     [--only REGEX] [--jobs N]

Each model is loaded in a process of its own, so that one that aborts costs one row. A prompt is
evaluated, extended, diverged from, and brought back from a saved state and from the offload store,
once with room for three sequences (a divergence then is a fork) and once with room for one (it is
cut in place). After each call the logits at its last position and the four greedy tokens are
compared with those of an empty context that evaluated the same tokens with the same cuts.

Two further numbers say what an error is worth. *Sensitivity* is how much the logits change when one
token before the end is replaced: a model with sensitivity 0 would not notice a lost cell. *Noise*
is how much they change between two contexts, neither of which reused anything, when the same cells
only lie elsewhere. An error below the noise is not an error of reuse.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llama_py import Llama
from llama_py._native import llama_h as C
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.errors import LlamaError
from llama_py.params import ContextParams
from tests.memory.cuts import CutRecorder
from tests.memory.oracle import Oracle, Row, nmse

N_CTX = 512
#: Tokens of the first prompt, where the model has that many positions: past the cells of a window.
LONG_PROMPT = 330
N_MORE = 12
#: Prompts for sensitivity and noise.
N_MEASURED = 4
GREEDY = 4
TIMEOUT = 240.0
#: What is promised where rounding allows it.
EXACT = 1e-12
STEPS = ("extension", "divergence", "restore")


@dataclass
class Step:
    """The worst of the calls of one step.

    Attributes:
        error: NMSE of the logits.
        calls, reused: how many calls there were, and how many of them reused anything.
        tokens: the greedy tokens were the oracle's in all of them.
    """

    error: float = 0.0
    calls: int = 0
    reused: int = 0
    tokens: bool = True
    actions: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What a model's process found.

    Attributes:
        reason: why there is nothing to compare, or how it failed.
        failed: it failed.
    """

    architecture: str
    variant: str
    kind: str = ""
    steps: dict[str, Step] = field(default_factory=dict)
    sensitivity: float = math.nan
    noise: float = math.nan
    reason: str = ""
    failed: bool = False

    @property
    def right(self) -> bool:
        """Whether everything was as promised."""
        steps = self.steps.values()
        return not self.failed and all(s.tokens and s.error <= EXACT for s in steps)


class Sweep:
    """Operations on one model, each compared with the oracle."""

    def __init__(self, path: Path, outcome: Outcome, n_seq_max: int) -> None:
        self.outcome = outcome
        self.llm = Llama(
            str(path),
            n_ctx=N_CTX,
            n_ubatch=64,
            n_batch=128,
            n_seq_max=n_seq_max,
            n_threads=1,
            flash_attn=False,
            type_k=0,
            type_v=0,
        )
        outcome.kind = self.llm.runtime.loaded.cache.traits.kind.value
        self.oracle = Oracle(path, n_ctx=N_CTX)
        self.cuts = CutRecorder()
        self.cuts.watch(self.llm)
        self.draw = np.random.default_rng(7)
        room = self.llm.runtime.loaded.cache.limit - 6 * (N_MORE + GREEDY)
        self.prompt = self.tokens(min(LONG_PROMPT, room))

    def tokens(self, count: int) -> list[int]:
        """Random tokens."""
        drawn: list[int] = self.draw.integers(0, self.llm.n_vocab(), count).tolist()
        return drawn

    def call(self, step: str, prompt: Sequence[int]) -> list[int]:
        """Continue ``prompt``, compare, and return all tokens."""
        self.llm.create_completion([*prompt], temperature=0.0, max_tokens=GREEDY, ignore_eos=True)
        request = self.llm.runtime.last.record
        runs, _ = self.cuts.runs(request.tokens)
        expected, row = self.oracle.greedy(request.tokens, len(request.generated), runs)
        error = nmse(self.llm.last_logits, row)
        info = self.llm.cache_info
        result = self.outcome.steps.setdefault(step, Step())
        result.calls += 1
        result.reused += info["reused"] > 0
        result.tokens &= request.generated == expected
        result.error = max(result.error, error) if not math.isnan(error) else math.nan
        result.actions.append(f"{info['action']} {info['reused']}/{len(prompt)} {error:.1e}")
        return [*request.tokens, *request.generated]

    def run(self) -> None:
        """All steps."""
        whole = self.call("first", self.prompt)
        longer = self.call("extension", whole + self.tokens(N_MORE))
        for cut in (len(self.prompt) - 1, len(longer) - 3, len(self.prompt) // 2):
            self.call("divergence", longer[:cut] + self.tokens(N_MORE))
        last = self.call("extension", longer + self.tokens(N_MORE))
        state = self.llm.save_state()
        self.llm.reset()
        self.llm.load_state(state)
        kept = last[: state.n_tokens]
        self.call("restore", kept + self.tokens(N_MORE))

        def empty() -> None:
            while self.llm.runtime.loaded.cache.live.make_room():
                pass

        self.llm.runtime.loaded.driver.run(empty)
        self.call("restore", kept + self.tokens(N_MORE))

    def leave_training(self) -> None:
        """Go as far as the cache allows: an abort here is a limit that the traits do not know."""
        self.llm.reset()
        self.call("first", self.tokens(self.llm.runtime.loaded.cache.limit - GREEDY))

    def close(self) -> None:
        self.oracle.close()
        self.llm.close()


def examine(path: Path) -> Outcome:
    """Everything about one model, in this process."""
    architecture, _, variant = path.stem.rpartition("-")
    outcome = Outcome(architecture, variant)
    for n_seq_max in (3, 1):
        try:
            sweep = Sweep(path, outcome, n_seq_max)
        except LlamaError as error:
            outcome.reason = str(error).replace(str(path), "it")
            return outcome
        if not C.llama_get_memory(sweep.llm.runtime.loaded.context.pointer):
            outcome.kind, outcome.reason = (
                "",
                "cannot generate: a diffusion model, which has no memory",
            )
            sweep.close()
            return outcome
        sweep.run()
        if n_seq_max == 1:
            sweep.leave_training()
        sweep.close()
    outcome.sensitivity, outcome.noise = measure(path)
    return outcome


def measure(path: Path) -> tuple[float, float]:
    """Sensitivity and noise, of contexts that reuse nothing.

    Noise is the worst of some prompts that were evaluated in pieces, with cells of another sequence
    between them: the same numbers are summed in another order.
    """
    model = Model(path)
    context = Context(
        model,
        ContextParams(
            n_ctx=N_CTX,
            n_seq_max=2,
            n_threads=1,
            flash_attn=False,
            swa_full=True,
            type_k=0,
            type_v=0,
        ),
    )
    batch = Batch(context.n_batch)
    draw = np.random.default_rng(7)

    def evaluate(tokens: Sequence[int], position: int, sequence: int) -> Row:
        batch.set(tokens, position, sequence, [False] * (len(tokens) - 1) + [True])
        code = context.decode(batch)
        assert code == 0, code
        row: Row = context.logits(len(tokens) - 1).copy()
        return row

    noise, sensitivity = 0.0, math.inf
    for _ in range(N_MEASURED):
        tokens = draw.integers(0, model.vocab.n_tokens, 170).tolist()
        context.clear()
        plain = evaluate(tokens, 0, 0)
        context.clear()
        cut, begin = 0, 0
        for end in (*sorted(draw.integers(10, 150, 2).tolist()), len(tokens)):
            if end - cut > 1:
                row = evaluate(tokens[cut:end], cut, 0)
                evaluate(tokens[:40], begin, 1)
                cut, begin = end, begin + 40
        noise = max(noise, nmse(row, plain))
        context.clear()
        tokens[-20] = (tokens[-20] + 1) % model.vocab.n_tokens
        sensitivity = min(sensitivity, nmse(evaluate(tokens, 0, 0), plain))
    model.close()
    return sensitivity, noise


# --- the processes --------------------------------------------------------------------------------


def examine_apart(path: Path) -> Outcome:
    """Everything about one model, in a process that may abort or hang."""
    architecture, _, variant = path.stem.rpartition("-")
    command = [sys.executable, "-m", "tests.memory.archs", str(path), "--one"]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(architecture, variant, reason=f"over {TIMEOUT:.0f} s", failed=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        reason = f"ended with {done.returncode}: {tail}"
        return Outcome(architecture, variant, reason=reason, failed=True)
    return _read(lines[-1])


def show(outcome: Outcome) -> str:
    """One line for the terminal."""
    if outcome.reason:
        return f"{outcome.architecture} {outcome.variant}: {outcome.reason}"
    found = "; ".join(f"{name} {_number(step.error)}" for name, step in outcome.steps.items())
    verdict = "" if outcome.right else "  <<<"
    return f"{outcome.architecture} {outcome.variant} [{outcome.kind}] {found}{verdict}"


# --- the table ------------------------------------------------------------------------------------

_HEAD = """\
# Architectures

Reuse, checked on every architecture for which llama.cpp's own `test-llama-archs -o DIR` writes a
model. The models are small and have random weights, but a real graph and memory: {count} files
of {architectures} architectures. llama.cpp `{commit}`, CPU, flash attention off,
cells in F32.

| memory | models | bit-equal | NMSE ≤ 1e-12 | more (see below) | cannot generate |
| --- | --- | --- | --- | --- | --- |
{summary}

Each model went through three steps, with room for three sequences and again with room for one:

* **extension**: a prompt of up to {prompt} tokens, a reply, and then both of them with more
  tokens appended, twice;
* **divergence**: different tokens after the last token of the prompt, after most of the reply, and
  after half of the prompt;
* **restore**: `save_state`, `reset`, `load_state`, and more tokens; then the sequence is offloaded
  and continued with different tokens.

After each call, the logits at the last position, and the next four greedy tokens, are compared with
those of an empty context that evaluated the same tokens with the same cuts. A column contains the
largest normalised mean squared error (NMSE) of its calls; *0* means bit-equal. *Sensitivity* is the
smallest NMSE of the same comparison when one token, 20 before the end, is replaced ({measured}
prompts): a wrong or lost cell causes an error of about this size. *Noise* is the largest NMSE
between two contexts that reused nothing and differ only in where their cells lie in memory. Where
it is not 0, bit-equality is impossible, because the same numbers are summed in a different order.

"""

_TAIL = """
Made by `python -m tests.memory.archs DIR --write docs/architectures.md`, where `DIR` holds what
`test-llama-archs -s 1 -o DIR` wrote.
"""


def table(outcomes: Sequence[Outcome], commit: str) -> str:
    """The page of documentation."""
    names = {outcome.architecture for outcome in outcomes}
    page = _HEAD.format(
        count=len(outcomes),
        architectures=len(names),
        commit=commit[:12],
        summary=_summary(outcomes),
        prompt=LONG_PROMPT,
        measured=N_MEASURED,
    )
    page += "| architecture | memory | extension | divergence | restore | sensitivity | noise |\n"
    page += "| --- | --- | --- | --- | --- | --- | --- |\n"
    page += "".join(_row(outcome) for outcome in outcomes)
    return page + _notes(outcomes) + _TAIL


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for kind in sorted({outcome.kind for outcome in outcomes if outcome.kind}):
        counts = Counter(_class(outcome) for outcome in outcomes if outcome.kind == kind)
        cells = [kind, counts.total(), *(counts[name] for name in ("equal", "close", "more"))]
        rows.append("| " + " | ".join(map(str, cells)) + " | |")
    without = sum(1 for outcome in outcomes if not outcome.kind)
    if without:
        rows.append(f"| none | {without} | | | | {without} |")
    return "\n".join(rows)


def _class(outcome: Outcome) -> str:
    if outcome.failed or not outcome.right:
        return "more"
    return "equal" if all(step.error == 0 for step in outcome.steps.values()) else "close"


def _row(outcome: Outcome) -> str:
    name = f"{outcome.architecture} ({outcome.variant})"
    if outcome.reason:
        return f"| {name} | {outcome.kind or 'none'} | {outcome.reason} | | | | |\n"
    errors = [_cell(outcome.steps[step]) for step in STEPS]
    numbers = [_number(outcome.sensitivity), _number(outcome.noise)]
    return f"| {name} | {outcome.kind} | " + " | ".join([*errors, *numbers]) + " |\n"


def _cell(step: Step) -> str:
    return _number(step.error) + ("" if step.tokens else ", other tokens")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}"


def _notes(outcomes: Sequence[Outcome]) -> str:
    """What is known about those that are not as close as the others."""
    present = {outcome.architecture for outcome in outcomes if _class(outcome) == "more"}
    texts = [f"* {text}\n" for names, text in NOTES if present & set(names)]
    known = {name for names, _ in NOTES for name in names}
    texts += [f"* {name}: not understood yet.\n" for name in sorted(present - known)]
    return "\nWhere the error is above 1e-12:\n\n" + "".join(texts) if texts else ""


#: Architectures, and why their logits are not equal.
NOTES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("bloom", "gptneox", "mpt"),
        "bloom, gptneox, mpt: their GELU looks values up in a table of F16, where a sum that is "
        "1e-15 greater may round to the next entry; which prompts that hits is chance. Contexts "
        "that reuse nothing differ as much when their cells lie elsewhere: by up to 5e-9 (bloom, "
        "12 prompts), 2e-8 (gptneox, 60 prompts) and 1.4e-12 (mpt, the prompt that gave this "
        "error). The greedy tokens are the same.",
    ),
    (
        ("hrm_text",),
        "hrm_text runs the same layers several times over their own output, and rounding grows "
        "with each pass: contexts that reuse nothing, and differ only in where their cells lie, "
        "differ by more (the column *noise*). The greedy tokens are the same.",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if a result is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory.archs")
    parser.add_argument("path", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--results", type=Path, help="JSON lines; what is there is not done again")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(asdict(examine(options.path))))
        return 0
    paths = sorted(
        path for path in options.path.glob("*.gguf") if re.search(options.only, path.stem)
    )
    outcomes = examine_all(paths, options.jobs, options.results)
    if options.write is not None:
        from llama_py.version import LLAMA_CPP_COMMIT

        options.write.write_text(table(outcomes, LLAMA_CPP_COMMIT), "utf-8")
    return int(not all(outcome.right for outcome in outcomes))


def examine_all(paths: Sequence[Path], jobs: int, results: Path | None) -> list[Outcome]:
    """Examine the models that are not in ``results`` yet, and add them there."""
    known: dict[str, Outcome] = {}
    if results is not None and results.exists():
        for line in results.read_text("utf-8").splitlines():
            outcome = _read(line)
            known[f"{outcome.architecture}-{outcome.variant}"] = outcome
    missing = [path for path in paths if path.stem not in known]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(examine_apart, path): path for path in missing}
        for done in concurrent.futures.as_completed(running):
            outcome = known[running[done].stem] = done.result()
            print(show(outcome), flush=True)
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    return [known[path.stem] for path in paths]


def _read(line: str) -> Outcome:
    fields: dict[str, Any] = json.loads(line)
    fields["steps"] = {name: Step(**step) for name, step in fields["steps"].items()}
    return Outcome(**fields)


if __name__ == "__main__":
    sys.exit(main())
