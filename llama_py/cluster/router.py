"""``PrefixRouter``: ``policy.Policy`` as a request router of Ray Serve.

Ray keeps the list of replicas and their queues, sends requests, and tries the next replica where
one has no room. It runs in the process of a gateway, in a loop of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from llama_py.cluster.ask import Ask
from llama_py.cluster.policy import Policy, PolicySettings, ReplicaState

__all__ = ["STATE", "PrefixRouter", "begun"]

#: Under which name replicas tell their state in Ray's statistics.
STATE = "llama_py"

#: The routers of this process.
_here: weakref.WeakSet[PrefixRouter] = weakref.WeakSet()


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """See the module. The methods are Ray's."""

    def initialize_state(self, **settings: Any) -> None:
        """Called by Ray with ``request_router_kwargs``: the fields of ``PolicySettings``."""
        self._policy = Policy(PolicySettings(**settings))
        #: Ray's number of a request -> ours.
        self._requests: dict[str, str] = {}
        _here.add(self)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """The replicas, or what they say of themselves, have changed."""
        self._policy.set_replicas([each.replica_id.unique_id for each in replicas])
        for each in replicas:
            state = each.routing_stats.get(STATE)
            if isinstance(state, ReplicaState):
                self._policy.note_state(each.replica_id.unique_id, state)
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """It is gone, and the controller does not know yet."""
        self._policy.drop(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas for a request, one in each rank."""
        if pending_request is None:
            return [candidate_replicas]
        # Without it Ray asks again at once while nobody has room.
        pending_request.routing_context.should_backoff = True
        ask = _ask_of(pending_request)
        if ask is None:
            return [candidate_replicas]
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        names = [each.replica for each in self._policy.rank(ask.hint)]
        return [[by_name[name]] for name in names if name in by_name]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """A request was sent."""
        ask = _ask_of(pending_request)
        if ask is not None:
            self._requests[pending_request.metadata.internal_request_id] = ask.id
            self._policy.routed(ask.hint, replica_id.unique_id, ask.id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A request is over."""
        request = self._requests.pop(internal_request_id, None)
        if request is not None:
            self._policy.completed(request)

    def note_begun(self, request: str) -> None:
        """A request has its first token. Any thread may say so."""
        self._event_loop.call_soon_threadsafe(self._policy.begun, request)


def begun(request: str) -> None:
    """Tell the routers of this process that a request has its first token."""
    for router in [*_here]:
        router.note_begun(request)


def _ask_of(pending: PendingRequest) -> Ask | None:
    first = pending.args[0] if pending.args else None
    return first if isinstance(first, Ask) else None
