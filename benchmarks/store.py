"""The cost of the stores, relative to a plain copy and a plain file of the same bytes.

``python -m benchmarks.store [DIRECTORY] [MEBIBYTES]``. Each round does everything once, so that
store and yardstick share the same conditions. Files are not synced on either side.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_py.states.disk import LlamaDiskCache
from llama_py.states.ram import LlamaRAMCache
from llama_py.states.state import StoredState

__all__ = ["main", "store_bandwidth"]

_T = TypeVar("_T")
_Times = dict[str, list[float]]
_TOKENS = 2000
_COLUMNS = ("", "_plain", "_ratio", "_median_ratio", "_cpu_ratio")
_MEASURED = ("ram_save", "ram_restore", "disk_save", "disk_restore")


def store_bandwidth(directory: str | Path, nbytes: int, rounds: int = 8) -> dict[str, float]:
    """Save and restore ``nbytes`` in memory and below ``directory``.

    Returns:
        For each of ``ram_save``, ``ram_restore``, ``disk_save``, ``disk_restore``: GB/s of the
        fastest round, the same for the plain copy or file (``..._plain``), the store's time divided
        by that (``..._ratio``), the median of the rounds' ratios (``..._median_ratio``; it depends
        on luck if the machine is busy), and the ratio of processor times (``..._cpu_ratio``).
    """
    data = np.random.default_rng(0).integers(0, 2**63, nbytes // 8, np.int64).view(np.uint8)
    times: _Times = {}
    folder = Path(tempfile.mkdtemp(dir=directory))
    try:
        with LlamaDiskCache(str(folder), 2 * data.nbytes) as store:
            for turn in range(rounds + 1):
                _ram_round(data, times, turn)
                _disk_round(data, store, folder / "plain", times, turn)
    finally:
        shutil.rmtree(folder)
    return _summary(times, data.nbytes)


def _summary(times: _Times, nbytes: int) -> dict[str, float]:
    result: dict[str, float] = {}
    for name in _MEASURED:
        own, plain = times[name][1:], times[name + "_plain"][1:]  # the first round warms up
        result[name] = nbytes / min(own) / 1e9
        result[name + "_plain"] = nbytes / min(plain) / 1e9
        result[name + "_ratio"] = min(own) / min(plain)
        paired = [a / b for a, b in zip(own, plain, strict=True)]
        result[name + "_median_ratio"] = statistics.median(paired)
        cpu, plain_cpu = times[name + "_cpu"][1:], times[name + "_plain_cpu"][1:]
        result[name + "_cpu_ratio"] = min(cpu) / min(plain_cpu)
    return result


def _ram_round(data: NDArray[np.uint8], times: _Times, turn: int) -> None:
    """One round in RAM. The yardstick is the copy with which a context returns or takes a state."""
    target = np.zeros_like(data)

    def plain() -> None:
        _timed(times, "ram_save_plain", data.copy)
        _timed(times, "ram_restore_plain", lambda: np.copyto(target, data))

    def own() -> None:
        with LlamaRAMCache(2 * data.nbytes) as store:
            key = _timed(times, "ram_save", lambda: store.put(_state(data.copy())))
            _timed(times, "ram_restore", lambda: np.copyto(target, _restored(store, key)))

    _in_turn(turn, plain, own)


def _disk_round(
    data: NDArray[np.uint8], store: LlamaDiskCache, path: Path, times: _Times, turn: int
) -> None:
    def plain() -> None:
        _timed(times, "disk_save_plain", lambda: path.write_bytes(data.data))
        _timed(times, "disk_restore_plain", path.read_bytes)
        path.unlink()

    def own() -> None:
        key = _timed(times, "disk_save", lambda: store.put(_state(data)))
        _timed(times, "disk_restore", lambda: _restored(store, key))
        store.clear()

    _in_turn(turn, plain, own)


def _in_turn(turn: int, plain: Callable[[], None], own: Callable[[], None]) -> None:
    """Alternate the order, because the second writer waits for the pages of the first."""
    first, second = (plain, own) if turn % 2 else (own, plain)
    first()
    second()


def _restored(store: LlamaRAMCache | LlamaDiskCache, key: str | None) -> NDArray[np.uint8]:
    found = store.get(key or "")
    if found is None:
        raise RuntimeError("the store lost a state that it has just saved")
    return found.state


def _state(data: NDArray[np.uint8]) -> StoredState:
    tokens = np.arange(_TOKENS, dtype=np.int32)
    offsets = 4 * np.arange(_TOKENS + 1, dtype=np.int64)
    return StoredState(tokens, offsets, bytes(4 * _TOKENS), data, (), 0, "bench", None)


def _timed(times: _Times, name: str, action: Callable[[], _T]) -> _T:
    wall, cpu = time.perf_counter(), time.process_time()
    result = action()
    times.setdefault(name, []).append(time.perf_counter() - wall)
    times.setdefault(name + "_cpu", []).append(time.process_time() - cpu)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Print a table; 0 if every ratio is at most 2, else 1."""
    given = sys.argv[1:] if arguments is None else arguments
    directory = given[0] if given else tempfile.gettempdir()
    nbytes = (int(given[1]) if len(given) > 1 else 256) << 20
    result = store_bandwidth(directory, nbytes)
    print(f"{nbytes >> 20} MiB in {directory}")
    print("              GB/s  plain GB/s  ratio  median ratio  cpu ratio")
    for name in _MEASURED:
        figures = [result[name + end] for end in _COLUMNS]
        print("{:12}{:7.2f}{:11.2f}{:8.2f}{:13.2f}{:11.2f}".format(name, *figures))
    return 0 if all(result[name + "_ratio"] <= 2 for name in _MEASURED) else 1


if __name__ == "__main__":
    sys.exit(main())
