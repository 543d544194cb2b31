"""Of the package, and beside llama-cpp-python with ``--peer-python``."""

from __future__ import annotations

import argparse

from benchmarks.peers import add_peer_arguments, start_peer
from llama_py.bench import sessions
from llama_py.bench.report import Report

__all__ = ["add_arguments", "run"]

__doc__ = sessions.__doc__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sessions.add_arguments(parser)
    add_peer_arguments(parser)


def run(options: argparse.Namespace) -> Report:
    return sessions.run(options, start_peer)
