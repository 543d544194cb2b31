"""``Policy``: which replica gets a request.

What a replica would have to do before the first token is estimated in bytes of text: what of the
prompt it does not hold, and what it was given before and has not evaluated yet. The replica with
the least gets the request. So a short prompt goes where nobody waits, a long one where it is known,
and nobody waits behind a crowd for the sake of a few blocks.

* A session stays with its replica, unless that is so much busier than another one that moving the
  session is quicker, even if nothing of it is found there.
* Evaluating something where memory is full drives out something else, which has to be evaluated
  again some day. So new conversations go where there is room.
* What was sent to a replica is taken for held until the replica says otherwise
  (``note_state``): then what it has evicted is forgotten here, too.

Everything is bounded, and whatever is longest unused goes. Replicas are named by strings. It does
no I/O, knows no clock and is used by one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from llama_py.dialects.routing_hints import Hint

__all__ = ["Choice", "Policy", "PolicySettings", "ReplicaState"]

#: Share of a new estimate of what a request takes in the running mean.
_WEIGHT = 0.1
#: Bytes that a request is taken to need before any is known.
_FIRST_GUESS = 2048.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The weights of the policy.

    Attributes:
        most_blocks: digests that are remembered of each replica.
        most_sessions: sessions whose replica is remembered.
        patience: a session leaves its replica when that has more than so many requests in flight
            beyond those of the least busy one, and half as many again.
        reply_bytes: what a reply that is being written costs others, as bytes of prompt.
    """

    most_blocks: int = 65_536
    most_sessions: int = 65_536
    patience: int = 16
    reply_bytes: float = 256.0


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica's own report.

    Attributes:
        running, waiting: requests of its engine.
        room: bytes of text that its memory holds, about; 0 if that is not known.
        used: bytes of text that are in it.
        models: the ids of the models in memory.
        held: digests that it really holds.
        lost: digests that it was sent, and has no more.
    """

    running: int = 0
    waiting: int = 0
    room: float = 0.0
    used: float = 0.0
    models: frozenset[str] = frozenset()
    held: Sequence[int] = ()
    lost: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, and what it has of a request.

    Attributes:
        replica: its name.
        shared: bytes of the request that it is taken to hold.
        cost: bytes before the first token.
        kept: it is the one that the request's session was with.
    """

    replica: str
    shared: int
    cost: float
    kept: bool


@dataclass(slots=True)
class _KnownReplica:
    """A replica's known load and prefixes."""

    name: str
    state: ReplicaState = field(default_factory=ReplicaState)
    #: Digests, the one used last at the end.
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    #: What each request in flight was expected to evaluate, by its number.
    in_flight: dict[str, float] = field(default_factory=dict)
    #: Bytes that were sent there since it last said how full it is.
    added: float = 0.0
    #: Requests of other routers, and the most of our own since it last said how busy it is.
    others: int = 0
    peak: int = 0

    @property
    def load(self) -> int:
        """Requests in flight: our own, which are known, and those of others, which it told."""
        return len(self.in_flight) + self.others

    def tell(self, state: ReplicaState) -> None:
        """What it says of itself, which was so a moment ago: our own requests may have ended since,
        and are none of others."""
        self.others = max(0, state.running + state.waiting - self.peak)
        self.peak = len(self.in_flight)
        self.state, self.added = state, 0.0

    @property
    def fill(self) -> float:
        """Bytes of text that were sent there, or that it says it has."""
        return self.state.used + self.added

    def shares(self, hint: Hint) -> int:
        """Bytes at the beginning of a request that are here."""
        shared = 0
        for digest, end in zip(hint.blocks, hint.ends, strict=True):
            if digest not in self.blocks:
                break
            shared = end
        return shared

    def crowding(self, new: float) -> float:
        """Bytes that something new would drive out."""
        if not self.state.room:
            return 0.0
        return min(new, max(0.0, self.fill + new - self.state.room))


