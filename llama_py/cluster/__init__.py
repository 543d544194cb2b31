"""Several replicas of the server behind one address, on Ray Serve.

It needs the extra ``ray`` (``pip install '.[ray]'``). Ray starts processes, watches them,
scales them and carries requests; here is what Ray cannot know:

* ``app.build_app`` makes the application: a ``gateway``, which looks at keys and limits once, and
  replicas (``replica``), each of which is the whole server with its models;
* ``policy`` decides which replica gets a request, from the text that it begins with
  (``dialects.routing_hints``), from its session and from how busy and how full the replicas
  are. It imports nothing of Ray, so that a simulation and small tests use the same code;
  ``router`` plugs it in;
* ``responses`` lets all replicas know the replies that clients refer to by id;
* ``held`` notes in a replica what of those texts its memory really holds;
* ``configuration`` reads the file of ``llama-py cluster deploy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_py.cluster.app import build_app as build_app
    from llama_py.cluster.app import deploy as deploy
    from llama_py.cluster.configuration import ClusterSettings as ClusterSettings

__all__ = ["ClusterSettings", "build_app", "deploy"]


def __getattr__(name: str) -> Any:
    if name == "ClusterSettings":
        from llama_py.cluster.configuration import ClusterSettings

        return ClusterSettings
    if name in __all__:
        from llama_py.cluster import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
