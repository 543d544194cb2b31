"""The HTTP server: five dialects, sessions, several models; plain ASGI, one process, one loop.

It needs the extra ``server`` (``pip install '.[server]'``). The way of a request:

1. ``transport/`` reads it from a connection, within limits on what comes before a handler can look;
2. ``access/`` (``guard``, outermost) decides from the head alone who is let in (``keys``,
   ``origins``), and notes what became of it (``request_record``), which ``logs`` and ``metrics``
   read;
3. ``routes/`` have one module for each dialect. They say how the dialect parses a body, and leave
   the rest to
4. ``exchange``: it reads the body (``transport.bodies``), leases a model (``pool/``), has the call
   parsed in threads that tenants share in turn (``workers``), and gives its requests the namespace
   and session of the caller (``call_defaults``). One task submits them and sends what they say
   (``transport.event_stream``), another one watches for the client to leave.

``service.Service`` is what handlers share. ``kept/`` has what clients own by name: sessions,
snapshots, slots, responses. ``config/`` declares every setting once and reads it from file,
environment and flags. ``lifecycle`` knows whether the server is loading, ready or draining;
``serve`` listens. ``openapi/`` describes the routes, ``page/`` is the chat page. ``app.create_app``
puts it together.
"""
