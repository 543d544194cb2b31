"""``python -m tools.site``: build the site into ``site/``."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tools.site.pages import ROOT, SOURCES, assemble

__all__ = ["build", "main"]


def build(folder: Path, *, pages: Path = SOURCES) -> int:
    """Gather the pages and build the site; the exit status of MkDocs, to which warnings are errors.

    Args:
        folder: where it is written; what was there is gone.
        pages: where pages are gathered.
    """
    assemble(pages)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name, path in (("docs_dir", pages), ("site_dir", folder)):
        settings = re.sub(rf"(?m)^{name}: .*$", f"{name}: {json.dumps(str(path))}", settings)
    # The theme's authors announce its successor with every build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "-"]
    done = subprocess.run(command, cwd=ROOT, env=environment, input=settings, text=True)
    return done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Build it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--gather", action="store_true", help="only gather the pages")
    if parser.parse_args(arguments).gather:
        assemble()
        return 0
    return build(ROOT / "site")


if __name__ == "__main__":
    sys.exit(main())
