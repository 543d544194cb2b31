"""A cluster as a discrete simulation: replicas that step, memories that evict, one router.

The router is the cluster's own (``llama_py.cluster.policy``), with the same hints of the same
texts; beside it there are others to compare with. A replica does what its engine does, step by
step, and what is in a step is decided by the engine's own scheduler (``llama_py.engine.scheduler``,
``llama_py.engine.prefill_budget``). Its memory is a set of blocks of text, of which those longest
unused go. What steps cost is measured on real replicas (``Constants``). What a network costs, and
what machines do to each other beyond sharing processors, is not in it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.cluster_load import Conversation, Workload
from llama_py.bench.http_load import percentile
from llama_py.cluster.policy import Policy, PolicySettings, ReplicaState
from llama_py.dialects.routing_hints import Hint, hint_of
from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.engine.scheduler import Prefill, plan_step
from llama_py.params import ContextParams

__all__ = ["ROUTINGS", "Cluster", "Constants", "Result", "simulate"]


@dataclass(frozen=True, slots=True)
class Constants:
    """What things cost, in seconds of a processor, and how long texts are.

    Attributes:
        overhead: from a request to the engine, and from its first token back.
        step: of a step, whatever is in it.
        token: of a token of a prompt.
        position: of a token of a prompt, for each token before it.
        stream: of a token that is generated.
        reply: tokens of a reply, on average.
        agent, chat: tokens of a text: so many, and so many for each byte.
        prompt: tokens of prompts that a step takes at most.
        beside: how much longer all takes while all shared processors are busy, besides what sharing
            them costs: they have caches and memory in common.
    """

    overhead: float = 0.02
    step: float = 0.0008
    token: float = 0.00008
    position: float = 1e-8
    stream: float = 0.0003
    reply: float = 24.0
    agent: tuple[float, float] = (20.0, 0.4)
    chat: tuple[float, float] = (10.0, 0.4)
    prompt: int = 512
    beside: float = 1.0

    def tokens(self, size: int, *, agent: bool) -> int:
        """Tokens of a text of so many bytes."""
        least, each = self.agent if agent else self.chat
        return max(1, round(least + each * size))


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated.

    Attributes:
        replicas: how many.
        routing: one of ``ROUTINGS``.
        memory: tokens that a replica's memory holds, those that are parked in RAM too.
        cells: tokens of all that run at once in a replica; who finds no room waits. 0: no limit.
        processors: that all replicas share; 0 gives each its own.
        taken: of these, what Ray and the clients take for each replica whose replies they pass on.
        store: what one replica has evaluated, another one can load.
        state_seconds: how often replicas say what they hold.
        failures: at which seconds a replica dies, and is there again after ``restart`` seconds.
    """

    replicas: int = 3
    routing: str = "prefix"
    memory: int = 16_384
    cells: int = 0
    processors: float = 0.0
    taken: float = 0.0
    store: bool = False
    state_seconds: float = 2.0
    failures: Sequence[float] = ()
    restart: float = 15.0
    policy: PolicySettings = field(default_factory=PolicySettings)