class Policy:
    """See the module."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self.settings = settings if settings is not None else PolicySettings()
        self._replicas: dict[str, _KnownReplica] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        #: Requests in flight, and where they are.
        self._where: dict[str, str] = {}
        self._mean = _FIRST_GUESS

    # -- who there is ---------------------------------------------------------------------------

    def set_replicas(self, names: Collection[str]) -> None:
        """These replicas there are now. What was known of others is forgotten."""
        for gone in self._replicas.keys() - set(names):
            self.drop(gone)
        for name in names:
            self._replicas.setdefault(name, _KnownReplica(name))

    def drop(self, name: str) -> None:
        """A replica is gone; its sessions go to others when they come."""
        gone = self._replicas.pop(name, None)
        for request in gone.in_flight if gone is not None else ():
            self._where.pop(request, None)

    def note_state(self, name: str, state: ReplicaState) -> None:
        """A replica's own report. Once more the same changes nothing."""
        replica = self._replicas.get(name)
        if replica is None or replica.state is state or replica.state == state:
            return
        replica.tell(state)
        for digest in state.lost:
            replica.blocks.pop(digest, None)
        self._remember(replica, state.held)

    # -- choosing -------------------------------------------------------------------------------

    def rank(self, hint: Hint) -> list[Choice]:
        """The replicas for a request, the best one first."""
        home = self._sessions.get(hint.session) if hint.session is not None else None
        least = min((each.load for each in self._replicas.values()), default=0)
        most = max(least + self.settings.patience, 1.5 * least)
        choices = []
        for replica in self._replicas.values():
            shared = replica.shares(hint)
            new = hint.size - shared
            before = sum(replica.in_flight.values()) + self.settings.reply_bytes * replica.load
            unseen = replica.others * self._mean
            loading = 0.0
            if hint.model and replica.state.models and hint.model not in replica.state.models:
                loading = 64 * self._mean
            cost = new + before + unseen + loading + replica.crowding(new)
            stays = replica.name == home and replica.load <= most
            choices.append(Choice(replica.name, shared, cost, stays))
        loads = {each.name: (each.load, each.fill) for each in self._replicas.values()}
        choices.sort(
            key=lambda each: (
                not each.kept,
                each.cost,
                loads[each.replica],
                _turn(hint, each.replica),
            )
        )
        return choices

    # -- what became of it ----------------------------------------------------------------------

    def routed(self, hint: Hint, name: str, request: str) -> None:
        """A request went to a replica.

        Args:
            request: names it until ``completed``.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return
        new = float(hint.size - replica.shares(hint))
        self._mean += _WEIGHT * (new - self._mean)
        self.completed(request)  # if it was sent elsewhere before
        self._where[request] = name
        replica.in_flight[request] = new
        replica.peak = max(replica.peak, len(replica.in_flight))
        replica.added += new
        self._remember(replica, hint.blocks)
        if hint.session is not None:
            self._sessions[hint.session] = name
            self._sessions.move_to_end(hint.session)
            while len(self._sessions) > self.settings.most_sessions:
                self._sessions.popitem(last=False)

    def begun(self, request: str) -> None:
        """A request has its first token: what is left of it costs others little."""
        replica = self._replicas.get(self._where.get(request, ""))
        if replica is not None:
            replica.in_flight[request] = 0.0

    def completed(self, request: str) -> None:
        """A request is over, however it ended."""
        replica = self._replicas.get(self._where.pop(request, ""))
        if replica is not None:
            replica.in_flight.pop(request, None)

    def home_of(self, session: str) -> str | None:
        """The replica that a session was with last, if it is still there."""
        home = self._sessions.get(session)
        return home if home in self._replicas else None

    def sizes(self) -> Mapping[str, int]:
        """How much is remembered: blocks of all replicas, and sessions."""
        blocks = sum(len(each.blocks) for each in self._replicas.values())
        return {"blocks": blocks, "sessions": len(self._sessions)}

    def _remember(self, replica: _KnownReplica, digests: Sequence[int]) -> None:
        for digest in reversed(digests):  # a beginning without what it begins would be of no use
            replica.blocks[digest] = None
            replica.blocks.move_to_end(digest)
        while len(replica.blocks) > self.settings.most_blocks:
            replica.blocks.popitem(last=False)


def _turn(hint: Hint, name: str) -> int:
    """Spreads what is equal otherwise, and in the same way in every router."""
    seed = hint.session or (str(hint.blocks[-1]) if hint.blocks else "")
    value = 14695981039346656037
    for byte in f"{seed}\x1f{name}".encode():
        value = ((value ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return value
