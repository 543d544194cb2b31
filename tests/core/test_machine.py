"""What a process may use of the machine, with and without the limits of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_py.core import backend
from llama_py.core.host.machine import available_bytes, memory_bytes, usable_cores


def machine(root: Path, files: dict[str, str], cpus: int = 8) -> Path:
    """A machine of ``cpus`` hyper-threads, two of which share a core."""
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu & ~1}-{cpu | 1}\n"
        for cpu in range(cpus)
    }
    for name, text in {**topology, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


EVERY = {*range(8)}
CGROUP = "sys/fs/cgroup"
#: Files of a machine, and the cores that a process may use.
LIMITS: dict[str, tuple[dict[str, str], int]] = {
    "no limit": ({}, 4),
    "a container of version 2": (
        {"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "200000 100000\n"}, 2,
    ),
    "version 2 without a limit": (
        {"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "max 100000\n"}, 4,
    ),
    "one and a half": ({"proc/self/cgroup": "0::/", f"{CGROUP}/cpu.max": "150000 100000"}, 1),
    "less than one": ({"proc/self/cgroup": "0::/", f"{CGROUP}/cpu.max": "20000 100000"}, 1),
    "more than there is": ({"proc/self/cgroup": "0::/", f"{CGROUP}/cpu.max": "900000 100000"}, 4),
    "a group above": (
        {
            "proc/self/cgroup": "0::/pods/pod7/app\n",
            f"{CGROUP}/pods/pod7/app/cpu.max": "max 100000",
            f"{CGROUP}/pods/pod7/cpu.max": "300000 100000",
        },
        3,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/docker/ab\n0::/\n",
            f"{CGROUP}/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "200000\n",
            f"{CGROUP}/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "version 1, which shows the container its own group only": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/ab\n",
            f"{CGROUP}/cpu/cpu.cfs_quota_us": "100000\n",
            f"{CGROUP}/cpu/cpu.cfs_period_us": "100000\n",
        },
        1,
    ),
    "version 1 without a limit": (
        {
            "proc/self/cgroup": "1:cpu:/\n",
            f"{CGROUP}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{CGROUP}/cpu/cpu.cfs_period_us": "100000\n",
        },
        4,
    ),
    "nonsense": ({"proc/self/cgroup": "what\n0::/\n", f"{CGROUP}/cpu.max": "much\n"}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_no_more_cores_than_the_quota_pays_for(tmp_path: Path, name: str) -> None:
    files, expected = LIMITS[name]
    assert usable_cores(machine(tmp_path, files), EVERY) == expected


@pytest.mark.parametrize(
    ("allowed", "expected"), [({0, 1}, 1), ({0, 2}, 2), ({1, 2, 5}, 3), ({0, 1, 2, 3, 6}, 3)]
)
def test_only_the_cpus_that_the_process_may_run_on(
    tmp_path: Path, allowed: set[int], expected: int
) -> None:
    assert usable_cores(machine(tmp_path, {}), allowed) == expected


def test_without_a_topology_every_cpu_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, {0, 1, 2}) == 3
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (f"{CGROUP}/memory.max", "268435456\n", 1 << 28),
        (f"{CGROUP}/memory.max", "max\n", None),
        (f"{CGROUP}/memory/memory.limit_in_bytes", "268435456\n", 1 << 28),
        (f"{CGROUP}/memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        (f"{CGROUP}/memory/app/memory.limit_in_bytes", "134217728\n", 1 << 27),
    ],
)
def test_the_memory_of_a_container_is_its_limit(
    tmp_path: Path, name: str, text: str, expected: int | None
) -> None:
    root = machine(tmp_path, {"proc/self/cgroup": "5:memory:/app\n0::/app\n", name: text})
    assert memory_bytes(root) == (expected or memory_bytes(tmp_path / "elsewhere"))


MEMINFO = "MemTotal: 8000 kB\nMemAvailable: 3000 kB\nHugePages_Total: 4\n"
#: An area that takes memory as it is written, for which huge pages were refused, and another one.
SMAPS = """7f0000000000-7f00000fa000 rw-p 00000000 00:00 0
Size:               1000 kB
Rss:                 200 kB
VmFlags: rd wr mr mw me ac nh
7f0000100000-7f00001fa000 rw-p 00000000 00:00 0
Size:               1000 kB
Rss:                 900 kB
VmFlags: rd wr mr mw me ac hg
"""
#: Files of a machine, and the KiB of memory that a process can still take.
LEFT: dict[str, tuple[dict[str, str], int]] = {
    "a machine": ({"proc/meminfo": MEMINFO}, 3000),
    "weights that are mapped are taken": (
        {"proc/meminfo": MEMINFO, "proc/self/status": "Name: x\nRssAnon: 9 kB\nRssFile: 1200 kB\n"},
        1800,
    ),
    "a container of version 2": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            f"{CGROUP}/memory.max": f"{2000 * 1024}\n",
            f"{CGROUP}/memory.current": f"{1500 * 1024}\n",
            f"{CGROUP}/memory.stat": f"anon 99\ninactive_file {300 * 1024}\nactive_file 102400\n",
        },
        900,
    ),
    "a container of version 1": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:memory:/app\n",
            f"{CGROUP}/memory/app/memory.limit_in_bytes": f"{2000 * 1024}\n",
            f"{CGROUP}/memory/app/memory.usage_in_bytes": f"{1900 * 1024}\n",
            f"{CGROUP}/memory/app/memory.stat": (
                f"inactive_file 7\ntotal_inactive_file {200 * 1024}\ntotal_active_file 0\n"
            ),
        },
        300,
    ),
    "a container without a limit": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            f"{CGROUP}/memory.max": "max\n",
            f"{CGROUP}/memory.current": "1\n",
        },
        3000,
    ),
    "cells that nothing was written to": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/smaps": SMAPS,
            "proc/self/task/7/children": "12 \n",
            "proc/self/task/9/children": "",
            "proc/12/smaps": SMAPS.replace("200 kB", "400 kB"),
        },
        3000 - 800 - 600,
    ),
    "more mapped than there is": (
        {"proc/meminfo": MEMINFO, "proc/self/status": "RssFile: 4000 kB\n"}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_memory_that_can_still_be_taken(tmp_path: Path, name: str) -> None:
    files, expected = LEFT[name]
    assert available_bytes(machine(tmp_path, files)) == expected * 1024


def test_this_machine_has_some_memory_left() -> None:
    assert 0 < available_bytes() <= memory_bytes()


def test_what_a_cpu_has_free_is_what_the_system_can_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml says that all memory of the machine is free."""
    monkeypatch.setattr(backend, "system_left", lambda: 5 << 20)
    monkeypatch.setattr(backend, "memory_bytes", lambda: 9 << 20)
    (cpu,) = (each for each in backend.devices() if each["kind"] == "cpu")
    assert (cpu["free_bytes"], cpu["total_bytes"]) == (5 << 20, 9 << 20)
