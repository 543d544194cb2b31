"""``count_tokens``: how long a prompt is, without evaluating it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from llama_py.dialects.context import CallContext
from llama_py.dialects.wire import WireCall
from llama_py.engine.preparing import resolve
from llama_py.engine.request import GenerationRequest
from llama_py.errors import ContextOverflowError
from llama_py.server.adapting import adapted, caller_of
from llama_py.server.pool.pool import ServedModel
from llama_py.server.service import service_of

__all__ = ["count_tokens"]


async def count_tokens(
    request: Request, model: ServedModel, parse: Callable[[CallContext], WireCall]
) -> int:
    """The tokens that the prompts of a request would have if it were sent now.

    It waits for nobody: the engine has no part in it. To be awaited within the model's lease.

    Args:
        parse: makes the call, in a worker thread.

    Raises:
        RequestError, LlamaError: the request could not be answered.
    """
    service = service_of(request)
    caller = caller_of(request)
    loop = asyncio.get_running_loop()

    def count() -> tuple[int, list[GenerationRequest]]:
        requests = adapted(parse(model.context), model, service, caller)
        return _counted(model, [each for each in requests if not each.choice])

    counted, longer = await loop.run_in_executor(service.workers, count)
    if longer:  # which takes seconds if there are megabytes: calls have threads of their own
        counted += await loop.run_in_executor(service.side_workers, _count_all, model, longer)
    return counted


def _counted(
    model: ServedModel, requests: list[GenerationRequest]
) -> tuple[int, list[GenerationRequest]]:
    """The tokens of all prompts that fit, and the requests whose prompts do not."""
    llama = model.llama
    counted, longer = 0, []
    for request in requests:
        try:
            counted += len(resolve(request, llama.inside.runtime.cache, llama.vocab).tokens)
        except ContextOverflowError:  # whoever counts wants to know by how much
            longer.append(request)
    return counted, longer


def _count_all(model: ServedModel, requests: list[GenerationRequest]) -> int:
    calls = model.llama.inside.calls
    return sum(len(calls.tokens_of(request.prompt)) for request in requests)
