"""Statements on what the nodes share: shards, apps and nodes."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import Owner, Shard
from infinite_scheduler.store.cluster_state import HeldBack, NodeInfo, ShardInfo
from infinite_scheduler.store.sql.rows import Rows, where
from infinite_scheduler.store.sql.schema import ENDS_VERSION, UPGRADES_TABLE, create_job_table, create_moved_table
from infinite_scheduler.store.sql.tables import SqlApp, later_table, moved_table

APP: Final = ("name", "shards", "span", "paused", "created_ms")
SHARD: Final = ("app", "shard", "owner_nonce", "epoch", "line_ms", "low_ms")
SHARDS: Final = f"SELECT {', '.join(SHARD)} FROM scheduler_shards"
NODE: Final = (
    "nonce",
    "node_id",
    "apps",
    "started_ms",
    "draining",
    "clock_off",
    "clock_offset_ms",
    "beat",
    "beat_ms",
    "held_back",
)
"""What a node writes about itself, besides its vitals; `drain_asked` is written by others."""

_decode_apps = msgspec.json.Decoder(frozenset[str]).decode
_decode_held_back = msgspec.json.Decoder(dict[str, HeldBack]).decode


class ClusterRows(Rows):
    """Shards, apps and nodes."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        rows, version = self._dialect.lock_shards(
            self._cursor, sorted(set(shards)), ", ".join(SHARD), exclusive=exclusive
        )
        self._catalog.learn(version)
        return {info.shard: info for info in map(_shard, rows)}

    def ownership_version(self) -> object:
        """A take raises an epoch, a release leaves a shard without an owner; no epoch ever gets smaller."""
        return self._select(
            "SELECT COUNT(*), SUM(epoch), SUM(CASE WHEN owner_nonce = '' THEN 1 ELSE 0 END) FROM scheduler_shards"
        )[0]

    def read_shards(self) -> Sequence[ShardInfo]:
        return [_shard(row) for row in self._select(f"{SHARDS} ORDER BY app, shard")]

    def lows(self, app: str | None = None) -> Mapping[str, int]:
        condition, values = where({"app = ?": app})
        return dict(self._select(f"SELECT app, MIN(low_ms) FROM scheduler_shards{condition} GROUP BY app", values))

    def ends_known_from(self) -> int:
        ((before_ms,),) = self._select(f"SELECT MAX(before_ms) FROM {UPGRADES_TABLE} WHERE version = {ENDS_VERSION}")
        return before_ms or 0

    def write_shards(self, rows: Iterable[ShardInfo]) -> None:
        self._run_many(
            self._dialect.upsert("scheduler_shards", SHARD, ("app", "shard")),
            [(*row.shard, *row.owner, row.line_ms, row.low_ms) for row in rows],
        )

    def read_apps(self) -> Sequence[SqlApp]:
        rows = self._select(f"SELECT {', '.join(APP)} FROM scheduler_apps ORDER BY name")
        return [
            SqlApp(name=name, shards=shards, span=span, paused=bool(paused), created_ms=created_ms)
            for name, shards, span, paused, created_ms in rows
        ]

    def insert_app(self, app: SqlApp, now_ms: int) -> None:
        self.insert_apps([app], now_ms)

    def insert_apps(self, apps: Sequence[SqlApp], now_ms: int) -> None:
        tables: dict[str, str] = {}
        for app in apps:
            tables |= self._tables_of_app(app.name)
        self._require(tables)
        shards: list[Sequence[Any]] = []
        for app in apps:
            inserted = self._run(
                self._dialect.insert("scheduler_apps", APP, ignore=True),
                (app.name, app.shards, app.span, app.paused, app.created_ms),
            )
            if inserted == 1:
                shards += [(app.name, number, "", 0, now_ms, now_ms) for number in range(app.shards)]
        self._run_many(self._dialect.insert("scheduler_shards", SHARD, ignore=True), shards)

    def _tables_of_app(self, app: str) -> Mapping[str, str]:
        """The tables that an app always has (name → statement)."""
        reserved, later, moved = self._dialect.reserved, later_table(app), moved_table(app)
        if reserved and moved.startswith(reserved):
            raise InvalidRequest(f"app name {app!r} is not allowed: this database reserves {reserved}… for itself")
        return {later: create_job_table(self._dialect, later), moved: create_moved_table(self._dialect, app)}

    def has_tables_of(self, app: str) -> bool:
        return self._has(later_table(app)) and self._has(moved_table(app))

    def set_paused(self, app: str, *, paused: bool) -> bool:
        self._run("UPDATE scheduler_apps SET paused = ? WHERE name = ?", (paused, app))
        return bool(self._select("SELECT 1 FROM scheduler_apps WHERE name = ?", (app,)))

    def read_nodes(self, *, vitals: bool = False) -> Sequence[NodeInfo]:
        seen = "vitals" if vitals else "NULL"
        rows = self._select(f"SELECT {', '.join(NODE)}, drain_asked, {seen} FROM scheduler_nodes ORDER BY nonce")
        return [_node(row) for row in rows]

    def write_node(self, node: NodeInfo) -> None:
        apps = msgspec.json.encode(sorted(node.apps)).decode()
        held_back = msgspec.json.encode(node.held_back).decode() if node.held_back else None
        self._run(
            self._dialect.upsert("scheduler_nodes", (*NODE, "vitals"), ("nonce",)),
            (
                node.nonce,
                node.node_id,
                apps,
                node.started_ms,
                node.draining,
                node.clock_off,
                node.clock_offset_ms,
                node.beat,
                node.beat_ms,
                held_back,
                None if node.vitals is None else node.vitals.decode(),
            ),
        )

    def set_drain(self, node_id: str, *, asked: bool) -> int:
        self._run("UPDATE scheduler_nodes SET drain_asked = ? WHERE node_id = ?", (asked, node_id))
        return int(self._select("SELECT COUNT(*) FROM scheduler_nodes WHERE node_id = ?", (node_id,))[0][0])

    def now_ms(self) -> int | None:
        clock = self._dialect.clock
        return None if clock is None else int(self._select(f"SELECT {clock}")[0][0])

    def delete_node(self, nonce: str) -> None:
        self._run("DELETE FROM scheduler_nodes WHERE nonce = ?", (nonce,))


def _shard(row: Sequence[Any]) -> ShardInfo:
    app, number, nonce, epoch, line_ms, low_ms = row
    return ShardInfo(shard=Shard(app, number), owner=Owner(nonce, epoch), line_ms=line_ms, low_ms=low_ms)


def _node(row: Sequence[Any]) -> NodeInfo:
    nonce, node_id, apps, started_ms, draining, clock_off, offset_ms, beat, beat_ms, held_back, drain_asked, vitals = (
        row
    )
    return NodeInfo(
        nonce=nonce,
        node_id=node_id,
        apps=_decode_apps(apps),
        started_ms=started_ms,
        draining=bool(draining),
        drain_asked=bool(drain_asked),
        clock_off=bool(clock_off),
        clock_offset_ms=offset_ms,
        beat=beat,
        beat_ms=beat_ms,
        held_back=_decode_held_back(held_back) if held_back else {},
        vitals=None if vitals is None else vitals.encode(),
    )
