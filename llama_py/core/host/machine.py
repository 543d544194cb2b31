"""The cores and the memory that this process may use.

A container sees the whole machine: ``os.cpu_count()`` and ``sysconf`` know nothing of its limits,
which are in files of the control groups it belongs to (both versions of them, and those of all
groups above).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "addresses_left",
    "allowed_cpus",
    "available_bytes",
    "memory_bytes",
    "memory_left",
    "own_memory",
    "system_left",
    "unwritten_bytes",
    "usable_cores",
]

#: The first version writes "no limit" as the largest number that is a multiple of a page.
_NO_LIMIT = 1 << 60
#: Files with the most memory that a group may have, and with what it has.
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def usable_cores(root: Path = Path("/"), allowed: set[int] | None = None) -> int:
    """Physical cores that this process may keep busy, at least one.

    Those that it may run on (``taskset``, cpusets), hyper-threads of one core counted once because
    they do not help matrix products, and not more than a container's CPU quota pays for.

    Args:
        root: where ``/proc`` and ``/sys`` are.
        allowed: the CPUs that it may run on; by default, this process is asked.
    """
    cores = _cores(root, allowed_cpus() if allowed is None else allowed)
    quota = min(_cpu_quotas(root), default=math.inf)
    return max(1, min(cores, math.floor(quota) if quota < cores else cores))


def allowed_cpus() -> set[int]:
    """The CPUs that this process may run on; empty where the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS and Windows
        return set()


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or of the container if it has a limit."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        physical = 8 << 30
    return min([physical, *(limit for _, limit, _ in _memory_limits(root))])


def system_left(root: Path = Path("/")) -> int:
    """Memory that the system could give to a process now; quick to ask.

    Where the system does not tell (outside of Linux), that is all of ``memory_bytes``.
    """
    fields = _fields(root / "proc/meminfo")
    free = fields["MemAvailable"] if "MemAvailable" in fields else memory_bytes(root)
    return max(0, min([free, *_left_in_groups(root)]))


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process could take now, and keep all that it has.

    The system counts the pages of mapped files as available, since it can read them again. Those
    that this process has mapped are weights that it needs, so they count as taken; and so do cells
    that nothing was written to yet.
    """
    _, mapped = own_memory(root)
    return max(0, system_left(root) - mapped - unwritten_bytes(root))


def own_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes that this process has in memory: its own, and pages of files; 0 if nobody tells."""
    fields = _fields(root / "proc/self/status")
    return fields.get("RssAnon", 0), fields.get("RssFile", 0)


def unwritten_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process and those that it has started will take for cells.

    They are in areas for which huge pages were refused (``native/kernels/cells_on_demand``), as
    nearly nothing else is.
    """
    children = " ".join(_read(path) or "" for path in root.glob("proc/self/task/*/children"))
    total = size = resident = 0
    for process in ("self", *children.split()):
        for line in (_read(root / "proc" / process / "smaps") or "").splitlines():
            if line.startswith("Size:"):
                size = int(line.split()[1]) << 10
            elif line.startswith("Rss:"):
                resident = int(line.split()[1]) << 10
            elif line.startswith("VmFlags:") and "nh" in line.split():
                total += size - resident
    return total


def memory_left(root: Path = Path("/")) -> int:
    """The most memory that this process could be given, if pages of files and swap were used up.

    More than that cannot work; less may be too much as well (see ``available_bytes``).
    """
    return system_left(root) + _fields(root / "proc/meminfo").get("SwapFree", 0)


def addresses_left(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still map (``ulimit -v``); None if that is not limited or known.

    Args:
        root: where ``/proc`` is.
    """
    if sys.platform != "linux":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _fields(root / "proc/self/status").get("VmSize")
    if limit == resource.RLIM_INFINITY or taken is None:
        return None
    return max(0, limit - taken)


# -- the machine -----------------------------------------------------------------------------------


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


def _fields(path: Path) -> dict[str, int]:
    """The sizes that a file of ``/proc`` gives in lines ``Name:  123 kB``, in bytes."""
    lines = (line.partition(":") for line in (_read(path) or "").splitlines())
    sizes = ((name, text.split()) for name, _, text in lines)
    return {
        name: int(words[0]) << 10
        for name, words in sizes
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit()
    }


# -- control groups --------------------------------------------------------------------------------


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Limits of CPU time, in CPUs."""
    for folder in _groups(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        both = _read(folder / "cpu.max")
        if both is not None:
            quota, _, period = both.partition(" ")
        numbers = _number(quota), _number(period)
        if numbers[0] and numbers[1]:  # "max" and -1 are not limit
            yield numbers[0] / numbers[1]


def _memory_limits(root: Path) -> Iterator[tuple[Path, int, str]]:
    """The groups that have a limit of memory, each with it and the file with what is taken."""
    for folder in _groups(root, "memory"):
        for most, taken in _LIMITS:
            limit = _number(_read(folder / most))
            if 0 < limit < _NO_LIMIT:
                yield folder, limit, taken


def _left_in_groups(root: Path) -> Iterator[int]:
    """What the limits leave, if the pages of files are given up."""
    for folder, limit, taken in _memory_limits(root):
        used = _read(folder / taken)
        if used is None:
            continue
        lines = (_read(folder / "memory.stat") or "").splitlines()
        sizes = {name: _number(size) for name, _, size in (line.partition(" ") for line in lines)}
        children = "total_" if "total_active_file" in sizes else ""  # the first version has both
        of_files = (sizes.get(f"{children}{name}_file", 0) for name in ("active", "inactive"))
        yield limit - _number(used) + sum(of_files)


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
    """A count in a file; 0 for what is not a number, or means no limit."""
    return int(text) if text is not None and text.isdigit() else 0
