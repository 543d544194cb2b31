"""``python -m benchmarks NAME``: the benchmarks of the package, and those beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import models
from llama_py.bench import cli, subject

__all__ = ["BENCHMARKS", "COMMANDS", "main"]

BENCHMARKS = {
    **cli.BENCHMARKS,
    "chat-cache": "benchmarks.chat_cache",
    "sessions": "benchmarks.sessions",
    "shared-prefix": "benchmarks.shared_prefix",
    "throughput": "benchmarks.throughput",
    "hotpath": "benchmarks.hotpath",
    "stream-gaps": "benchmarks.stream_gaps",
    "models": "benchmarks.rounds",
    "loading": "benchmarks.loading",
    "kv-memory": "benchmarks.kv_memory",
    "speculative": "benchmarks.speculative",
    "drafts": "benchmarks.drafts",
    "serve": "benchmarks.serve",
    "embed": "benchmarks.embed",
    "media": "benchmarks.media",
    "replay": "benchmarks.replay",
    "savings": "benchmarks.savings",
    "cluster": "benchmarks.cluster",
    "cluster-simulation": "benchmarks.cluster_simulation",
    "isolation": "benchmarks.isolation",
}
COMMANDS = {
    "transcript": ("benchmarks.make_transcript", "Write a synthetic transcript of an agent."),
    "store": (
        "benchmarks.store",
        "What saving and restoring states costs beside a plain copy.",
    ),
    "make-model": (
        "benchmarks.models",
        "Write a model with random weights and a realistic shape.",
    ),
    "build-tools": (
        "benchmarks.build_tools",
        "Build llama-bench, llama-batched-bench, llama-server.",
    ),
}
#: Models in realistic shapes, where the package takes the bundled one.
MODELS = {"hotpath": "smollm2-135m:vocab=152064", "speculative": "smollm2-135m"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit code, as ``llama-py bench`` does."""
    subject.FINDERS[:] = [models.find_model]
    try:
        return cli.main(
            arguments,
            prog="python -m benchmarks",
            benchmarks=BENCHMARKS,
            commands=COMMANDS,
            models=MODELS,
        )
    except ModuleNotFoundError as error:
        needed = f"needs the module {error.name}; pip install 'llama-py[bench]'"
        print(f"python -m benchmarks: {needed}", file=sys.stderr)
        return 2
