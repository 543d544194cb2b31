"""Checks a GBNF grammar before llama.cpp's grammar sampler reads it.

The sampler keeps one stack for each way to read the text so far. Some grammars make it loop for
ever while it looks for the next stacks (left recursion after something that may be empty), some end
the process (no stack is left), and some need so many stacks that it takes minutes. It prints its
reasons instead of returning them. Here each of these is a ``GrammarError`` with the line and the
rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_py.core.grammar.gbnf_reader import TERMINAL, Rules, read_gbnf
from llama_py.core.host.gil_yield import GilYield
from llama_py.errors import GrammarError
from llama_py.tenants import remembering

__all__ = ["MOST_STARTS", "check_gbnf", "components"]

#: Ways in which one rule may begin, that is: stacks of the sampler.
MOST_STARTS = 2500
#: Rules that begin with one another, in a row: llama.cpp recurses.
MOST_CHAINED = 2000
#: Steps of llama.cpp's own search for left recursion, which sees the same rule again and again.
_MOST_STEPS = 5_000_000

_Edges = list[list[tuple[int, bool]]]


@remembering(32)
def check_gbnf(text: str, root: str = "root") -> tuple[tuple[str, int], ...]:
    """Raise for a grammar that llama.cpp refuses, or that would harm the process.

    Returns:
        The tokens that the grammar names (``<[12]>``, ``<name>``), and their lines.

    Raises:
        GrammarError: with line and rule.
    """
    rules = read_gbnf(text)
    if root not in rules.numbers or rules.alternatives[rules.numbers[root]] is None:
        raise GrammarError(
            f"the grammar does not parse: it does not define {root!r}, with which it should begin"
        )
    alternatives = []
    for number, found in enumerate(rules.alternatives):
        if found is None:
            name, line = rules.names[number], rules.lines[number]
            raise GrammarError(
                f"the grammar does not parse: line {line}: the rule {name!r} is used, but not "
                "defined"
            )
        alternatives.append(found)
    _GrammarChecker(rules, alternatives).check(rules.numbers[root])
    return tuple(rules.tokens.items())


class _GrammarChecker:
    def __init__(self, rules: Rules, alternatives: list[list[list[int]]]) -> None:
        self._rules = rules
        self._alternatives = alternatives
        self._gil_yield = GilYield()

    def check(self, root: int) -> None:
        # What llama.cpp knows of what may be empty: it sees an empty alternative only.
        plainly = [any(not found for found in each) for each in self._alternatives]
        self._check_search(self._begins_with(plainly))
        used = self._reachable(root)
        ends = self._derives(only_empty=False)
        for rule in used:
            if not ends[rule]:
                raise GrammarError(
                    f"the grammar can never end: {self._rules.place(rule)} always needs itself "
                    "again; give it an alternative without"
                )
        nullable = self._derives(only_empty=True)
        self._check_starts(self._begins_with(nullable), nullable)

    def _reachable(self, root: int) -> list[int]:
        seen, todo = {root}, [root]
        while todo:
            self._gil_yield()
            for sequence in self._alternatives[todo.pop()]:
                for symbol in {*sequence} - seen:
                    if symbol != TERMINAL:
                        seen.add(symbol)
                        todo.append(symbol)
        return sorted(seen)

    def _derives(self, only_empty: bool) -> list[bool]:
        """Which rules have an end at all, or with ``only_empty``: may be empty."""
        count = len(self._alternatives)
        out = [False] * count
        users: list[list[list[int]]] = [[] for _ in range(count)]
        ready: list[int] = []
        for rule, each in enumerate(self._alternatives):
            self._gil_yield()
            for sequence in each:
                if only_empty and TERMINAL in sequence:
                    continue
                needs = {symbol for symbol in sequence if symbol != TERMINAL}
                entry = [rule, len(needs)]
                for symbol in needs:
                    users[symbol].append(entry)
                if not needs:
                    ready.append(rule)
        while ready:
            rule = ready.pop()
            if out[rule]:
                continue
            out[rule] = True
            for entry in users[rule]:
                entry[1] -= 1
                if not entry[1]:
                    ready.append(entry[0])
        return out

    def _begins_with(self, empty: list[bool]) -> _Edges:
        """For each rule: the rules with which it may begin, and whether they end it as well."""
        edges: _Edges = []
        for each in self._alternatives:
            self._gil_yield()
            found: list[tuple[int, bool]] = []
            for sequence in each:
                for i, symbol in enumerate(sequence):
                    if symbol == TERMINAL:
                        break
                    found.append((symbol, i == len(sequence) - 1))
                    if not empty[symbol]:
                        break
            edges.append(found)
        return edges

    # ---- llama.cpp's search for left recursion ------------------------------------------------

    def _check_search(self, edges: _Edges) -> None:
        """Refuse what llama.cpp calls left recursion, and what it would search for too long."""
        steps = [0] * len(edges)
        depth = [0] * len(edges)
        total = 0
        for component in components([[target for target, _ in each] for each in edges]):
            self._gil_yield()
            rule = component[0]
            if len(component) > 1 or any(target == rule for target, _ in edges[rule]):
                self._left_recursive(min(component))
            steps[rule] = 1 + sum(map(len, self._alternatives[rule]))
            for target, _ in edges[rule]:
                steps[rule] += steps[target]
                depth[rule] = max(depth[rule], depth[target] + 1)
            total = max(total, steps[rule])
            if depth[rule] > MOST_CHAINED:
                raise GrammarError(
                    f"the grammar is too deep: {self._rules.place(rule)} begins with a rule that "
                    f"begins with a rule, and so on, more than {MOST_CHAINED} times"
                )
            if steps[rule] > _MOST_STEPS:
                self._too_many(rule)

    def _left_recursive(self, rule: int) -> None:
        raise GrammarError(
            f"the grammar is left-recursive: {self._rules.place(rule)} can begin with itself; "
            'write a list as item ("," item)*, with the repetition behind the item'
        )

    def _too_many(self, rule: int) -> None:
        raise GrammarError(
            f"the grammar is too ambiguous: {self._rules.place(rule)} can begin in more than "
            f"{MOST_STARTS} ways; merge alternatives that begin alike, and do not repeat what may "
            "be empty. JSON schemas have no such limit where llguidance enforces them"
        )

    # ---- the stacks -------------------------------------------------------------------------

    def _check_starts(self, edges: _Edges, nullable: list[bool]) -> None:
        """Count the stacks that each rule can begin with; refuse endless ones and too many."""
        starts = [0] * len(edges)
        for component in components([[target for target, _ in each] for each in edges]):
            self._gil_yield()
            inside = {*component}
            total = 0
            for rule in component:
                for target, last in edges[rule]:
                    if target not in inside:
                        total += starts[target]
                    elif not last:  # every round leaves something more on the stack
                        self._left_recursive(rule)
                for sequence in self._alternatives[rule]:
                    first = next((s for s in sequence if s == TERMINAL or not nullable[s]), None)
                    total += first == TERMINAL
            for rule in component:
                starts[rule] = total
            if total > MOST_STARTS:
                self._too_many(min(component))


# ---- graphs --------------------------------------------------------------------------------------
#
# Strongly connected components: which rules, or references, need one another in a circle.


def components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strongly connected components of a graph (Tarjan's algorithm, without recursion).

    Args:
        edges: for each node, the nodes to which it leads.

    Returns:
        Lists of nodes; a component comes after all those to which it leads.
    """
    index = [-1] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    out: list[list[int]] = []
    counter = 0
    gil_yield = GilYield()
    for first in range(len(edges)):
        work = [(first, 0)] if index[first] < 0 else []
        while work:
            gil_yield()
            node, position = work.pop()
            if position == 0:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
                on_stack[node] = True
            for i in range(position, len(edges[node])):
                target = edges[node][i]
                if index[target] < 0:
                    work += [(node, i + 1), (target, 0)]
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    out.append(_pop(stack, node, on_stack))
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return out


def _pop(stack: list[int], node: int, on_stack: list[bool]) -> list[int]:
    component: list[int] = []
    while not component or component[-1] != node:
        component.append(stack.pop())
        on_stack[component[-1]] = False
    return component
