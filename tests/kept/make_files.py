"""Writes the files that ``test_older_files`` reads: what a llama_py leaves behind, in one folder.

It is run with the commit *before* a move to another llama.cpp, whose libraries are built, and in a
folder where no other ``llama_py`` is found::

    cd /tmp && PYTHONPATH=THAT_COMMIT python HERE/make_files.py HERE/0c1e57098

The folder is called like the llama.cpp of that commit. Everything in it is of the bundled model and
of ``OPTIONS``, with two short turns each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 2, "n_threads": 1}
SAID = "Hello!"
#: Long enough for a store to take it by itself.
TOLD = "Count from one to twelve: one, two, three, four, five, six, seven, eight, nine."
#: What a client of the server said, in the session and in the slot of these names.
ASKED = [{"role": "user", "content": "Who are you?"}]
SESSION, SLOT = "anna", "slot"
#: Replies are short: each of their tokens takes 2 kB.
BRIEF: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


def write_store(folder: Path) -> None:
    """A session file, and a ``LlamaDiskCache`` with another conversation."""
    from llama_py import Llama, LlamaDiskCache, demo_model_path

    with Llama(demo_model_path(), **OPTIONS) as llm, LlamaDiskCache(folder / "store") as store:
        chat = llm.chat_session(**BRIEF)
        chat.send(SAID)
        chat.save(folder / "session.json")
        llm.cache.set_store(store)
        llm.create_chat_completion([{"role": "user", "content": TOLD}], **BRIEF)
        llm.cache.flush()


def write_server(folder: Path) -> None:
    """The folders of a server: a session of one turn, and a slot."""
    from tests.server.serving import demo_settings, serving

    kept = {"session_dir": folder / "sessions", "slot_dir": folder / "slots"}
    with serving(demo_settings(kept, **OPTIONS)) as server, server.http() as http:
        body = {"model": "demo", "messages": ASKED, "session_id": SESSION, **BRIEF}
        http.post("/v1/chat/completions", json=body).raise_for_status()
        http.post(f"/v1/sessions/{SESSION}/save").raise_for_status()
        http.post("/slots/0?action=save", json={"filename": SLOT}).raise_for_status()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    write_store(target)
    write_server(target)
