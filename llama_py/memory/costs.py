"""``Costs``: what it takes to have cells, where copying them is dear.

Copies out of the memory of a GPU, or of another machine, may take longer than evaluating the same
tokens again. Nothing is measured for its own sake: what is evaluated and copied anyway is noted,
and decides as soon as both are known. On the CPU nobody notes anything, and fixed numbers decide.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LEAST_OFFLOADED", "LOAD_MARGIN", "Costs"]

#: A stored state must save this many tokens over what is in memory, whatever else is known.
LOAD_MARGIN = 16
#: A sequence whose own tail is shorter than this is not worth a place in a store.
LEAST_OFFLOADED = 32
#: What was measured last counts most: the weight of all that was measured before.
_DECAY = 0.9
#: Tokens in a step from which on its time says something about prompts.
_WHOLE_STEP = 16
#: Of so many copies that seem too dear, one is made: the network may have become a better one.
_ONE_OF = 64


@dataclass(slots=True)
class _Line:
    """Seconds by tokens: a fixed part, and one for each token."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        for name in ("weight", "x", "y", "xx", "xy"):
            setattr(self, name, _DECAY * getattr(self, name))
        self.weight += 1
        self.x += tokens
        self.y += seconds
        self.xx += tokens * tokens
        self.xy += tokens * seconds

    def fitted(self) -> tuple[float, float]:
        """The fixed part, and that of each token; neither is below 0."""
        spread = self.weight * self.xx - self.x**2
        if spread <= 1e-6 * self.xx * self.weight:  # all of one length
            return 0.0, self.y / self.x
        slope = (self.weight * self.xy - self.x * self.y) / spread
        slope = min(max(slope, 0.0), self.y / self.x)
        return max(0.0, (self.y - slope * self.x) / self.weight), slope

    def seconds(self, tokens: int) -> float:
        fixed, each = self.fitted()
        return fixed + each * tokens


class Costs:
    """See the module. It belongs to one context."""

    def __init__(self) -> None:
        self._evaluated, self._fetched, self._stored = _Line(), _Line(), _Line()
        self._dear = 0

    def evaluated(self, tokens: int, seconds: float) -> None:
        """A step evaluated so many tokens of prompts."""
        if tokens >= _WHOLE_STEP and seconds > 0:
            self._evaluated.add(tokens, seconds)

    def fetched(self, tokens: int, seconds: float) -> None:
        """The cells of so many tokens were copied into the context."""
        if tokens > 0:
            self._fetched.add(tokens, seconds)

    def stored(self, tokens: int, seconds: float) -> None:
        """They were copied out of it."""
        if tokens > 0:
            self._stored.add(tokens, seconds)

    @property
    def _per_token(self) -> float:
        """Seconds in which a token of a prompt is evaluated; 0: that is not known."""
        line = self._evaluated
        return line.y / line.x if line.x else 0.0

    def margin(self, tokens: int) -> float:
        """Tokens that are evaluated in the time that fetching so many takes; 16 at least."""
        if not self._per_token or not self._fetched.weight:
            return LOAD_MARGIN
        return max(LOAD_MARGIN, self._fetched.seconds(tokens) / self._per_token)

    def worth_storing(self, tokens: int) -> bool:
        """Whether copying so many tokens out and back saves time over evaluating them again."""
        if tokens < LEAST_OFFLOADED:
            return False
        if not self._per_token or not self._stored.weight:
            return True
        back = self._fetched if self._fetched.weight else self._stored
        copies = self._stored.seconds(tokens) + back.seconds(tokens)
        if copies < tokens * self._per_token:
            return True
        self._dear += 1
        return self._dear % _ONE_OF == 0
