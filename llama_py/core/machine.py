"""The cores and the memory that this process may use.

A container sees the whole machine: ``os.cpu_count()`` and ``sysconf`` know nothing of its limits,
which are in files of the control groups it belongs to (both versions of them, and those of all
groups above).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_bytes", "usable_cores"]

#: The first version writes "no limit" as the largest number that is a multiple of a page.
_NO_LIMIT = 1 << 60


def usable_cores(root: Path = Path("/"), allowed: set[int] | None = None) -> int:
    """Physical cores that this process may keep busy, at least one.

    Those that it may run on (``taskset``, cpusets), hyper-threads of one core counted once because
    they do not help matrix products, and not more than a container's CPU quota pays for.

    Args:
        root: where ``/proc`` and ``/sys`` are.
        allowed: the CPUs that it may run on; by default, this process is asked.
    """
    cores = _cores(root, _allowed() if allowed is None else allowed)
    quota = min(_cpu_quotas(root), default=math.inf)
    return max(1, min(cores, math.floor(quota) if quota < cores else cores))


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or of the container if it has a limit."""
    return min([_physical_memory(), *_memory_limits(root)])


# -- the machine -----------------------------------------------------------------------------------


def _allowed() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS and Windows
        return set()


def _cores(root: Path, allowed: set[int]) -> int:
    if not allowed:
        return max(1, (os.cpu_count() or 2) // 2)
    siblings = set()
    for cpu in allowed:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        text = _read(path)
        if text is None:
            return len(allowed)
        siblings.add(text)
    return len(siblings)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 8 << 30


# -- control groups --------------------------------------------------------------------------------


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Limits of CPU time, in CPUs."""
    for folder in _groups(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        both = _read(folder / "cpu.max")
        if both is not None:
            quota, _, period = both.partition(" ")
        numbers = _number(quota), _number(period)
        if numbers[0] and numbers[1]:  # "max" and -1 are no limit
            yield numbers[0] / numbers[1]


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_read(folder / name))
            if 0 < limit < _NO_LIMIT:
                yield limit


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups of this process that limit ``controller``.

    A container may not see the path that it has on the host: its own group is at the top then.
    """
    mounted = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            tops = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            tops = [mounted / controllers, mounted / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in dict.fromkeys(tops):
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _number(text: str | None) -> int:
    """A count in a file; 0 for what is no number, or is no limit."""
    return int(text) if text is not None and text.isdigit() else 0
