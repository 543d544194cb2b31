"""Which browser there is, and how it is started."""

from __future__ import annotations

import os
import shutil

__all__ = ["ARGUMENTS", "chromium"]

#: It is to draw pages, and to ask nothing of anybody.
ARGUMENTS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Path of the machine's own Chromium; ``LLAMA_PY_CHROMIUM`` names another one."""
    given = os.environ.get("LLAMA_PY_CHROMIUM")
    return given or next(filter(None, map(shutil.which, _NAMES)), None)
