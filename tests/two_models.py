"""A server of two models in a process of its own, for what may end one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENCE

__all__ = ["served", "survives"]

_TREE = Path(__file__).parents[1]


@asynccontextmanager
async def served(
    *models: tuple[str, str], **more: dict[str, Any]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that keeps all of these models loaded, for the program of a child.

    Args:
        models: the name and the file of each.
        more: options of the models of these names.
    """
    from llama_py.server.app import create_app
    from llama_py.server.config.settings import ModelSettings, Settings

    options = {"verbose": False, "n_ctx": 512, "n_threads": 1}
    settings = Settings(
        models=tuple(
            ModelSettings(name, path, options={**options, **more.get(name, {})})
            for name, path in models
        ),
        max_loaded=len(models),
    )
    app: Any = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1/v1", timeout=None
        ) as client,
    ):
        yield client


def survives(program: str, *arguments: str) -> list[str]:
    """The lines that a program prints, which has to come to its end.

    Args:
        program: Python, whose ``main()`` is a coroutine.
        arguments: ``sys.argv[1:]`` of it.
    """
    child = [sys.executable, "-c", f"{program}\nimport asyncio\nasyncio.run(main())", *arguments]
    done = subprocess.run(
        child, cwd=_TREE, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
