"""A gateway and replicas with real models in one process, without Ray, that the policy routes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

import anthropic
import httpx
import openai
import uvicorn

from llama_py.cluster.ask import Ask, Piece
from llama_py.cluster.gateway import ReplicaGone, gateway_app
from llama_py.cluster.policy import Policy
from llama_py.cluster.replica import Replica
from llama_py.server.config.settings import Settings
from tests.patience import PATIENCE
from tests.server.serving import demo_settings

__all__ = ["Cluster", "cluster"]


class Cluster:
    """Some replicas, and who reaches them (``gateway.Replicas``).

    Attributes:
        replicas: those that live, by name.
        kill_after: of each replica that is to die, after how many pieces of an answer it does.
    """

    def __init__(self, settings: Settings, count: int) -> None:
        made = [Replica(settings, f"replica-{number}") for number in range(count)]
        self.replicas = {each.name: each for each in made}
        self.policy = Policy()
        self.kill_after: dict[str, int] = {}
        self.url = ""
        self._all = made

    async def start(self) -> None:
        for replica in self._all:
            await replica.start()
        self.policy.set_replicas(self.replicas)

    async def stop(self) -> None:
        for replica in self._all:
            await replica.stop()

    # -- what the gateway asks for --------------------------------------------------------------

    async def stream(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        name = self.policy.rank(ask.hint)[0].replica
        self.policy.routed(ask.hint, name, ask.id)
        count = 0
        answer = self.replicas[name].exchange(ask)
        try:
            async for piece in answer:
                if count == self.kill_after.get(name):
                    raise self._died(name)
                count += 1
                yield piece
        finally:
            self.policy.completed(ask.id)
            await answer.aclose()  # type: ignore[attr-defined]
        self.policy.note_state(name, await self.replicas[name].state())

    def _died(self, name: str) -> ReplicaGone:
        del self.replicas[name], self.kill_after[name]
        self.policy.drop(name)
        return ReplicaGone(f"{name} died")

    async def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        answers = (getattr(each, method)(*arguments) for each in self.replicas.values())
        return await asyncio.gather(*answers)

    def begun(self, request: str) -> None:
        self.policy.begun(request)

    def ready(self) -> bool:
        return bool(self.replicas)

    # -- clients --------------------------------------------------------------------------------

    def http(self, key: str = "", **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, timeout=PATIENCE, headers=headers, **options)

    def openai(self, key: str = "none") -> Any:
        url = f"{self.url}/v1"
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE)

    def anthropic(self, key: str = "none") -> Any:
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE)

    def given_up(self) -> int:
        """Requests that ended because their client left."""
        services = (each._app.state.service for each in self.replicas.values())
        return sum(each.models.models[0].counted[0].cancelled for each in services)

    def unfinished(self) -> int:
        """Requests that a model still works on."""
        services = (each._app.state.service for each in self.replicas.values())
        return sum(len(each.exchanges) for each in services)


@contextlib.contextmanager
def cluster(settings: Settings | None = None, count: int = 3) -> Iterator[Cluster]:
    """A gateway on a free port, until the end of the block."""
    own = settings or demo_settings(n_ctx=2048, n_seq_max=4, n_threads=1)
    running = Cluster(own, count)
    gateway = gateway_app(own, running)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await gateway(scope, receive, send)
            return
        await receive()
        await running.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await running.stop()
        await send({"type": "lifespan.shutdown.complete"})

    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    running.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=partial(server.run, sockets=[listener]))
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise RuntimeError("the gateway did not start")
            time.sleep(0.01)
        yield running
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
