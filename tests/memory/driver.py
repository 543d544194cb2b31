"""Operations on one ``Llama`` as a user would do them, each checked against the oracle.

``Driver`` is what the state machines and the long run share. After every call that evaluated
something, the tokens that were generated and the logits at the last position must be those of a
context that evaluated the same tokens from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, LlamaDiskCache, Speculative
from llama_py.engine.request import Record
from llama_py.errors import ContextOverflowError, StateError

from .cuts import CutRecorder
from .oracle import Oracle, Row, nmse

WORDS = (
    "alpha",
    "beta ",
    "Gamma",
    "\n",
    "delta delta",
    "é",
    "漢字",
    "0 1 2 3 4 5",
    " x",
    "the the",
)
SYSTEMS = ("", "You are A.", "You are A. You know the alphabet by heart and never forget a letter.")
N_CTX = 512
#: Cells are kept in F32: rounding them to F16 would turn noise of 1e-14 into differences of 1e-9.
F32 = 0
#: Where the same tokens were evaluated alone in one place and together in another.
UNCERTAIN_TOLERANCE = 1e-9
#: Tolerances up to this ask for equal tokens as well.
EXACT = 1e-6
#: Logits, whose deviation is about 2, that differ by less are equally likely: a few times what
#: rounding does to them.
TIE = 1e-5


@dataclass
class Conversation:
    """Messages of one chat."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    session: str | None = None


_OPERATIONS = {"start", "turn", "edit", "regenerate", "fork", "offload", "cancel", "overflow"}
_OPERATIONS |= {"snapshot", "restore", "prewarm", "reset", "use_disk", "reopen", "raw", "together"}
_OPERATIONS |= {"drafted", "drafted_together", "rest"}


