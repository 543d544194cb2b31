"""``python -m llama_cpp.server``: llama_py's server with the flags of llama-cpp-python."""

from __future__ import annotations

import argparse
import os
import sys

from llama_py.compat.llama_cpp.server.app import native_settings
from llama_py.compat.llama_cpp.server.cli import add_args_from_model, parse_model_from_args
from llama_py.compat.llama_cpp.server.settings import (
    ConfigFileSettings,
    ModelSettings,
    ServerSettings,
    Settings,
)

__all__ = ["main"]


def main() -> None:
    """Serve until Ctrl-C."""
    from llama_py.errors import LlamaError

    parser = argparse.ArgumentParser(description="Serve models over HTTP, by llama_py.")
    add_args_from_model(parser, Settings)
    parser.add_argument("--config_file", help="a JSON or YAML file with settings")
    args = parser.parse_args()
    try:
        path = os.environ.get("CONFIG_FILE", args.config_file)
        server: ServerSettings
        if path:
            server = found = ConfigFileSettings.read(path)
            models = found.models
        else:
            server = parse_model_from_args(ServerSettings, args)
            models = [parse_model_from_args(ModelSettings, args)]
        _serve(server, models)
    except (LlamaError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def _serve(server: ServerSettings, models: list[ModelSettings]) -> None:
    from llama_py.server.logs import log_to
    from llama_py.server.serve import check, serve

    settings = native_settings(server, models)
    check(settings)
    log_to(level="info")
    serve(settings, lambda where: print(f"llama_py serves at {', '.join(where)}", flush=True))


if __name__ == "__main__":
    main()