@dataclass(slots=True)
class Result:
    """What came of it.

    Attributes:
        firsts: seconds to the first token, of each request.
        prompt, evaluated: tokens of prompts, and those that were not reused.
        kept, moved: later turns at the replica of the turn before, and elsewhere.
        again: requests that were sent again because their replica died.
        seconds: until the last reply had ended.
    """

    firsts: list[float] = field(default_factory=list)
    prompt: int = 0
    evaluated: int = 0
    kept: int = 0
    moved: int = 0
    again: int = 0
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the tokens of prompts that were reused."""
        return 1 - self.evaluated / self.prompt if self.prompt else 0.0

    @property
    def stays(self) -> float:
        """Share of the later turns at the replica of the turn before."""
        turns = self.kept + self.moved
        return self.kept / turns if turns else 1.0

    def first_token(self, share: float) -> float:
        """Seconds to the first token that this share of the requests did not exceed."""
        return percentile(self.firsts, share)


def simulate(workload: Workload, cluster: Cluster, constants: Constants, seed: int = 1) -> Result:
    """Play a workload."""
    return _Simulation(workload, cluster, constants, seed).run()


# ---- memory --------------------------------------------------------------------------------------


class _Memory:
    """Blocks of text, of which those longest unused go."""

    def __init__(self, room: float) -> None:
        self._room = room
        self._blocks: OrderedDict[int, float] = OrderedDict()
        self.used = 0.0
        self.lost: OrderedDict[int, None] = OrderedDict()

    def shares(self, hint: Hint) -> int:
        """Bytes at the beginning of a text that are here."""
        shared = 0
        for digest, end in zip(hint.blocks, hint.ends, strict=True):
            if digest not in self._blocks:
                break
            shared = end
        return shared

    def add(self, hint: Hint, per_byte: float) -> None:
        """A text is here now, as a whole."""
        starts = (0, *hint.ends[:-1])
        for digest, start, end in reversed([*zip(hint.blocks, starts, hint.ends, strict=True)]):
            if digest not in self._blocks:
                self._blocks[digest] = (end - start) * per_byte
                self.used += self._blocks[digest]
            self._blocks.move_to_end(digest)
            self.lost.pop(digest, None)
        while self.used > self._room and self._blocks:
            digest, size = self._blocks.popitem(last=False)
            self.used -= size
            self.lost[digest] = None
        while len(self.lost) > 8192:
            self.lost.popitem(last=False)

    def held(self) -> tuple[int, ...]:
        """The digests of what is here."""
        return tuple(itertools.islice(reversed(self._blocks), 8192))[::-1]


# ---- requests and replicas -----------------------------------------------------------------------

#: How much more or less than usual the overhead of a request is. A request that comes a moment
#: earlier or later meets another step, and moves all that follow: without it one run among many
#: that are possible would be taken for all of them.
_SPREAD = 0.25
#: Rows of a step, at most.
_N_BATCH = ContextParams().n_batch


@dataclass(slots=True, eq=False)
class _Request:
    """A turn of a conversation, as the engine's planner sees it, too.

    Attributes:
        after: what is in memory when it has ended.
        left: tokens of the prompt that are not evaluated yet.
        to_evaluate: tokens of it that were not reused.
        position: tokens of it that are in memory.
        writes: tokens of its reply that are not written yet.
    """

    number: str
    conversation: Conversation
    turn: int
    hint: Hint
    after: Hint
    tokens: int
    asked: float
    left: int = 0
    to_evaluate: int = 0
    position: int = 0
    writes: int = 0
    written: int = 0

    paused = False
    read = True

    @property
    def prompt_left(self) -> int:
        return self.left

    @property
    def started(self) -> float:
        return self.asked

    chunk_limit = prompt_left


class _Replica:
    """An engine and its memory."""

    def __init__(self, name: str, cluster: Cluster, constants: Constants) -> None:
        self.name = name
        self.memory = _Memory(cluster.memory)
        self._cells = cluster.cells or float("inf")
        self._constants = constants
        self._budget = PrefillBudget()
        self._passed_over = False
        #: The oldest first.
        self.requests: list[_Request] = []
        self.busy = False
        self.prefilling = False
        self.alive = True

    @property
    def streams(self) -> list[_Request]:
        """Requests whose replies are being written."""
        return [each for each in self.requests if not each.left]

    @property
    def waiting(self) -> list[_Request]:
        """Requests whose prompts are not done."""
        return [each for each in self.requests if each.left]

    def step(self, now: float) -> tuple[float, list[_Request], list[_Request]]:
        """What a step takes, the requests that have their first token by it, and those that end."""
        costs, streams = self._constants, self.streams
        prefills = self._prefills(now) if len(streams) < len(self.requests) else ()
        self.prefilling = bool(prefills)
        seconds = costs.step + costs.stream * len(streams)
        for request in streams:
            request.writes -= 1
            request.written += 1
        begun = []
        for chunk in prefills:
            request, count = chunk.request, chunk.count
            seconds += count * (costs.token + costs.position * (request.position + count / 2))
            request.left -= count
            request.position += count
            if not request.left:
                begun.append(request)
        self._budget.note(len(streams), sum(each.count for each in prefills), seconds)
        # They are here until the step is over: a replica that dies in it has not answered them.
        ended = [each for each in self.requests if not each.left and each.writes <= 0]
        return seconds, begun, ended

    def _prefills(self, now: float) -> Sequence[Prefill[_Request]]:
        """What the next step has of prompts, in the engine's way."""
        running, chunk = self._running(), self._constants.prompt
        plan = plan_step(
            running,
            _N_BATCH,
            chunk,
            beside=self._budget.beside(running, chunk, now),
            passed_over=self._passed_over,
        )
        if plan.prefills:
            self._passed_over = plan.prefills[0].request is not self.waiting[0]
        return plan.prefills

    def _running(self) -> list[_Request]:
        """Those that there are cells for: smaller ones do not wait for a large one."""
        running: list[_Request] = []
        left = self._cells
        for request in self.requests:
            if not running or request.tokens <= left:
                running.append(request)
                left -= request.tokens
        return running


# ---- routing -------------------------------------------------------------------------------------

Choose = Callable[["_Simulation", _Request, list[_Replica]], _Replica]


