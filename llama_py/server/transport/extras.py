"""What a connection tells an application: that its client left, and what ASGI does not say.

Under another server the latter is not there, and nothing depends on it but clients that do not
behave.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

__all__ = ["ABORT", "BODY", "CALLER", "abort", "client_left"]

#: The key in ``scope["extensions"]`` of a function that ends the connection at once. Closing one
#: sends first what is still to be sent: a client that does not read would so keep it for ever.
ABORT = "llama_py.abort"
#: The key in ``scope["state"]`` of what sends bodies without passing through each middleware: none
#: does anything with a body, and each would cost something for every event.
BODY = "llama_py.body"
#: The key in ``scope["state"]`` of the sender of a request, where a program in front of the
#: application has already looked at his key (``llama_py.cluster``).
CALLER = "llama_py.caller"


async def client_left(receive: Receive | None) -> None:
    """Return when the client of a request, whose body was read, has left or got its answer.

    Without a request that never is.
    """
    if receive is None:
        await asyncio.get_running_loop().create_future()
        return
    while (await receive())["type"] != "http.disconnect":
        pass


def abort(scope: Scope) -> None:
    """End the connection of a request at once, if its server can."""
    end = scope.get("extensions", {}).get(ABORT)
    if end is not None:
        end()
