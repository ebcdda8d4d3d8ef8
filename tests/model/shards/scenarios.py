"""The rules of "Several shards" in docs/concepts/line-protocol.md, the scenarios, and which of them catches what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RULES = {
    "every_shard_is_locked": "a transaction locks the first of its shards only",
    "shards_are_locked_in_order": "an insert takes its locks in another order",
    "exclusive_from_start": "an exclusive lock is had by upgrading a share lock",
    "heartbeat_is_read_under_locks": "a takeover trusts the heartbeat that it saw before it had its locks",
    "every_shard_is_fenced": "the owner of the first shard is checked, and that counts for both",
    "lost_shard_costs_no_other": "when one shard is lost, the outcomes of the other are dropped with it",
    "every_shard_is_woken": "a wake is written for the first shard only",
    "every_shard_is_in_doubt": "in doubt only the first shard is loaded again",
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
    "every_shard_is_locked": ("shards-doubt", "never lost"),
    "shards_are_locked_in_order": ("shards", "never lost"),
    "exclusive_from_start": ("shards-crash", "never lost"),
    "heartbeat_is_read_under_locks": ("shards-lapse", "once"),
    "every_shard_is_fenced": ("shards-lapse", "never lost"),
    "lost_shard_costs_no_other": ("shards-lapse", "never lost"),
    "every_shard_is_woken": ("shards", "never lost"),
    "every_shard_is_in_doubt": ("shards-doubt", "never lost"),
}