def _prefix(simulation: _Simulation, request: _Request, there: list[_Replica]) -> _Replica:
    """The cluster's own."""
    name = simulation.policy.rank(request.hint)[0].replica
    return next(each for each in there if each.name == name)


def _two(simulation: _Simulation, request: _Request, there: list[_Replica]) -> _Replica:
    """Ray's default: the less busy of two."""
    some = simulation.source.sample(there, min(2, len(there)))
    return min(some, key=lambda each: len(each.requests))


def _least(simulation: _Simulation, request: _Request, there: list[_Replica]) -> _Replica:
    """The least busy of all."""
    least = min(len(each.requests) for each in there)
    return simulation.source.choice([each for each in there if len(each.requests) == least])


def _hashed(simulation: _Simulation, request: _Request, there: list[_Replica]) -> _Replica:
    """By the name of the session, as a proxy does that hashes a header."""
    name = request.conversation.name
    return max(there, key=lambda each: random.Random(f"{name} {each.name}").random())


def _in_turn(simulation: _Simulation, request: _Request, there: list[_Replica]) -> _Replica:
    """One after the other."""
    return there[next(simulation.turns) % len(there)]


ROUTINGS: dict[str, Choose] = {
    "prefix": _prefix,
    "default": _two,
    "least busy": _least,
    "session hash": _hashed,
    "in turn": _in_turn,
}


# ---- the simulation ------------------------------------------------------------------------------


