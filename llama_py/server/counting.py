"""``count_tokens``: how long a prompt is, without evaluating it."""

from __future__ import annotations

from starlette.requests import Request

from llama_py.engine.request import GenerationRequest
from llama_py.errors import ContextOverflowError
from llama_py.server.call_defaults import adapted
from llama_py.server.exchange import Parse
from llama_py.server.service import caller_of, in_thread, service_of
from llama_py.server.transport.bodies import model_of, read_body

__all__ = ["count_tokens"]


async def count_tokens(request: Request, parse: Parse) -> int:
    """The tokens that the prompts of a request would have if it were sent now.

    It waits for its model, but for nobody else: the engine has no part in it.

    Raises:
        RequestError, LlamaError: the request could not be answered.
    """
    service = service_of(request)
    caller = caller_of(request)
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:

        def count() -> tuple[int, list[GenerationRequest]]:
            requests = adapted(parse(body, model), model, service, caller)
            loaded = model.llama.runtime.loaded
            tokens, too_long = 0, []
            for each in requests:
                try:
                    tokens += loaded.count(each) if not each.choice else 0
                except ContextOverflowError:  # whoever counts wants to know by how much
                    too_long.append(each)
            return tokens, too_long

        counted, longer = await service.prepare(model.id, count)
        if longer:  # which takes seconds if there are megabytes: calls have threads of their own
            calls = model.llama.runtime.calls
            counted += await in_thread(
                service, lambda: sum(len(calls.tokens_of(each.prompt)) for each in longer)
            )
    return counted
