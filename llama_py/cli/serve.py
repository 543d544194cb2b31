"""``llama-py serve``: the models of this machine behind HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.cli import options
from llama_py.cli.elsewhere import LLAMA_SERVER, with_aliases
from llama_py.errors import MissingPackageError
from llama_py.options import LOAD

if TYPE_CHECKING:
    from llama_py.server.config.configuration import Configuration
    from llama_py.server.config.settings import Settings

__all__ = ["add_parser"]

_EPILOG = """\
What follows --print-config can also be set in the file of --config (port = 9000) and in the
environment (LLAMA_PY_PORT=9000). Command-line options override environment variables.

examples:
  llama-py serve                                 the bundled model at http://127.0.0.1:8080
  llama-py serve model.gguf -c 32768 --parallel 4
  LLAMA_PY_API_KEY=secret llama-py serve model.gguf --host 0.0.0.0
  llama-py serve model.gguf --host 127.0.0.1,::1
  llama-py serve --config server.toml --check    is it right? (nothing is loaded)
"""


def add_parser(commands: Any) -> None:
    """Add ``serve`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "serve",
        usage="llama-py serve [MODEL] [options]",
        help="serve models over HTTP (the APIs of OpenAI, Anthropic and Ollama)",
        description="Serve models over HTTP, in the forms of the APIs of OpenAI, Anthropic, "
        "Ollama and llama-server. Without a model, the bundled one is served.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.elsewhere = LLAMA_SERVER
    parser.add_argument("--config", metavar="FILE", type=Path, help="read settings from this file")
    parser.add_argument("--check", action="store_true", help="validate the settings and exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print all settings and where they come from, without keys, and exit",
    )
    _add_model(parser)
    _add_settings(parser)
    parser.set_defaults(run=_run)


# ---- the options -------------------------------------------------------------------------------


def _add_model(parser: argparse.ArgumentParser) -> None:
    from llama_py.server.config.model_options import MODEL_FLAGS, MODEL_OPTIONS

    group = parser.add_argument_group("model", "How every model is loaded.")
    which = group.add_mutually_exclusive_group()
    which.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file")
    which.add_argument("-m", "--model", dest="model_flag", metavar="PATH", help="the same")
    which.add_argument("--hf", metavar="REPO[:QUANT]", help="download from the Hugging Face hub")
    for name, flag in MODEL_FLAGS.items():
        option = MODEL_OPTIONS[name]
        kind: dict[str, Any] = {"action": "store_true", "default": None}
        if flag.metavar is not None:
            read = str if name == "chat_template" else options.argument_type(option)
            kind = {"metavar": flag.metavar, "type": read}
        shown = flag.help or options.help_of(option, LOAD)
        group.add_argument(*with_aliases(*flag.flags), dest=f"model_{name}", help=shown, **kind)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    from llama_py.server.config.settings import GROUPS, SETTINGS, Access

    for group in GROUPS:
        section = parser.add_argument_group(group.__name__.lower(), group.__doc__)
        if group is Access:
            section.add_argument(
                "--api-key",
                dest="api_keys",
                metavar="KEY",
                action="append",
                help="who knows it may call; may be repeated (others see it in the list of "
                "processes: better use LLAMA_PY_API_KEY or --api-key-file)",
            )
        for name in group.__annotations__:
            setting = SETTINGS.options[name]
            flag = setting.flag
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
            if flag.metavar is not None:
                kind = {"metavar": flag.metavar, "type": options.argument_type(setting)}
            default = setting.default()
            shown = ",".join(default) if isinstance(default, tuple) else default
            section.add_argument(
                *with_aliases(*flag.flags),
                dest=f"set_{name}",
                default=None,
                help=options.meaning_of(setting) + (f" (default: {shown})" if shown else ""),
                **kind,
            )


# ---- what is made of them ----------------------------------------------------------------------


def _run(parsed: argparse.Namespace) -> int:
    configuration = _configuration(parsed)
    if parsed.print_config:
        from llama_py.server.config.configuration import to_toml

        print(to_toml(configuration), end="")
        return 0
    try:
        from llama_py.server.logs import log_to
        from llama_py.server.serve import check, serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise MissingPackageError(
            f"the server needs the package {package}: pip install 'llama-py[server]'"
        ) from None
    settings = configuration.settings
    check(settings)
    if parsed.check:
        models = ", ".join(model.id for model in settings.models)
        port = f", port {settings.port}" if settings.network_hosts else ""
        print(f"the settings are right: {models} at {', '.join(settings.addresses)}{port}")
        return 0
    log_to(level=settings.log_level)
    serve(settings, lambda addresses: _announce(addresses, settings))
    return 0


def _configuration(parsed: argparse.Namespace) -> Configuration:
    from llama_py.demo import demo_model_path
    from llama_py.server.config.configuration import Given, read_configuration, with_files
    from llama_py.server.config.model_options import MODEL_FLAGS
    from llama_py.server.config.settings import SETTINGS

    given = vars(parsed)
    chosen = {name: given[f"set_{name}"] for name in SETTINGS.options}
    model = parsed.model or parsed.model_flag
    if parsed.hf is not None:
        model = f"hf:{parsed.hf}"
    values = {name: given[f"model_{name}"] for name in MODEL_FLAGS}
    if values["chat_template"] is not None:
        values["chat_template"] = options.read_template(values["chat_template"], "--chat-template")
    found = read_configuration(
        Given(
            config=parsed.config,
            model=model,
            api_keys=tuple(parsed.api_keys or ()),
            settings={name: value for name, value in chosen.items() if value is not None},
            model_options={name: value for name, value in values.items() if value is not None},
        ),
        os.environ,
        demo_model_path,
    )
    return with_files(found, options.located)


def _announce(addresses: Sequence[str], settings: Settings) -> None:
    models = ", ".join(model.id for model in settings.models)
    print(f"llama-py serves {models} at {', '.join(addresses)}", flush=True)
    if not sys.stdout.isatty() and not sys.stderr.isatty():
        return
    if not settings.network_hosts:
        where = f"--unix-socket {addresses[0].partition(':')[2]} http://localhost"
        print(f"\n  curl {where}/v1/models\n", flush=True)
        return
    address = next(each for each in addresses if not each.startswith("unix:"))
    key = "" if not settings.api_keys else " -H 'Authorization: Bearer KEY'"
    body = '{"messages": [{"role": "user", "content": "What is 2 + 3?"}]}'
    page = f"\n  chat page            {address}/" if settings.ui else ""
    print(
        f"""{page}
  OpenAI's clients     base_url={address}/v1
  Anthropic's clients  base_url={address}

  curl {address}/v1/chat/completions{key} \\
    -H 'Content-Type: application/json' \\
    -d '{body}'

Ctrl-C stops.""",
        flush=True,
    )
