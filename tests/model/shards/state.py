"""The values of the model of two shards, and the locks between open transactions."""

from __future__ import annotations

from typing import NamedTuple

SHARDS = (0, 1)
NO_LOCK, SHARE, EXCLUSIVE = 0, 1, 2
ABSENT, PENDING, DONE = 0, 1, 2
NOT_HELD, WAITING, HANDED_OVER = 0, 1, 2
DEAD = 2  # an owner that crashed
DUE, LAST_LINE = 1, 2
MODES = {"insert": SHARE, "settle": SHARE, "consume": EXCLUSIVE, "advance": EXCLUSIVE, "takeover": EXCLUSIVE}


class Shard(NamedTuple):
    owner: int = 0
    epoch: int = 1
    line: int = 1


class Memory(NamedTuple):
    """What a node knows of one shard."""

    epoch: int = 0  # 0: nothing
    line: int = 0
    held: int = NOT_HELD
    left: bool = False  # is there something to scan?
    doubt: bool = False


class Transaction(NamedTuple):
    kind: str
    shards: tuple[int, ...]  # in the order of their locks
    epochs: tuple[int, ...] = ()  # what its node believes
    locks: tuple[int, int] = (NO_LOCK, NO_LOCK)
    reads: tuple[tuple[Shard, bool], ...] = ()  # under the locks: the shard, and is a wake there?
    silent: tuple[bool, ...] = ()  # under the locks: which heartbeats stand still?


class ShardsNode(NamedTuple):
    lapsed: bool = False
    memory: tuple[Memory, Memory] = (Memory(), Memory())
    lane: Transaction | None = None


class State(NamedTuple):
    shards: tuple[Shard, Shard]
    rows: tuple[int, int]
    wakes: frozenset[int]
    insert: Transaction | None
    nodes: tuple[ShardsNode, ShardsNode]
    orphan: tuple[int, Transaction] | None
    faults: tuple[int, int, int]  # lapse, crash, doubt
    excused: bool
    handed: frozenset[int]


def free(state: State, shard: int, mode: int, me: Transaction | None = None) -> bool:
    """Can this lock be had beside those of all other open transactions?"""
    limit = SHARE if mode == SHARE else NO_LOCK
    orphan = state.orphan[1] if state.orphan else None
    open_ones = (state.insert, orphan, state.nodes[0].lane, state.nodes[1].lane)
    return all(t is None or t is me or t.locks[shard] <= limit for t in open_ones)


def owned(state: State, index: int, shard: int, epoch: int) -> bool:
    return state.shards[shard].epoch == epoch and state.shards[shard].owner in (index, DEAD)


def forget(memory: Memory) -> Memory:
    """In doubt: what was handed over stays tracked, the rest is forgotten."""
    return memory._replace(held=HANDED_OVER if memory.held == HANDED_OVER else NOT_HELD, left=False, doubt=True)


def with_shard(state: State, n: int, shard: Shard) -> State:
    return state._replace(shards=(shard, state.shards[1]) if n == 0 else (state.shards[0], shard))


def with_node(state: State, index: int, node: ShardsNode) -> State:
    return state._replace(nodes=(node, state.nodes[1]) if index == 0 else (state.nodes[0], node))


def with_memory(state: State, index: int, n: int, memory: Memory) -> State:
    node = state.nodes[index]
    return with_node(
        state, index, node._replace(memory=(memory, node.memory[1]) if n == 0 else (node.memory[0], memory))
    )
