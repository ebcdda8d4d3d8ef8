"""What a store says of apps, nodes and shards: the cluster at one moment."""

from collections.abc import Mapping
from typing import Final

import msgspec

from infinite_scheduler.model import Owner, Shard


class AppInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An app as the store has it."""

    name: str
    shards: int
    paused: bool
    created_ms: int
    kept: Mapping[str, str] = {}  # settings of the store that it was made with, where another value is configured now


class HeldBack(msgspec.Struct, frozen=True, kw_only=True):
    """An app that a node holds back, since what its handler hands over to takes nothing."""

    since_ms: int
    reason: str


VITALS_BYTES: Final = 8 << 10
"""The most that a node may say of how it is doing: it is written with every heartbeat."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the others see it; `beat` changes with every heartbeat."""

    nonce: str
    node_id: str
    apps: frozenset[str]
    started_ms: int
    draining: bool = False  # it gives up its shards and takes none: it is stopping, was asked to, or its clock is off
    drain_asked: bool = False  # an operator asked it to
    clock_off: bool = False  # its clock differs too much from the store's
    clock_offset_ms: int | None = None  # the store's clock minus its own, if the store has one
    held_back: Mapping[str, HeldBack] = {}  # by app
    beat: int = 0
    beat_ms: int = 0
    vitals: bytes | None = None  # how it is doing, as JSON that a store does not read; only a survey has it


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A shard: its owner, the line up to which the owner decides, and the low before which all is settled."""

    shard: Shard
    owner: Owner
    line_ms: int
    low_ms: int

    @property
    def released(self) -> bool:
        """Has it no owner?"""
        return not self.owner.nonce


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The store's clock, read once between two readings of the asking process's steady clock."""

    store_ms: int  # rounded down
    asked_us: int
    answered_us: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a node learns from a heartbeat: the cluster at one moment."""

    nodes: tuple[NodeInfo, ...]
    shards: tuple[ShardInfo, ...]
    apps: tuple[AppInfo, ...]
    dead: frozenset[str] = frozenset()  # nonces of processes that are proven to have ended
    presumed_dead: frozenset[str] = frozenset()  # those that have ended as it seems, unless their heartbeats go on
    clock: Sample | None = None  # None: the store has no clock of its own
