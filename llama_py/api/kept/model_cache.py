"""``ModelStates``: what is kept of conversations; ``ModelCache``: all that is in memory."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from llama_py.api.kept.conversations import Conversations
from llama_py.api.kept.reports import CacheReport
from llama_py.api.kept.states import LlamaState, SequenceStates, SnapshotInfo
from llama_py.api.runtime import Runtime
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.memory.sequences import ReuseInfo
from llama_py.options import PromptOptions
from llama_py.params import GenerationParams, SamplingParams
from llama_py.states.named import NamedState, NamedStates
from llama_py.states.state import StoredState
from llama_py.states.store import StateStore

__all__ = ["ModelCache", "ModelStates", "Prewarmed", "check_store"]

Messages = Sequence[Mapping[str, Any]]


class Prewarmed(dict[str, Any]):
    """The return value of ``prewarm``: tokens reused and evaluated, like ``ModelCache.info``.

    Attributes:
        tokens: the beginning that is in memory now; ``pin`` and ``unpin`` find it by them.
    """

    def __init__(self, info: Mapping[str, Any], tokens: Sequence[int]) -> None:
        super().__init__(info)
        self.tokens = tuple(tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prewarmed, (dict(self), self.tokens)


class ModelStates:
    """Conversations that a model keeps; it is ``llm.states``.

    A state is one sequence: what ``eval`` evaluated, or else the conversation of the call that
    ended last. Restored, it is where ``eval`` goes on, and later calls may reuse it. All methods
    may be called by any thread.
    """

    def __init__(self, runtime: Runtime, slots: int) -> None:
        self._runtime = runtime
        self._sequences = SequenceStates(runtime.port, runtime.by_hand, runtime.last)
        self._named = NamedStates(slots)

    # -- states and snapshots -------------------------------------------------------------------

    def save(self, name: str | None = None, length: int | None = None) -> LlamaState:
        """A copy of a state. What is still being generated is not touched.

        Args:
            name: keep it as well: as a snapshot, which ``restore`` and ``pin`` find by this name.
                An older one of that name is replaced only when the new one is complete. When all
                ``prefix_cache_slots`` are taken, the one that was not used for longest goes.
            length: only its first tokens. A recurrent state cannot be taken apart, nor a window
                that has passed: there it works at the positions of checkpoints only.

        Raises:
            ParameterError: it has a name, and snapshots are off (``prefix_cache_slots=0``).
            StateError: nothing was evaluated yet; it is not in memory any more; or ``length``
                tokens cannot be given back.
        """
        if name is not None:
            _check_name(name)
            if not self._named.slots:
                raise ParameterError(
                    "snapshots are off; load the model with prefix_cache_slots > 0"
                )
        state = self._sequences.save(length)
        if name is not None:
            self._named.keep("", NamedState(name, state.stored, state.logits))
        return state

    def restore(self, what: LlamaState | str) -> SnapshotInfo:
        """Bring a state back: one that ``save`` returned, or a snapshot by its name.

        Raises:
            ParameterError: there is no snapshot of that name.
            FingerprintError: it was made by another model, or under other settings.
            StateError: it does not fit.
        """
        self._runtime.loaded.driver.check()
        state = self._snapshot(what) if isinstance(what, str) else what
        self._sequences.load(state)
        return SnapshotInfo(what if isinstance(what, str) else "", state.n_tokens, state.nbytes)

    def list(self) -> builtins.list[SnapshotInfo]:
        """The snapshots, least recently used first."""
        return [
            SnapshotInfo(each.name, len(each.state.tokens), each.nbytes)
            for each in self._named.of("")
        ]

    def drop(self, name: str) -> None:
        """Forget a snapshot, if there is one of that name."""
        self._named.drop("", "", _check_name(name))

    def _snapshot(self, name: str) -> LlamaState:
        found = self._named.get("", "", _check_name(name))
        if found is None:
            known = ", ".join(repr(each.name) for each in self._named.of("")) or "none"
            raise ParameterError(f"there is no snapshot {name!r}; there are: {known}")
        return LlamaState(found.state, found.logits)

    # -- pins -----------------------------------------------------------------------------------

    def pin(self, what: Prewarmed | str) -> None:
        """Keep a beginning in memory: it is evicted only when nothing else is left.

        Args:
            what: what ``prewarm`` returned, or the name of a snapshot, which is brought back if it
                is not in memory.

        Raises:
            ParameterError: there is no such snapshot.
            StateError: it is not in memory any more: prewarm it again.
        """
        there = self._sequences.hold(self._tokens_of(what), isinstance(what, str))
        if isinstance(what, str) and not there:
            Conversations(self._runtime.port).bring_in(self._snapshot(what).stored, None)

    def unpin(self, what: Prewarmed | str | None = None) -> None:
        """Release a pin: the beginning may be evicted like everything else.

        Args:
            what: as for ``pin``; None for everything that is pinned.
        """
        self._sequences.let_go(None if what is None else self._tokens_of(what))

    def _tokens_of(self, what: Prewarmed | str) -> tuple[int, ...]:
        if isinstance(what, Prewarmed):
            return what.tokens
        if isinstance(what, str):
            return tuple(self._snapshot(what).stored.tokens.tolist())
        raise ParameterTypeError(
            f"what must be what prewarm() returned or the name of a snapshot, not {shown(what)}"
        )

    # -- stores ---------------------------------------------------------------------------------

    def set_store(self, store: StateStore | None) -> None:
        """Write every conversation to ``store`` when a call ends, and look there for prefixes.

        Args:
            store: a ``LlamaRAMCache`` or ``LlamaDiskCache``; None stops using one. It is not
                closed with the model, and several models and processes may share one.

        Raises:
            ParameterTypeError: it is not a store.
        """
        check_store(store)
        self._runtime.port.set_store(store)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until what calls left behind is in the store that was set.

        Conversations are written beside other calls, after the end of their replies.

        Returns:
            False if that took longer than ``timeout`` seconds.
        """
        return self._runtime.port.write_out(timeout)