class _Simulation:
    """See the module. Times are seconds after the beginning.

    Attributes:
        policy: the cluster's own router.
        source, turns: of the other ones.
    """

    def __init__(
        self, workload: Workload, cluster: Cluster, constants: Constants, seed: int
    ) -> None:
        self._cluster, self._constants = cluster, constants
        self._workload = workload
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._open = len(workload.conversations)
        self._replicas = [self._new(f"{number}") for number in range(cluster.replicas)]
        self._stored = _Memory(float("inf"))
        self._homes: dict[str, str] = {}
        self._held_up: list[_Request] = []
        self._result = Result()
        self.policy = Policy(cluster.policy)
        self.source = random.Random(f"routing {seed}")
        self._luck = random.Random(f"overhead {seed}")
        self.turns = itertools.count()

    def _new(self, name: str) -> _Replica:
        return _Replica(name, self._cluster, self._constants)

    def run(self) -> Result:
        """Until the last conversation has ended."""
        self._tell_policy()
        for conversation in self._workload.conversations:
            first = conversation.start + conversation.turns[0].pause
            self._at(first, self._asking(conversation, 0, []))
        for number, when in enumerate(self._cluster.failures):
            self._at(when, self._failing(number))
        self._at(self._cluster.state_seconds, self._report)
        while self._events and self._open:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        self._result.seconds = self._now
        return self._result

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _there(self) -> list[_Replica]:
        return [each for each in self._replicas if each.alive]

    # -- requests -------------------------------------------------------------------------------

    def _asking(
        self, conversation: Conversation, turn: int, said: list[dict[str, Any]]
    ) -> Callable[[], None]:
        def ask() -> None:
            new = conversation.turns[turn].messages
            messages = [*said, *new] if conversation.grows else [*new]
            self._send(self._request(conversation, turn, messages))

        return ask

    def _request(
        self, conversation: Conversation, turn: int, messages: list[dict[str, Any]]
    ) -> _Request:
        reply = {"role": "assistant", "content": f"{conversation.name} {turn} " + "word " * 18}
        body: dict[str, Any] = {"messages": messages}
        if conversation.tools:
            body["tools"] = conversation.tools
        hint = hint_of(body, session=conversation.name)
        # What an agent has recorded is not what is generated: only chats go on with the reply.
        grown = {**body, "messages": [*messages, reply]} if conversation.grows else body
        after = hint_of(grown, session=conversation.name)
        tokens = self._constants.tokens(hint.size, agent=not conversation.grows)
        number = f"{conversation.name}/{turn}"
        return _Request(number, conversation, turn, hint, after, tokens, self._now)

    def _send(self, request: _Request) -> None:
        there = self._there()
        if not there:
            self._held_up.append(request)
            return
        replica = ROUTINGS[self._cluster.routing](self, request, there)
        self.policy.routed(request.hint, replica.name, request.number)
        name = request.conversation.name
        if request.turn:
            same = self._homes.get(name) == replica.name
            self._result.kept += same
            self._result.moved += not same
        self._homes[name] = replica.name
        self._at(self._now + self._delay(), lambda: self._enter(request, replica))

    def _delay(self) -> float:
        some = self._luck.uniform(1 - _SPREAD, 1 + _SPREAD)
        return self._constants.overhead * some * self._slowness()

    def _enter(self, request: _Request, replica: _Replica) -> None:
        if not replica.alive:
            self._again(request)
            return
        shared = replica.memory.shares(request.hint)
        if self._cluster.store:
            shared = max(shared, self._stored.shares(request.hint))
        share = shared / request.hint.size if request.hint.size else 0.0
        # The last token is evaluated in any case.
        reused = min(request.tokens - 1, round(share * request.tokens))
        request.position, request.to_evaluate = reused, request.tokens - reused
        request.left = request.to_evaluate
        request.writes, request.written = max(1, round(self._constants.reply)), 0
        self._result.prompt += request.tokens
        self._result.evaluated += request.left
        replica.requests.append(request)
        self._work(replica)

    def _again(self, request: _Request) -> None:
        self._result.again += 1
        self.policy.completed(request.number)
        self._send(request)

    # -- replicas -------------------------------------------------------------------------------

    def _slowness(self) -> float:
        """How much slower everything is because of who else computes."""
        processors = self._cluster.processors
        if not processors:
            return 1.0
        busy = [each for each in self._replicas if each.alive and each.busy]
        passed_on = sum(not each.prefilling for each in busy)
        load = (len(busy) + self._cluster.taken * passed_on) / processors
        return load * self._constants.beside if load >= 1 else 1.0

    def _work(self, replica: _Replica) -> None:
        if replica.busy or not replica.alive or not replica.requests:
            return
        replica.busy = True
        seconds, begun, ended = replica.step(self._now)
        done = self._now + seconds * self._slowness()
        self._at(done, lambda: self._stepped(replica, begun, ended))

    def _stepped(self, replica: _Replica, begun: list[_Request], ended: list[_Request]) -> None:
        replica.busy = False
        if not replica.alive:
            return
        for request in begun:
            self._result.firsts.append(self._now - request.asked)
            self.policy.begun(request.number)
            self._remember(replica, request, request.hint)
        for request in ended:
            replica.requests.remove(request)
            self._remember(replica, request, request.after)
            self.policy.completed(request.number)
            self._next(request)
        self._work(replica)

    def _remember(self, replica: _Replica, request: _Request, hint: Hint) -> None:
        per_byte = request.tokens / max(1, request.hint.size)
        replica.memory.add(hint, per_byte)
        if self._cluster.store:
            self._stored.add(hint, per_byte)

    def _next(self, request: _Request) -> None:
        conversation, turn = request.conversation, request.turn + 1
        if turn == len(conversation.turns):
            self._open -= 1
            return
        said: list[dict[str, Any]] = []
        if conversation.grows:
            for number in range(turn):
                said += conversation.turns[number].messages
                spoken = f"{conversation.name} {number} " + "word " * 18
                said.append({"role": "assistant", "content": spoken})
        pause = conversation.turns[turn].pause
        self._at(self._now + pause, self._asking(conversation, turn, said))

    # -- what happens beside --------------------------------------------------------------------

    def _tell_policy(self) -> None:
        self.policy.set_replicas([each.name for each in self._there()])

    def _report(self) -> None:
        for replica in self._there():
            self.policy.note_state(replica.name, self._state(replica))
        self._at(self._now + self._cluster.state_seconds, self._report)

    def _state(self, replica: _Replica) -> ReplicaState:
        bytes_ = 1 / self._constants.chat[1]
        memory = replica.memory
        state = ReplicaState(
            len(replica.streams),
            len(replica.waiting),
            self._cluster.memory * bytes_,
            memory.used * bytes_,
            frozenset(),
            memory.held(),
            tuple(memory.lost),
        )
        memory.lost.clear()
        return state

    def _failing(self, number: int) -> Callable[[], None]:
        def fail() -> None:
            there = self._there()
            if not there:
                return
            dead = there[number % len(there)]
            dead.alive = False
            lost = [*dead.requests]
            self.policy.drop(dead.name)
            for request in lost:
                self._again(request)
            place = self._replicas.index(dead)
            self._at(self._now + self._cluster.restart, lambda: self._return(place))

        return fail

    def _return(self, place: int) -> None:
        self._replicas[place] = self._new(self._replicas[place].name + "'")
        self._tell_policy()
        held_up, self._held_up = self._held_up, []
        for request in held_up:
            self._send(request)


def described(constants: Constants) -> dict[str, Any]:
    """The constants as JSON has them."""
    return asdict(constants)


def constants_of(values: dict[str, Any]) -> Constants:
    """And back."""
    pairs: dict[str, Any] = {
        name: tuple(values[name]) for name in ("agent", "chat") if name in values
    }
    return replace(Constants(), **(values | pairs))
