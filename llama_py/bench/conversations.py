"""Shared parts of the benchmarks of conversations: arguments, verifier and peer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, Protocol

from llama_py.bench.subject import (
    Verifier,
    add_model_arguments,
    clock_of,
    load,
    whole_context,
)

__all__ = [
    "Peer",
    "StartPeer",
    "add_conversation_arguments",
    "cells_of_one",
    "no_peer",
    "witnesses",
]

#: Tokens around a message and its reply, at most.
_MARKUP = 24


class Peer(Protocol):
    """Another library that has the same conversations, turn by turn."""

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """``reset``, or ``chat``, which gives the ``seconds`` and the ``text``."""


#: A peer for options and a context of this many tokens.
StartPeer = Callable[[argparse.Namespace, int], AbstractContextManager[Peer | None]]


def no_peer(_options: argparse.Namespace, _n_ctx: int) -> AbstractContextManager[None]:
    """Nobody beside this library."""
    return nullcontext()


def add_conversation_arguments(parser: argparse.ArgumentParser, turns: int) -> None:
    """Add the options for the model, and the sizes of messages."""
    add_model_arguments(parser)
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
def witnesses(
    options: argparse.Namespace, n_ctx: int, start_peer: StartPeer
) -> Iterator[tuple[Verifier, Peer | None]]:
    """The verifier of the logits, and the peer with a context of ``n_ctx`` if there is one."""
    alone = load(options, cells_of_one(options), n_seq_max=1)
    with (
        closing(Verifier(alone, clock_of(options))) as verifier,
        start_peer(options, n_ctx) as peer,
    ):
        yield verifier, peer
