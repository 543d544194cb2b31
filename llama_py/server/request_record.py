"""``RequestRecord``: what is known about one HTTP request; the log and the metrics read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from llama_py.engine.request import Record
from llama_py.server.access.keys import Caller

__all__ = ["RequestRecord"]


@dataclass(slots=True, eq=False)
class RequestRecord:
    """The facts about one request so far. The tasks of one event loop write it.

    Attributes:
        id: what the client called it, or was told it is called.
        method, path: what was asked for.
        client: the address that it came from; empty over a Unix socket.
        caller: who asks; nobody before his key was looked at.
        route: the path as it is declared, with the names of its parameters; empty if there is none.
        status: what was answered, 0 before that; 499 if the client left.
        model: the id of the model that answers.
        error: the kind of failure that it ended with.
        prefix: the name of what its conversation begins with; empty if it has no text.
        prompt_tokens, cached_tokens, generated_tokens: of all prompts and replies of the call; None
            if no model was asked.
        finish: how its first reply ended.
        began, ended: times of ``time.perf_counter()``.
        queue_seconds, first_token_seconds: of its first reply; None if it has not come to that.
    """

    id: str
    method: str = ""
    path: str = ""
    client: str = ""
    caller: Caller = field(default_factory=Caller)
    route: str = ""
    status: int = 0
    model: str = ""
    error: str = ""
    prefix: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    finish: str = ""
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return (self.ended or time.perf_counter()) - self.began

    def note(self, records: Sequence[Record]) -> None:
        """Take over what the engine knows about the call's requests.

        Several choices of one prompt count the prompt once.
        """
        if not records:
            return
        prompts = [record for record in records if not record.request.choice]
        self.prompt_tokens = sum(record.n_prompt for record in prompts)
        self.cached_tokens = sum(record.reused for record in prompts)
        self.generated_tokens = sum(record.n_reply for record in records)
        first = records[0]
        self.finish = first.reason
        self.queue_seconds = first.started - first.submitted if first.started else None
        self.first_token_seconds = first.first_token - self.began if first.first_token else None
