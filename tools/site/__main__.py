"""``python -m tools.site``: build the site into ``site/``. With ``check``, look at it as well."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tools.site.pages import ROOT, assemble


def main(arguments: list[str] | None = None) -> int:
    """Gather the pages and build the site; the exit status of MkDocs, to which warnings are errors."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--serve", metavar="ADDRESS", help="serve it in place of writing it")
    given = parser.parse_args(arguments)
    assemble()
    command = ["serve", "--dev-addr", given.serve] if given.serve else ["build"]
    # The theme's authors announce its successor with every build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    program = [sys.executable, "-m", "mkdocs", *command, "--strict"]
    return subprocess.run(program, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
