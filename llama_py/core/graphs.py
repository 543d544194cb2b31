"""Strongly connected components: which rules, or references, need one another in a circle."""

from __future__ import annotations

from collections.abc import Sequence

from llama_py.core.host.gil_yield import GilYield

__all__ = ["components"]


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