class ModelCache(ModelStates):
    """The cache of a model, with all that ``ModelStates`` has; it is ``llm.cache``.

    Conversations are found by their text automatically; most programs need only ``info`` and
    ``report()``. All methods may be called by any thread.
    """

    def __repr__(self) -> str:
        port = self._runtime.port
        if port.inherited or port.model.closed:
            return "ModelCache(closed)"
        report = self.report()
        talks = len(report["sequences"])
        return (
            f"ModelCache({report['cells_used']} of {report['cells']} cells used, "
            f"{talks} conversation{'' if talks == 1 else 's'} in memory)"
        )

    # -- what happened, and what there is -------------------------------------------------------

    @property
    def info(self) -> ReuseInfo:
        """Reuse of the prompt of the reply that ended last, or whose stream was read last.

        The reply may belong to any thread; with several threads, use the ``cache`` of each reply
        instead. It is empty before the first reply.
        """
        outcome = self._runtime.last.outcome
        return outcome.cache if outcome is not None else {}

    def report(self) -> CacheReport:
        """Cells, sequences, and bytes in each tier."""
        found = self._sequences.report()
        found["bytes"]["snapshots"] = sum(each.nbytes for each in self._named.of(""))
        return found

    # -- prewarming ----------------------------------------------------------------------------

    def prewarm(
        self, messages: Messages, *, pin: bool = True, **options: Unpack[PromptOptions]
    ) -> Prewarmed:
        """Evaluate the beginning of conversations ahead of time, so that they start without delay.

        Args:
            messages: the messages that they begin with: the system message, or more.
            pin: evict it only when nothing else is left to evict.
            options: those of ``create_chat_completion`` that change the prompt: ``tools``,
                ``chat_template_kwargs``, ...

        Returns:
            What was reused and evaluated, like ``info``. Pass it to ``unpin``.
        """
        given: Any = messages
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise ParameterTypeError(f"messages must be a list, not {shown(messages)}")
        request = GenerationRequest(
            self._common_opening(messages, options),
            SamplingParams(temperature=0.0),
            GenerationParams(max_tokens=0),
            pin=pin,
        )
        record = self._runtime.run(request)
        return Prewarmed(record.cache, record.tokens)

    def _common_opening(self, messages: Messages, options: Mapping[str, Any]) -> Prompt:
        """What every conversation that begins with ``messages`` begins with.

        Two different next messages are rendered: what the prompts have in common, up to the last
        role boundary in it, does not depend on what comes next.
        """
        first, second = (
            self._runtime.calls.prompt_of([*messages, {"role": "user", "content": text}], options)
            for text in ("A", "Bb")
        )
        a, b = first.text or b"", second.text or b""
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        starts = [start for start in first.boundaries if start <= shared]
        if not starts:
            raise ParameterError("these messages leave nothing to evaluate ahead of time")
        end = starts[-1]
        plain = tuple((start, min(stop, end)) for start, stop in first.plain if start < end)
        media = tuple(each for each in first.media if each.end <= end)
        return Prompt(text=a[:end], boundaries=tuple(starts[:-1]), plain=plain, media=media)

    # -- conversations that are saved to files --------------------------------------------------

    def state_of(
        self, messages: Messages, session: str, options: Mapping[str, Any]
    ) -> StoredState | None:
        """The state of a conversation before its next turn, or None if it is not in memory.

        When the sequence went on with another branch, the conversation is given one of its own
        again, for which little is evaluated.

        Args:
            session: its ``session_id``.
            options: what changes the prompt.
        """
        prompt = self._runtime.calls.prompt_of(
            [*messages, {"role": "user", "content": "."}], options
        )
        found = self._sequences.of_prompt(prompt, session)
        if found is None and self._sequences.mostly_cached(prompt):
            self.prewarm(messages, pin=False, **options)
            found = self._sequences.of_prompt(prompt, session)
        return found

    def bring_in(self, state: StoredState, session: str) -> None:
        """Bring the state of a conversation back, for its next turn.

        Raises:
            StateError: it is of another model, it does not fit, or every sequence is busy.
        """
        Conversations(self._runtime.port).bring_in(state, session)

    # -- the end --------------------------------------------------------------------------------

    def reset(self, *, cancel: bool = False) -> None:
        """Clear the memory (``llama_memory_clear``) and everything that is known about it.

        It is done as soon as nothing is in flight: the requests of other threads are waited for,
        and new ones wait until it is done. Offloaded conversations, checkpoints and counters are
        gone. A store that was set, and named snapshots, are the caller's: they keep what they hold.

        Args:
            cancel: end the requests of other threads (with ``RequestCancelled``) instead of waiting
                for them. Streams that the calling thread has opened end in any case: nobody would
                read them meanwhile.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was cleared.
        """

        self._runtime.port.reset(cancel, self._forget)

    def _forget(self) -> None:
        self._runtime.by_hand.forget()
        self._runtime.last.forget()

    # -- names of versions before this one ------------------------------------------------------

    def save_state(self) -> LlamaState:
        """``llm.states.save()``."""
        return self.save()

    def load_state(self, state: LlamaState) -> None:
        """``llm.states.restore(state)``."""
        self.restore(state)

    def snapshot(self, name: str, length: int | None = None) -> SnapshotInfo:
        """``llm.states.save(name, length)``."""
        state = self.save(_check_name(name), length)
        return SnapshotInfo(name, state.n_tokens, state.nbytes)

    def snapshots(self) -> list[SnapshotInfo]:
        """``llm.states.list()``."""
        return self.list()


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ParameterTypeError(f"name must be a string, not {shown(name)}")
    return name


def check_store(store: Any) -> None:
    """Raise unless ``store`` has the attributes of a ``StateStore``, which every call needs."""
    if store is None:
        return
    wanted = sorted(name for name in vars(StateStore) if not name.startswith("_"))
    missing = [name for name in wanted if not hasattr(type(store), name)]
    if missing or not hasattr(store, "capacity_bytes"):
        lack = f", which has no {(*missing, 'capacity_bytes')[0]}"
        raise ParameterTypeError(
            f"cache must be a LlamaRAMCache, a LlamaDiskCache or None, not {shown(store)}{lack}"
        )
