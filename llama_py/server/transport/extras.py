"""What a connection of this server tells an application beyond ASGI.

Under another server none of it is there, and nothing depends on it but clients that do not behave.
"""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["ABORT", "BODY", "abort"]

#: The key in ``scope["extensions"]`` of a function that ends the connection at once. Closing one
#: sends first what is still to be sent: a client that does not read would so keep it for ever.
ABORT = "llama_py.abort"
#: The key in ``scope["state"]`` of what sends bodies without passing through each middleware: none
#: does anything with a body, and each would cost something for every event.
BODY = "llama_py.body"


def abort(scope: Scope) -> None:
    """End the connection of a request at once, if its server can."""
    end = scope.get("extensions", {}).get(ABORT)
    if end is not None:
        end()
