"""One process of ``bench loading``: imports a library, loads a model, generates one token.

``python loading_worker.py MODULE JSON``, with the options of its ``Llama``; prints one line of
JSON: seconds of wall-clock and of processor time of each step, and the most memory that was in use,
where the system tells (Linux). Imports nothing of llama_py itself.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path


def peak() -> tuple[float, float] | None:
    """Megabytes that were resident, at most, and those of them that are not pages of files.

    What getrusage says is never less than what the process had that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines())
    most, now, files = (int(fields[n].split()[0]) / 1e3 for n in ("VmHWM", "VmRSS", "RssFile"))
    return most, now - files


def main() -> None:
    # What C code prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, options = sys.argv[1], json.loads(sys.argv[2])
    times = [(time.perf_counter(), time.process_time())]

    def lap() -> None:
        times.append((time.perf_counter(), time.process_time()))

    library = importlib.import_module(module)
    lap()
    llm = library.Llama(verbose=False, **options)
    lap()
    llm.create_completion("Once upon a time", max_tokens=1)
    lap()
    steps = zip(("import", "load", "first token"), times, times[1:])  # noqa: B905 (Python 3.9)
    found = {name: (end[0] - start[0], end[1] - start[1]) for name, start, end in steps}
    answers.write(json.dumps({"steps": found, "peak": peak()}) + "\n")
    answers.flush()
    os._exit(0)  # tearing down is not measured


if __name__ == "__main__":
    main()
