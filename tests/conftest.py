"""Settings of every test: no backtrace children, tiny models from one cache, quiet threads."""

from __future__ import annotations

import os

# Children that a debugger spawns for a backtrace can hang an aborting process.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
