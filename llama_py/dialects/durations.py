"""``seconds_of``: ``keep_alive``, as Ollama's clients and Go write durations."""

from __future__ import annotations

import math
import re
from typing import Any

from llama_py.dialects.fields import wrong_type, wrong_value
from llama_py.errors import shown

__all__ = ["seconds_of"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Seconds that are for ever.
_EVER = 1e9
_DURATION = re.compile(rf"([-+]?)((?:\d+(?:\.\d*)?(?:{'|'.join(_UNITS)}))+)")


def seconds_of(keep_alive: Any) -> float | None:
    """How long a model is to stay in memory when it is idle; None: for ever.

    Raises:
        RequestError: it is neither a number of seconds nor a duration such as ``"10m"``.
    """
    if isinstance(keep_alive, bool) or not isinstance(keep_alive, (int, float, str)):
        raise wrong_type("keep_alive", "seconds or a duration such as '10m'", keep_alive)
    seconds = _seconds(keep_alive)
    if math.isnan(seconds):
        raise wrong_value("keep_alive", f"is {shown(keep_alive)}; expected seconds, or '10m'")
    return seconds if 0 <= seconds <= _EVER else None


def _seconds(given: float | str) -> float:
    """NaN for a text that says no duration."""
    try:
        return float(given)
    except OverflowError:
        return math.inf
    except ValueError:
        found = _DURATION.fullmatch(str(given).strip())
    if found is None:
        return math.nan
    pairs = re.findall(rf"([\d.]+)({'|'.join(_UNITS)})", found[2])
    return (-1 if found[1] == "-" else 1) * sum(float(each) * _UNITS[unit] for each, unit in pairs)