class Driver:
    """See the module.

    Attributes:
        operations: how many were done.
        guide: what drafts are of. Wrong ones cost time, and must change nothing.
        copied_ahead: conversations of which copies were begun while nothing ran.
    """

    def __init__(
        self,
        path: Path,
        directory: Path,
        *,
        swa_full: bool = False,
        flash_attn: bool = False,
        kv_unified: bool = True,
        n_seq_max: int = 3,
        tolerance: float = 1e-12,
    ) -> None:
        self.path, self.directory = path, directory
        self.options: dict[str, Any] = {
            "n_ctx": N_CTX if kv_unified else n_seq_max * N_CTX,
            "n_seq_max": n_seq_max,
            "kv_unified": kv_unified,
            "n_ubatch": 64,
            "n_batch": 128,
            "n_threads": 1,
            "flash_attn": flash_attn,
            "swa_full": swa_full,
            "type_k": F32,
            "type_v": F32,
        }
        self.tolerance = tolerance
        self.oracle = self.make_oracle(flash_attn)
        self.guide = self.oracle
        self.llm = self.load()
        self.cuts = CutRecorder()
        self.cuts.watch(self.llm)
        self.disk: LlamaDiskCache | None = None
        self.operations = 0
        self.worst = 0.0
        self.copied_ahead = 0
        self.conversations: list[Conversation] = []

    def make_oracle(self, flash_attn: bool) -> Oracle:
        """What says what is right."""
        return Oracle(self.path, n_ctx=N_CTX, flash_attn=flash_attn)

    def say(self, words: Sequence[int]) -> Any:
        """The content of a message of the user."""
        return text_of(words)

    def load(self) -> Llama:
        """Load the model; what is saved of it is in segments of some 20 tokens."""
        llm = Llama(str(self.path), **self.options)
        llm.runtime.loaded.cache.saving.piece = 40_000
        return llm

    def begin(self) -> None:
        """An empty beginning for a new sequence of operations."""
        self.llm.set_cache(None)
        if self.disk is not None:
            self.disk.clear()
        self.llm.reset()
        for info in self.llm.snapshots():
            self.llm.drop_snapshot(info.name)
        self.conversations = []

    # -- checks ---------------------------------------------------------------------------------

    def check(self, request: Record) -> None:
        """Compare a finished request, and the bookkeeping, with the oracle."""
        generated = request.generated
        runs, certain = self.cuts.runs(request.tokens)
        if generated and self.tolerance > EXACT:
            # Noise may turn a tie: follow the tokens that were chosen.
            singles = [[token] for token in generated[:-1]]
            row = self.oracle.logits([*request.tokens, *generated[:-1]], [*runs, *singles])
        elif generated:
            row = self.check_tokens(request, runs)
        else:
            row = self.oracle.logits(request.tokens, runs)
        info = f"{request.cache} tokens={request.tokens} generated={generated}"
        self.compare(row, certain, info)
        self.check_bookkeeping()

    def check_tokens(self, request: Record, runs: Sequence[Sequence[int]] | None = None) -> Row:
        """The tokens that were generated are the oracle's; returns its logits for the last one.

        Of two that are likeliest but for the last bit, either is right: with other rows in its
        batch, a row may be rounded another way.
        """
        generated = request.generated
        expected, row = self.oracle.greedy(request.tokens, len(generated), runs)
        if generated == expected:
            return row
        info = f"{request.cache} generated={generated} expected={expected}"
        for count, token in enumerate(generated):
            cut = None if runs is None else [*runs, *([each] for each in generated[:count])]
            row = self.oracle.logits([*request.tokens, *generated[:count]], cut)
            assert row.max() - row[token] <= TIE, info
        return row

    def compare(self, row: Row, certain: bool, info: str) -> None:
        """Compare the last logits with the oracle's."""
        error = nmse(self.llm.last_logits, row)
        if certain:
            self.worst = max(self.worst, error)
        allowed = self.tolerance if certain else max(self.tolerance, UNCERTAIN_TOLERANCE)
        assert error <= allowed, f"NMSE {error}: {info}"

    def check_bookkeeping(self) -> None:
        """What the cache believes is in memory is what the memory says."""
        cache, context = self.llm.runtime.loaded.cache, self.llm.runtime.loaded.context
        for number in range(context.n_seq_max):
            sequence = cache.live.by_number.get(number)
            held = len(sequence.tokens) if sequence is not None else 0
            last = sequence.last if sequence is not None else -1
            assert context.pos_max(number) == last, (number, held)

    def last_request(self) -> Record:
        request: Record = self.llm.runtime.last.record
        return request

    # -- operations -------------------------------------------------------------------------------

    def __getattribute__(self, name: str) -> Any:
        if name in _OPERATIONS:
            object.__setattr__(self, "operations", object.__getattribute__(self, "operations") + 1)
        return object.__getattribute__(self, name)

    def _run(self, conversation: Conversation, n_reply: int, **options: Any) -> str | None:
        """One chat call; None if it did not fit, which must leave everything as it was."""
        before = self.llm.memory_report()["sequences"]
        try:
            response = self.llm.create_chat_completion(
                conversation.messages,
                temperature=0.0,
                max_tokens=n_reply,
                ignore_eos=True,
                user=conversation.session,
                **options,
            )
        except ContextOverflowError:
            assert self.llm.memory_report()["sequences"] == before
            return None
        self.check(self.last_request())
        text: str = response["choices"][0]["message"]["content"] or ""
        return text

    def pick(self, index: int) -> Conversation:
        """One of the conversations; a new one if there is none."""
        if not self.conversations:
            self.conversations.append(Conversation())
        return self.conversations[index % len(self.conversations)]

    def start(self, system: int, words: Sequence[int], session: str | None) -> None:
        messages = []
        if SYSTEMS[system % len(SYSTEMS)]:
            messages.append({"role": "system", "content": SYSTEMS[system % len(SYSTEMS)]})
        self.conversations.append(Conversation(messages, session))
        self.turn(len(self.conversations) - 1, words, 3)

    def turn(self, index: int, words: Sequence[int], n_reply: int) -> None:
        conversation = self.pick(index)
        conversation.messages.append({"role": "user", "content": self.say(words)})
        reply = self._run(conversation, n_reply)
        if reply is None:
            del conversation.messages[1:]  # too long: begin again
            return
        conversation.messages.append({"role": "assistant", "content": reply})

    def edit(self, index: int, place: int, words: Sequence[int]) -> None:
        conversation = self.pick(index)
        if not conversation.messages:
            return
        place %= len(conversation.messages)
        del conversation.messages[place + 1 :]
        role = conversation.messages[place]["role"]
        conversation.messages[place] = {
            "role": role,
            "content": self.say(words) if role == "user" else text_of(words),
        }
        if role != "user":
            conversation.messages.append({"role": "user", "content": "go"})
        self._reply(conversation, 2)

    def regenerate(self, index: int, n_reply: int) -> None:
        conversation = self.pick(index)
        if conversation.messages and conversation.messages[-1]["role"] == "assistant":
            conversation.messages.pop()
        if conversation.messages and conversation.messages[-1]["role"] == "user":
            self._reply(conversation, n_reply)

    def _reply(self, conversation: Conversation, n_reply: int) -> None:
        reply = self._run(conversation, n_reply)
        if reply is not None:
            conversation.messages.append({"role": "assistant", "content": reply})

    def fork(self, index: int) -> None:
        original = self.pick(index)
        self.conversations.append(Conversation([*original.messages], original.session))
        if len(self.conversations) > 5:
            self.conversations.pop(0)

    def offload(self) -> None:
        def empty() -> None:
            while self.llm.runtime.loaded.cache.live.make_room():
                pass

        self.llm.runtime.loaded.driver.run(empty)
        self.check_bookkeeping()

    def rest(self, pieces: int) -> None:
        """Nobody asks for a while: what will have to make room is copied ahead, so many pieces."""

        def copy() -> None:
            loaded = self.llm.runtime.loaded
            loaded.cache.live.displaced = True
            loaded.engine.copy_ahead()
            self.copied_ahead += len(loaded.cache.saving.jobs)
            saving = loaded.cache.saving
            for _ in range(pieces):
                if saving.jobs:
                    saving._advance(saving.jobs[0])

        self.llm.runtime.loaded.driver.run(copy)

    def cancel(self, index: int, words: Sequence[int], after: int) -> None:
        conversation = self.pick(index)
        messages = [*conversation.messages, {"role": "user", "content": self.say(words)}]
        try:
            stream = self.llm.create_chat_completion(
                messages, temperature=0.0, max_tokens=8, ignore_eos=True, stream=True
            )
            for number, _ in enumerate(stream):
                if number >= after:
                    break
            stream.close()
        except ContextOverflowError:
            pass
        self.check_bookkeeping()

    def overflow(self, index: int) -> None:
        conversation = self.pick(index)
        before = self.llm.memory_report()["sequences"]
        messages = [*conversation.messages, {"role": "user", "content": "0 1 2 3 4 5 " * N_CTX}]
        with pytest.raises(ContextOverflowError):
            self.llm.create_chat_completion(messages)
        assert self.llm.memory_report()["sequences"] == before

    def snapshot(self, name: int) -> None:
        if not self.llm.memory_report()["sequences"]:
            return
        try:
            self.llm.snapshot(f"s{name}")
        except StateError as error:
            # What was said last may have had to go, or be held only by a longer conversation.
            if not any(why in str(error) for why in ("not in memory any more", "no checkpoint at")):
                raise

    def restore(self, name: int, words: Sequence[int]) -> None:
        if all(info.name != f"s{name}" for info in self.llm.snapshots()):
            return
        self.llm.restore(f"s{name}")
        tokens = self.llm.eval_tokens
        more = self.llm.tokenize(text_of(words), add_bos=False)
        if len(tokens) + len(more) < N_CTX:
            self.llm.eval(more)
            tokens += more
            runs, certain = self.cuts.runs(tokens)
            self.compare(self.oracle.logits(tokens, runs), certain, f"after restore: {tokens}")
        self.check_bookkeeping()

    def prewarm(self, system: int) -> None:
        text = SYSTEMS[system % len(SYSTEMS)] or "S"
        self.llm.prewarm([{"role": "system", "content": text}], pin=False)
        self.check(self.last_request())

    def reset(self) -> None:
        self.llm.reset()
        assert self.llm.memory_report()["sequences"] == []

    def use_disk(self) -> None:
        self.disk = self.disk or LlamaDiskCache(str(self.directory))
        self.llm.set_cache(self.disk)

    def reopen(self) -> None:
        """Close the model and load it again; with a disk cache, conversations survive."""
        self.llm.close()
        if self.disk is not None:
            self.disk.close()
            self.disk = None
        self.llm = self.load()
        self.cuts.watch(self.llm)
        self.use_disk()

    def raw(self, index: int, cut: int, words: Sequence[int]) -> None:
        """A completion of tokens that something cached may begin with."""
        sequences = [seq for seq in self.llm.runtime.loaded.cache.live if seq.tokens]
        head = sequences[index % len(sequences)].tokens if sequences else []
        words_only = next((i for i, token in enumerate(head) if token < 0), len(head))
        tokens = head[: cut % (words_only + 1)] + self.llm.tokenize(text_of(words), add_bos=False)
        if not 0 < len(tokens) < N_CTX - 4:
            return
        self.llm.create_completion(tokens, temperature=0.0, max_tokens=4, ignore_eos=True)
        self.check(self.last_request())

    def together(self, index: int, words: Sequence[int], others: Sequence[int]) -> None:
        """Two streams at once, the second forking from the first while it is busy."""
        conversation = self.pick(index)
        texts = (self.say(words), self.say([*words, *others]))
        requests: list[Record] = []
        streams = []
        for text in texts:
            messages = [*conversation.messages, {"role": "user", "content": text}]
            try:
                streams.append(
                    self.llm.create_chat_completion(
                        messages, temperature=0.0, max_tokens=5, ignore_eos=True, stream=True
                    )
                )
                requests.append(streams[-1]._outcome.records[0])
            except ContextOverflowError:
                break
            next(streams[-1])
            next(streams[-1], None)
        for stream in reversed(streams):
            for _ in stream:
                pass
        for request in requests:
            if len(request.generated) == 5 and self.tolerance < EXACT:
                self.check_tokens(request)
        self.check_bookkeeping()

    def beside(self, index: int, words: Sequence[int]) -> None:
        """A turn of a conversation that was offloaded, which is loaded while a stream generates."""
        conversation = self.pick(index)
        self.offload()
        stream = self.llm.create_completion(
            [60, 61, 62], temperature=0.0, max_tokens=60, ignore_eos=True, stream=True
        )
        requests: list[Record] = [stream._outcome.records[0]]
        next(stream)
        messages = [*conversation.messages, {"role": "user", "content": self.say(words)}]
        try:
            self.llm.create_chat_completion(
                messages, temperature=0.0, max_tokens=5, ignore_eos=True
            )
            requests.append(self.last_request())
        except ContextOverflowError:
            pass
        for _ in stream:
            pass
        for request in requests:
            if self.tolerance < EXACT:
                self.check_tokens(request)
        self.check_bookkeeping()

    def drafted(self, index: int, words: Sequence[int], n_reply: int, right: int) -> None:
        """A turn whose reply is drafted, with a mistake after ``right`` tokens of each draft."""
        conversation = self.pick(index)
        conversation.messages.append({"role": "user", "content": self.say(words)})
        try:
            response = self.llm.create_chat_completion(
                conversation.messages,
                temperature=0.0,
                max_tokens=2 + 2 * n_reply,
                ignore_eos=True,
                speculative=self._drafter(right),
            )
        except ContextOverflowError:
            del conversation.messages[1:]
            return
        self._check_drafted(self.last_request())
        text: str = response["choices"][0]["message"]["content"] or ""
        conversation.messages.append({"role": "assistant", "content": text})

    def drafted_together(self, index: int, words: Sequence[int], right: int, stop: int) -> None:
        """Two drafted streams at once; the first is left after ``stop`` pieces."""
        conversation = self.pick(index)
        streams, requests = [], []
        for number, text in enumerate((self.say(words), self.say([*words[::-1], 7]))):
            messages = [*conversation.messages, {"role": "user", "content": text}]
            try:
                stream = self.llm.create_chat_completion(
                    messages,
                    temperature=0.0,
                    max_tokens=8,
                    ignore_eos=True,
                    stream=True,
                    speculative=self._drafter(right - number),
                )
            except ContextOverflowError:
                break
            streams.append(stream)
            requests.append(stream._outcome.records[0])
        for stream in reversed(streams):
            for number, _ in enumerate(stream):
                if stream is streams[0] and number >= stop:
                    break
            stream.close()
        for request in requests:
            if request.generated and self.tolerance < EXACT:
                self.check_tokens(request)
        self.check_bookkeeping()

    def _drafter(self, right: int) -> Speculative:
        """Knows what the guide says, and makes a mistake after ``right`` tokens of each draft."""
        known: list[int] = []

        def draft(tokens: Any) -> Sequence[int]:
            if not known:
                count = min(20, N_CTX - len(tokens))
                known.extend([*tokens.tolist(), *self.guide.greedy(tokens.tolist(), count)[0]])
            rest = known[len(tokens) : len(tokens) + 5]
            return [token if place < right else 7 for place, token in enumerate(rest)]

        return Speculative((draft,), adaptive=False)

    def _check_drafted(self, request: Record) -> None:
        """The tokens are the oracle's; where each row was computed does not matter."""
        if self.tolerance < EXACT:
            row = self.check_tokens(request)
        else:
            row = self.oracle.logits([*request.tokens, *request.generated[:-1]])
        self.compare(row, False, f"{request.cache} drafted={request.drafted}")
        self.check_bookkeeping()

    def close(self) -> None:
        self.llm.close()
        self.oracle.close()
        if self.disk is not None:
            self.disk.close()


def text_of(words: Sequence[int]) -> str:
    return "".join(WORDS[word % len(WORDS)] for word in words)
