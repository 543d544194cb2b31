"""``adapted``: what the server adds to the requests of a call, in whatever dialect it came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llama_py.dialects.session_ids import label_of
from llama_py.dialects.wire import WireCall
from llama_py.engine.request import GenerationRequest
from llama_py.server.access.keys import ADMIN, Caller
from llama_py.server.pool.pool import ServedModel
from llama_py.server.service import Service

__all__ = ["adapted"]


def adapted(
    call: WireCall,
    model: ServedModel,
    service: Service,
    caller: Caller,
    report: Callable[[int, int], None] | None = None,
) -> list[GenerationRequest]:
    """The requests of a call: within the server's time limit, and within what its caller may do.

    Args:
        caller: whose sessions and prefixes they may use. Without the scope ``admin``, none goes
            ahead of those of others.
        report: told about the progress of the first prompt, if the client wants to know.
    """
    requests, limit = [*call.requests], service.settings.request_timeout
    for index, request in enumerate(requests):
        own = request.generation
        if limit is not None and (own.timeout is None or own.timeout > limit):
            requests[index] = replace(request, generation=replace(own, timeout=limit))
    if ADMIN not in caller.scopes:
        requests = [replace(each, priority=max(0, each.priority)) for each in requests]
    if tenant := caller.tenant:
        namespace = (model.llama.runtime.port.facts.adapters, tenant)
        requests = [
            replace(each, namespace=namespace, session=label_of(tenant, each.session))
            for each in requests
        ]
    if call.wants_progress and call.stream and report is not None:
        requests[0] = replace(requests[0], on_progress=report)
    return requests
