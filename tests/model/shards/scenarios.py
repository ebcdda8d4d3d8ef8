"""The rules of "Several shards" in docs/concepts/line-protocol.md, the scenarios, and which of them catches what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RULES = {
    "locks_every_shard": "a transaction locks the first of its shards only",
    "locks_in_order": "an insert takes its locks in another order",
    "exclusive_from_start": "an exclusive lock is had by upgrading a share lock",
    "heartbeat_under_locks": "a takeover trusts the heartbeat that it saw before it had its locks",
    "fence_every_shard": "the owner of the first shard is checked, and that counts for both",
    "lost_stands_alone": "when one shard is lost, the outcomes of the other are dropped with it",
    "wake_every_shard": "a wake is written for the first shard only",
    "doubt_every_shard": "in doubt only the first shard is loaded again",
}


@dataclass(frozen=True)
class ShardsScenario:
    lapse: int = 0
    crash: int = 0
    doubt: int = 0


SCENARIOS: Mapping[str, ShardsScenario] = {
    "shards": ShardsScenario(),
    "shards-lapse": ShardsScenario(lapse=1),
    "shards-crash": ShardsScenario(crash=1),
    "shards-doubt": ShardsScenario(doubt=1),
}
LARGE: Mapping[str, ShardsScenario] = {
    "shards-lapse-doubt": ShardsScenario(lapse=1, doubt=1),
    "shards-crash-doubt": ShardsScenario(crash=1, doubt=1),
}
# The promise that breaks first without a rule, and the scenario that shows it after the fewest states.
CAUGHT_BY: Mapping[str, tuple[str, str]] = {
    "locks_every_shard": ("shards-doubt", "never lost"),
    "locks_in_order": ("shards", "never lost"),
    "exclusive_from_start": ("shards-crash", "never lost"),
    "heartbeat_under_locks": ("shards-lapse", "once"),
    "fence_every_shard": ("shards-lapse", "never lost"),
    "lost_stands_alone": ("shards-lapse", "never lost"),
    "wake_every_shard": ("shards", "never lost"),
    "doubt_every_shard": ("shards-doubt", "never lost"),
}
