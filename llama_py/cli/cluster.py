"""``llama-py cluster``: replicas of the server behind one address, on Ray Serve."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import Any

from llama_py.cli import options
from llama_py.errors import MissingPackageError

__all__ = ["add_parser"]

_EPILOG = """\
examples:
  llama-py cluster deploy                   three replicas of the bundled model, on this machine
  llama-py cluster deploy cluster.yaml
  llama-py cluster deploy cluster.yaml --check        is it right? (nothing is started)
  RAY_ADDRESS=10.0.0.1:6379 llama-py cluster deploy cluster.yaml     in a cluster that is there
  RAY_ADDRESS=10.0.0.1:6379 llama-py cluster stop

cluster.yaml:
  replicas: 2              # at least; see docs/cluster.md for the rest
  max_replicas: 6
  cpus: 4
  server:                  # whatever the file of llama-py serve has
    port: 8000
    session_dir: /shared/sessions
    model:
      - {path: model.gguf, n_ctx: 32768, n_seq_max: 8, n_threads: 4}
"""


def add_parser(commands: Any) -> None:
    """Add ``cluster`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "cluster",
        help="serve replicas of models behind one address, on Ray Serve",
        description="Replicas of the server behind one address, on Ray Serve. Needs the extra ray: "
        "pip install 'llama-py[ray]'.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", required=True, parser_class=options.Parser
    )
    deploy = actions.add_parser("deploy", help="start it, or change what runs")
    deploy.add_argument("config", nargs="?", type=Path, metavar="FILE", help="YAML")
    deploy.add_argument("--check", action="store_true", help="only say whether the file is right")
    deploy.set_defaults(run=_deploy)
    stop = actions.add_parser("stop", help="drain it and end it, in the cluster of RAY_ADDRESS")
    stop.add_argument("--name", default="llama-py", help="of the application (%(default)s)")
    stop.set_defaults(run=_stop)


def _deploy(parsed: argparse.Namespace) -> int:
    try:
        from llama_py.cluster.configuration import read_cluster
    except ModuleNotFoundError as error:
        raise _missing(error) from None

    settings = read_cluster(parsed.config)
    models = ", ".join(model.id for model in settings.server.models)
    if parsed.check:
        settings.check()
        print(f"the settings are right: {_count(settings)} of {models}")
        return 0
    from llama_py.cluster import app

    address = app.deploy(settings)
    print(f"llama-py serves {_count(settings)} of {models} at {address}", flush=True)
    if not app.is_elsewhere():  # it ends with this process
        _wait_for_signal()
        app.end(settings.name)
    return 0


def _missing(error: ModuleNotFoundError) -> MissingPackageError:
    package = (error.name or "").partition(".")[0]
    return MissingPackageError(
        f"a cluster needs the package {package}: pip install 'llama-py[ray]'"
    )


def _wait_for_signal() -> None:
    """Until somebody wants it to end; the second time, it ends at once."""
    told = threading.Event()

    def note(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    told.wait()


def _count(settings: Any) -> str:
    least, most = settings.replicas, settings.max_replicas
    if most is not None and most != least:
        return f"{least} to {most} replicas"
    return "1 replica" if least == 1 else f"{least} replicas"


def _stop(parsed: argparse.Namespace) -> int:
    from llama_py.cluster import app

    app.stop(parsed.name)
    return 0
