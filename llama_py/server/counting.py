"""``count_tokens``: how long a prompt is, without evaluating it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request

from llama_py.dialects.context import CallContext
from llama_py.dialects.wire import WireCall
from llama_py.engine.preparing import resolve
from llama_py.engine.request import GenerationRequest
from llama_py.errors import ContextOverflowError
from llama_py.server.adapting import adapted, tenant_of
from llama_py.server.models import ServedModel

if TYPE_CHECKING:
    from llama_py.server.app import Service

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
    service: Service = request.app.state.service
    tenant = tenant_of(request)

    def count() -> int:
        requests = adapted(parse(model.context), model, service, tenant)
        return sum(_count(model, each) for each in requests if not each.choice)

    return await asyncio.get_running_loop().run_in_executor(service.workers, count)


def _count(model: ServedModel, request: GenerationRequest) -> int:
    llama = model.llama
    try:
        return len(resolve(request, llama._cache, llama.vocab).tokens)
    except ContextOverflowError:  # whoever counts wants to know by how much
        return len(llama._calls.tokens_of(request.prompt))
