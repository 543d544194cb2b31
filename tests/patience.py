"""How long tests wait for what happens at once on an idle machine."""

from __future__ import annotations

__all__ = ["PATIENCE"]

#: Seconds. A machine that is busy with other things may need that long; nothing waits longer than
#: it has to, and no test measures with it.
PATIENCE = 240.0
