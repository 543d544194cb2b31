"""Where the files of a deployment are, and what is said in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from llama_py.server.config.settings import SETTINGS

__all__ = ["CLOSING", "DEPLOY", "DRAIN", "VARIABLES", "expressions", "read_yaml", "seconds"]

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {setting.variable: setting for setting in SETTINGS.options.values()}
DRAIN = SETTINGS.options["drain_seconds"].default()
#: Seconds that a server takes after draining, at most: last words, and writing what is kept.
CLOSING = 20


def read_yaml(name: str) -> Any:
    """The content of a file in YAML."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def seconds(text: str) -> int:
    """``"60s"``, ``"5m"`` or ``"1h"`` in seconds."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    assert found, text
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def expressions(dashboard: dict[str, Any]) -> dict[str, str]:
    """The expressions of a dashboard by panel and legend, with its variables filled in."""
    return {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$__rate_interval", "1m")
        .replace("$model", ".*")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
