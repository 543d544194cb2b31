"""Shared parts of the benchmarks of conversations: arguments, verifier and peer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

from llama_py.bench.peers import Peer, add_peer_arguments, start_peer
from llama_py.bench.subject import (
    Verifier,
    add_model_arguments,
    clock_of,
    load,
    resolve_model,
    whole_context,
)

__all__ = ["add_conversation_arguments", "cells_of_one", "witnesses"]

#: Tokens around a message and its reply, at most.
_MARKUP = 24


def add_conversation_arguments(parser: argparse.ArgumentParser, turns: int) -> None:
    """Add the options for the model, the peer, and the sizes of messages."""
    add_model_arguments(parser)
    add_peer_arguments(parser)
    parser.add_argument("--turns", type=int, default=turns, metavar="N")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--system-tokens", type=int, default=400, metavar="N")
    parser.add_argument("--user-tokens", type=int, default=140, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=16, metavar="N")


def cells_of_one(options: argparse.Namespace) -> int:
    """The context size, in tokens, that holds one whole conversation."""
    turn = options.user_tokens + options.max_tokens + _MARKUP
    return whole_context(options.system_tokens + options.turns * turn + 64)


@contextmanager
def witnesses(options: argparse.Namespace, n_ctx: int) -> Iterator[tuple[Verifier, Peer | None]]:
    """The verifier of the logits, and the peer with a context of ``n_ctx`` if there is one."""
    alone = load(options, cells_of_one(options), n_seq_max=1)
    with (
        closing(Verifier(alone, clock_of(options))) as verifier,
        start_peer(options, resolve_model(options.model), n_ctx) or nullcontext() as peer,
    ):
        yield verifier, peer
