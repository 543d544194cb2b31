"""What docs/anthropic.md tells people to run does run, as it is written."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.server.serving import Server

PAGE = Path(__file__).parents[2] / "docs" / "anthropic.md"
ADDRESS = "http://127.0.0.1:8080"


def blocks(kind: str, server: Server) -> list[str]:
    """The blocks of a kind, for the address of a server."""
    text = PAGE.read_text(encoding="utf-8").replace(ADDRESS, server.url)
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_blocks_of_python(server: Server) -> None:
    printed, names = io.StringIO(), dict[str, object]()
    with contextlib.redirect_stdout(printed):
        for block in blocks("python", server):
            exec(block, names)  # as a reader would, one after the other
    client = names["client"]
    client.close()  # type: ignore[attr-defined]
    text = printed.getvalue()
    assert "2 + 3 = 5" in text
    assert "tool_use" in text
    assert "MessageTokensCount(input_tokens=" in text


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_command(server: Server) -> None:
    (command,) = [block for block in blocks("console", server) if "$ curl" in block]
    shell = ["sh", "-c", command.replace("$ curl", "curl -sS")]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert '"type":"message"' in done.stdout, done.stdout + done.stderr
