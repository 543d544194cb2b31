"""``RequestRecord``: what is known about one HTTP request; the log and the metrics read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llama_py.dialects.failures import Failure
from llama_py.engine.request import Record
from llama_py.server.keys import Caller

__all__ = ["RequestRecord"]


@dataclass(slots=True, eq=False)
class RequestRecord:
    """What is known about a request so far. The tasks of one event loop write it.

    Attributes:
        id: what the client called it, or was told it is called.
        method, path: what was asked for.
        caller: who asks; nobody before his key was looked at.
        route: the path as it is declared, with the names of its parameters.
        status: what was answered, 0 before that; 499 if the client left.
        model: the id of the model that answers.
        prompt_tokens, cached_tokens, generated_tokens: of all prompts and replies of the call.
        finish: how the first reply ended.
        began, ended: times of ``time.perf_counter()``.
        queue_seconds, first_token_seconds: of the first reply; None if it has not come to that.
        on_abort: ends the reply with an error, in its dialect; set while there is one to be ended.
    """

    id: str
    method: str = ""
    path: str = ""
    caller: Caller = field(default_factory=Caller)
    route: str = ""
    status: int = 0
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    finish: str = ""
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    on_abort: Callable[[Failure], None] | None = None

    def abort(self, failure: Failure) -> None:
        """End the reply with an error, if there is one."""
        if self.on_abort is not None:
            self.on_abort(failure)

    def note(self, records: Sequence[Record]) -> None:
        """Take over what the engine knows about the call's requests.

        Choices of one prompt count the prompt once.
        """
        prompts = [record for record in records if not record.request.choice]
        self.prompt_tokens = sum(record.n_prompt for record in prompts)
        self.cached_tokens = sum(record.reused for record in prompts)
        self.generated_tokens = sum(len(record.generated) for record in records)
        if records:
            first = records[0]
            self.finish = first.reason
            self.queue_seconds = _between(first.submitted, first.started)
            self.first_token_seconds = _between(self.began, first.first_token)


def _between(start: float, end: float) -> float | None:
    return end - start if end else None
