"""``llama-py serve`` in place of llama-server, for llama.cpp's tests.

Their ``ServerProcess`` is a list of attributes that become flags of llama-server. Here they become
our flags and settings, models that they would download become those of
``tests.conformance.models``, and ``llama-py serve`` runs in a process that was forked from one that
has imported the package already: a start takes a fraction of a second.

What has no counterpart is left out: a test that needs it fails, and has a row in
docs/llama-server.md.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chat.families import template_folder
from tests.conformance import models

__all__ = ["ChildServer", "start", "stop"]

#: Seconds that a server has to start or to stop on a machine that does other things.
_PATIENCE = 240.0

#: Their attribute, and the setting of ours that means the same.
_SETTINGS = {
    "server_port": "port",
    "server_host": "host",
    "models_max": "max_loaded",
    "sleep_idle_seconds": "model_idle_seconds",
}

#: The same for the options of a model.
_OPTIONS = {
    "n_threads": "n_threads",
    "n_ctx": "n_ctx",
    "n_batch": "n_batch",
    "n_ubatch": "n_ubatch",
    "n_slots": "n_seq_max",
    "ctk": "type_k",
    "ctv": "type_v",
    "pooling": "pooling_type",
}

#: The same for what both have as a flag of the command line.
_FLAGS = {
    "temperature": "--temp",
    "seed": "--seed",
    "n_predict": "--n-predict",
    "reasoning": "--reasoning",
}

#: Their names of templates, and ours.
_FORMATS = {"chatml": "chatml", "llama3": "llama-3"}

#: Parts of the names of models that are nothing without their template, and its file.
_TEMPLATES = {"DeepSeek-R1": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"}

_ROUTER_MODELS = (
    "ggml-org/tinygemma3-GGUF:Q8_0",
    "ggml-org/test-model-stories260K:F32",
    "ggml-org/test-model-stories260K-infill:F32",
)


# ---- what is asked for -------------------------------------------------------------------------


def local_model(asked: Any) -> Path:
    """The model of ours for what this server would download."""
    name = f"{asked.model_hf_repo} {asked.model_hf_file} {asked.model_file}"
    if "bert" in name:
        return models.bert()
    if "rerank" in name:
        return models.bert(head=1)
    if "split" in name:
        return models.split_stories()
    return models.stories()


def configuration(asked: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Settings of our server, and a table for each model."""
    settings: dict[str, Any] = {"drain_seconds": 1, "expose_prompts": True, "log_level": "debug"}
    settings["metrics"] = bool(asked.server_metrics)
    for theirs, ours in _SETTINGS.items():
        value = getattr(asked, theirs)
        if value is not None:
            settings[ours] = value
    if asked.models_max is None:
        settings["max_loaded"] = 4
    if asked.cors_origins:
        settings["cors_origins"] = [asked.cors_origins]
    if asked.slot_save_path:  # below the folder of their tests, and not of the file of settings
        settings["slot_dir"] = str(Path(asked.slot_save_path).resolve())
    settings["overflow_status"] = 400
    return settings, [
        {"path": str(path), **names, **options(asked)} for path, names in offered(asked)
    ]


def offered(asked: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each model with its names."""
    if asked.model_hf_repo or asked.model_file:
        # llama-server sorts the names, and the first one is the id.
        names = sorted((asked.model_alias or "default").split(","))
        yield local_model(asked), {"id": names[0], "aliases": names[1:]}
    else:
        for number, name in enumerate(_ROUTER_MODELS):
            yield models.stories(5 + number), {"id": name}


def options(asked: Any) -> dict[str, Any]:
    """Arguments of ``Llama``."""
    given: dict[str, Any] = {"n_threads": 2}
    for theirs, ours in _OPTIONS.items():
        value = getattr(asked, theirs)
        if value is not None:
            given[ours] = value
    for part, name in _TEMPLATES.items():
        if part in f"{asked.model_hf_repo}":
            given["chat_template"] = str(template_folder() / f"{name}.jinja")
    given["kv_unified"] = bool(asked.kv_unified) or asked.n_slots == 1
    if asked.chat_template_file:
        given["chat_template"] = str(Path(asked.chat_template_file).resolve())
    elif asked.chat_template:
        name = asked.chat_template
        given.update({"chat_format": _FORMATS[name]} if name in _FORMATS else _template(name))
    if asked.fa in ("on", "off"):
        given["flash_attn"] = asked.fa == "on"
    if asked.model_draft or asked.model_draft_hf_repo:
        given["speculative"] = f"draft={models.stories()}"
    if asked.lora_files:
        given["lora_path"] = str(models.lora())
    if asked.cache_ram is not None:
        given["parking_bytes"] = asked.cache_ram << 20
    return given


def _template(text: str) -> dict[str, Any]:
    """What is not a name is a template: ours are told by their braces."""
    return {} if text.replace("-", "").isalnum() else {"chat_template": text + "{# #}"}


def arguments(asked: Any, folder: Path) -> list[str]:
    """The command line of ``llama-py serve``, with a configuration file in this folder."""
    settings, tables = configuration(asked)
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
    for table in tables:
        lines += ["", "[[model]]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    file = folder / "server.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["--config", str(file)]
    for theirs, flag in _FLAGS.items():
        value = getattr(asked, theirs)
        if value not in (None, -1):
            words += [flag, str(value)]
    if asked.no_ui:
        words += ["--no-ui"]
    if asked.api_key:
        words += ["--api-key", asked.api_key]
    return words


def _toml(value: Any) -> str:
    """JSON's spelling of texts, numbers, truth and lists is TOML's as well."""
    return json.dumps(value)


# ---- processes ---------------------------------------------------------------------------------


class ChildServer:
    """A process that serves; has the methods of ``subprocess.Popen`` that their tests use."""

    def __init__(self, words: list[str], log: str | None) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:
            context.set_forkserver_preload(
                [
                    "llama_py.cli.serve",
                    "llama_py.server.serve",
                    "llama_py.server.config.configuration",
                ]
            )
        self._child = context.Process(target=_serve, args=(words, dict(os.environ), log))
        self._child.start()

    @property
    def pid(self) -> int:
        return int(self._child.pid)

    @property
    def returncode(self) -> int | None:
        code = self._child.exitcode
        return None if code is None else int(code)

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("llama-py serve", timeout or 0)
        return self.returncode


def _serve(words: list[str], environment: dict[str, str], log: str | None) -> None:
    """Run ``llama-py serve`` in this process."""
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        with Path(log).open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    from llama_py.cli import main

    sys.exit(main(["serve", *words]))


def start(asked: Any) -> None:
    """Start what this ``ServerProcess`` asks for, and wait until it is ready."""
    if "server_port" not in vars(asked):  # one that starts again keeps its port
        asked.server_port = _free_port()
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    asked.own_log = asked.log_path or str(folder / "log.txt")
    asked.process = ChildServer(arguments(asked, folder), asked.own_log)
    host = asked.server_host.split(",")[0]
    url = f"http://{host}:{asked.server_port}/health"
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if asked.process.poll() is not None:
            raise RuntimeError(f"the server ended: {_last_line(asked.own_log)}")
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(url, timeout=_PATIENCE) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.02)
    raise TimeoutError(f"the server did not start within {_PATIENCE:.0f} seconds")


def stop(asked: Any) -> None:
    """End the process."""
    process: ChildServer | None = asked.process
    if process is None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)
    asked.process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_line(log: str) -> str:
    lines = Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
