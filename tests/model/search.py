"""The search: every state that a model can reach, breadth first, so that the way to a violation is the shortest one."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

NO_WAY_LEFT = "never lost: from here progress alone cannot finish everything"


class Step(NamedTuple):
    """One thing that may happen next."""

    label: tuple[object, ...]  # joined into a sentence only when a trace is printed
    state: Any
    violation: str | None = None
    progress: bool = True  # False for faults and for changes of mind: nothing may depend on them happening


class Model(Protocol):
    """What the search needs to know about a protocol. States are nested tuples of numbers and frozen sets."""

    def initial(self) -> Any: ...

    def steps(self, state: Any) -> list[Step]: ...

    def violation(self, state: Any) -> str | None:
        """The invariant that this state breaks."""

    def finished(self, state: Any) -> bool:
        """Is everything that was accepted in a final state?"""


class Result(NamedTuple):
    states: int
    violation: str | None
    trace: list[str]
    complete: bool = True


class Graph:
    """The states seen so far, by number: how each was reached first, and the steps of progress between them.

    A state is remembered by its 64-bit hash only; the chance that two of a million collide is below 1 in 10 million.
    """

    def __init__(self, first: Any, finished: bool) -> None:
        self.number = {hash(first): 0}
        self.parent = array("q", [-1])
        self.label: list[tuple[object, ...]] = [()]
        self.finished = bytearray([finished])
        self.source, self.earlier = array("q"), array("q")  # edges into one target form a chain through `earlier`
        self.newest = array("q", [-1])

    def add(self, key: int, parent: int, label: tuple[object, ...], finished: bool) -> int:
        number = self.number[key] = len(self.parent)
        self.parent.append(parent)
        self.label.append(label)
        self.finished.append(finished)
        self.newest.append(-1)
        return number

    def connect(self, source: int, target: int) -> None:
        self.earlier.append(self.newest[target])
        self.newest[target] = len(self.source)
        self.source.append(source)

    def trace(self, number: int, *last: tuple[object, ...]) -> list[str]:
        labels = list(last)
        while number > 0:
            labels.append(self.label[number])
            number = self.parent[number]
        return [" ".join(map(str, label)) for label in reversed(labels)]

    def stuck(self) -> int:
        """The first state from which progress alone reaches no finished one, or -1."""
        good = bytearray(self.finished)
        todo = [number for number, finished in enumerate(good) if finished]
        while todo:
            edge = self.newest[todo.pop()]
            while edge >= 0:
                source = self.source[edge]
                if not good[source]:
                    good[source] = 1
                    todo.append(source)
                edge = self.earlier[edge]
        return good.find(0)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """States are tuples without cycles: looking for garbage among millions of them costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def search(model: Model, limit: int = 5_000_000) -> Result:
    """Visit every reachable state; stop at the first violation, or when `limit` states are known."""
    with _no_garbage():
        return _search(model, limit)


def _search(model: Model, limit: int) -> Result:
    first = model.initial()
    graph = Graph(first, model.finished(first))
    known = graph.number
    level = [(0, first)]
    while level:
        following = []
        for number, state in level:
            for label, after, violation, progress in model.steps(state):
                if violation:
                    return Result(len(known), violation, graph.trace(number, label))
                key = hash(after)
                target = known.get(key)
                if target is None:
                    target = graph.add(key, number, label, model.finished(after))
                    following.append((target, after))
                    if violation := model.violation(after):
                        return Result(len(known), violation, graph.trace(target))
                if progress:
                    graph.connect(number, target)
        level = following
        if len(known) > limit:
            return Result(len(known), None, [], complete=False)
    stuck = graph.stuck()
    return Result(len(known), NO_WAY_LEFT if stuck >= 0 else None, graph.trace(stuck) if stuck >= 0 else [])
