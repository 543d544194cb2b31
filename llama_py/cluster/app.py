"""``build_app`` and ``deploy``: the application for Ray Serve."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llama_py.errors import LlamaError, MissingPackageError, ParameterError

if "ray" not in sys.modules:
    # Ray reads these when it is imported, and its processes inherit them. Nothing is told to its
    # makers, and a cluster on one machine keeps to the loopback address (the name is historical).
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
try:
    import ray
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig
    from ray.serve.exceptions import RayServeException
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise MissingPackageError(
        f"a cluster needs the package {package}: pip install 'llama-py[ray]'"
    ) from None

from llama_py.cluster.ask import AnswerHead, Ask, Piece
from llama_py.cluster.configuration import ClusterSettings, read_cluster
from llama_py.cluster.gateway import ReplicaGone, gateway_app
from llama_py.cluster.replica import Replica
from llama_py.cluster.router import STATE, PrefixRouter, begun
from llama_py.server.logs import log_to

__all__ = ["application", "build_app", "connect", "deploy", "end", "is_elsewhere", "stop"]

#: Seconds beyond ``drain_seconds`` for writing conversations and closing models.
_CLOSING = 20.0
#: Seconds that replicas may take to say something of themselves.
_PATIENCE = 20.0


def build_app(settings: ClusterSettings | None = None, **changes: Any) -> serve.Application:
    """The application, for ``ray.serve.run`` or a ``RayService``.

    Args:
        settings: three replicas of the bundled model if it is None.
        changes: fields of ``ClusterSettings``, in place of those of ``settings``.

    Raises:
        ParameterError: a value is not allowed.
    """
    own = replace(settings if settings is not None else ClusterSettings(replicas=3), **changes)
    replicas = serve.deployment(_Replica).options(**_replica_options(own))
    gateway = serve.deployment(serve.ingress()(_Gateway)).options(
        name="gateway",
        num_replicas=own.gateways,
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=own.server.drain_seconds + _CLOSING,
    )
    # Who looks at no keys need not know them.
    keyless = replace(own.server, api_keys=(), api_key_file=None)
    application: serve.Application = gateway.bind(own.server, replicas.bind(keyless))
    return application


def application(arguments: Mapping[str, str]) -> serve.Application:
    """What a file of Ray Serve, or a ``RayService`` of Kubernetes, names as ``import_path``.

    Args:
        arguments: ``config`` is the path of a file as ``llama-py cluster deploy`` takes it. Where
            Ray listens is said in Ray's own file.

    Raises:
        ParameterError: there is another argument; or as ``ClusterSettings.check``.
    """
    if unknown := arguments.keys() - {"config"}:
        raise ParameterError(f"there is no argument {min(unknown)}; expected config")
    given = arguments.get("config")
    settings = read_cluster(Path(given) if given is not None else None)
    settings.check()
    return build_app(settings)


def _replica_options(settings: ClusterSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "name": "replica",
        "max_ongoing_requests": settings.max_requests,
        "ray_actor_options": {"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": settings.server.drain_seconds + _CLOSING,
        "health_check_period_s": 5.0,
    }
    if settings.routing == "prefix":
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs=asdict(settings.policy),
            request_routing_stats_period_s=settings.state_seconds,
        )
    if settings.max_replicas is None:
        return {**options, "num_replicas": settings.replicas}
    interval = min(10.0, max(0.5, settings.upscale_seconds / 2))
    options["autoscaling_config"] = AutoscalingConfig(
        metrics_interval_s=interval,
        look_back_period_s=3 * interval,
        min_replicas=settings.replicas,
        max_replicas=settings.max_replicas,
        target_ongoing_requests=settings.target_requests,
        upscale_delay_s=settings.upscale_seconds,
        downscale_delay_s=settings.downscale_seconds,
    )
    return options


def deploy(settings: ClusterSettings) -> str:
    """Run it in the cluster that this process is connected to, or as ``connect`` says.

    Returns:
        Its address, when all replicas are ready.

    Raises:
        ParameterError, ModelNotFoundError, OSError: as ``ClusterSettings.check``.
    """
    settings.check()
    server = settings.server
    if not ray.is_initialized():
        connect(settings)
    options = {"ssl_certfile": server.tls_cert, "ssl_keyfile": server.tls_key}
    given = {name: str(path) for name, path in options.items() if path is not None}
    serve.start(http_options=HTTPOptions(host=server.host, port=server.port, **given))
    serve.run(build_app(settings), name=settings.name, route_prefix="/")
    scheme = "https" if given else "http"
    return f"{scheme}://{server.host}:{server.port}"


def end(name: str) -> None:
    """Drain an application, end it, and leave the cluster; which ends, if it began here."""
    serve.delete(name)
    ray.shutdown()


def stop(name: str) -> None:
    """The same in the cluster of ``RAY_ADDRESS``, from another process."""
    _init()
    end(name)


def connect(settings: ClusterSettings) -> None:
    """Connect to the cluster of ``RAY_ADDRESS``; without that, begin one in this process.

    That one keeps to this machine, ends with this process, and counts as many processors as the
    replicas are to have, whether or not there are so many.

    Raises:
        LlamaError: there is no such cluster, or Ray did not start.
    """
    if is_elsewhere():
        _init()
        return
    most = settings.max_replicas or settings.replicas
    cpus = max(os.cpu_count() or 1, math.ceil(most * settings.cpus))
    _init(include_dashboard=False, num_cpus=cpus, _node_ip_address="127.0.0.1")


def _init(**options: Any) -> None:
    try:
        ray.init(log_to_driver=False, logging_level="warning", **options)
    except Exception as error:  # Ray raises no class of its own
        address = os.environ.get("RAY_ADDRESS")
        what = f"there is no Ray at RAY_ADDRESS={address}" if address else "Ray did not start"
        raise LlamaError(
            f"{what}: {error}. A busy machine may be too slow for it: try again; its logs are in "
            "/tmp/ray/session_latest/logs"
        ) from error


def is_elsewhere() -> bool:
    """Whether the cluster is one that goes on when this process has ended."""
    return bool(os.environ.get("RAY_ADDRESS"))


class _Replica:
    """The deployment of ``replica.Replica``."""

    async def __init__(self, settings: Any) -> None:  # type: ignore[misc]
        log_to(level=settings.log_level)
        self._own = Replica(settings, serve.get_replica_context().replica_id.unique_id)
        await self._own.start()

    async def exchange(self, ask: Ask) -> AsyncIterator[Piece]:
        async for piece in self._own.exchange(ask):
            yield piece

    async def metrics(self) -> tuple[str, bytes]:
        return await self._own.metrics()

    async def whole(self, ask: Ask) -> tuple[AnswerHead, bytes]:
        return await self._own.whole(ask)

    async def forget(self, ask: Ask) -> None:
        await self._own.forget(ask)

    async def record_routing_stats(self) -> dict[str, Any]:
        return {STATE: await self._own.state()}

    async def __del__(self) -> None:
        await self._own.stop()


class _Gateway:
    """The deployment of ``gateway.Gateway``."""

    def __init__(self, settings: Any, replicas: Any) -> None:
        log_to(level=settings.log_level)
        self._settings, self._replicas = settings, _RayReplicas(replicas)

    def __serve_build_asgi_app__(self) -> Any:
        return gateway_app(self._settings, self._replicas)


class _RayReplicas:
    """``gateway.Replicas``, reached through a handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._exchange = handle.options(method_name="exchange", stream=True)

    async def stream(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        answer = self._exchange.remote(ask)
        over = False
        try:
            async for piece in answer:
                yield piece
            over = True
        except (RayActorError, RayServeException) as error:
            raise ReplicaGone(str(error)) from error
        finally:
            if not over:
                answer.cancel()

    async def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        try:
            answers = self._handle.broadcast(method, *arguments)
            found = await answers.results_async(timeout_s=_PATIENCE, return_exceptions=True)
        except (TimeoutError, asyncio.TimeoutError, RayServeException):
            return []
        return [each for each in found if not isinstance(each, BaseException)]

    def begun(self, request: str) -> None:
        begun(request)

    def ready(self) -> bool:
        return bool(self._handle.running_replicas_populated())
