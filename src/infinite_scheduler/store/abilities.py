"""What a store can do: it declares that, and its callers ask before they try."""

import enum
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from infinite_scheduler.errors import NotSupported


class Ability(enum.StrEnum):
    """What one store can do and another cannot. The first four are the changes of a job, by the names of `Change`."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"
    RETRY = "retry"
    WHOLE_BATCHES = "whole_batches"  # several jobs in one call, all or none; without it, `add` is given one at a time
    IDEMPOTENCY_KEYS = "idempotency_keys"
    OWN_TRANSACTION = "own_transaction"  # jobs in a transaction of the user's own
    SEARCH = "search"  # listing jobs; without it, they are looked up by id
    INBOX = "inbox"  # exactly once from topics
    DEAD_LETTERS = "dead_letters"  # messages of topics that could not become jobs are listed and replayed
    WAITING = "waiting"  # how many jobs wait, without counting them
    FORECAST = "forecast"  # how many jobs are due when
    TABLES = "tables"  # what it is made of, with sizes
    AUDIT = "audit"  # who did what is listed
    RECORDS = "records"  # and written down; without it, the process behind it does that by itself
    TOKENS = "tokens"  # who may come in by HTTP
    OWNERSHIP = "ownership"  # nodes work on it; without it, it only speaks for a store that they work on elsewhere
    MARKS = "marks"  # the job that ends its process is found; without it, such a job is handed over again and again
    CLOCK = "clock"  # it has a clock of its own to agree with; without it, the clock of the machine alone counts


EVERYTHING: Final = frozenset(Ability)

_SQL: Final = "a SQL store (sqlite://, mariadb://, postgresql://)"

_WORDS: Final[Mapping[Ability, tuple[str, str]]] = {
    Ability.CANCEL: (
        "cancel a job",
        f"let the handler check whether the job is still wanted, or keep the jobs in {_SQL}",
    ),
    Ability.RESCHEDULE: ("move a job to another moment", f"schedule another job, or keep the jobs in {_SQL}"),
    Ability.RUN_NOW: ("run a waiting job now", f"schedule another job without a delay, or keep the jobs in {_SQL}"),
    Ability.RETRY: ("try a settled job again", f"schedule another job with its data, or keep the jobs in {_SQL}"),
    Ability.WHOLE_BATCHES: ("accept several jobs all or none", "schedule them one at a time"),
    Ability.IDEMPOTENCY_KEYS: (
        "remember idempotency keys",
        "leave the key out, and let the handler recognise what comes twice",
    ),
    Ability.OWN_TRANSACTION: ("accept jobs in a transaction of yours", "commit it, then call schedule"),
    Ability.SEARCH: ("list jobs", "look one up by its id: get(ID), or infinite-scheduler jobs show ID"),
    Ability.INBOX: ("take in messages of topics", f"set store.url to {_SQL}"),
    Ability.DEAD_LETTERS: ("keep dead letters", f"set store.url to {_SQL}"),
    Ability.WAITING: ("say how many jobs wait", f"count those that you list, or keep the jobs in {_SQL}"),
    Ability.FORECAST: ("say how many jobs are due when", f"keep the jobs in {_SQL}"),
    Ability.TABLES: ("list its tables", "look at it with the tools that come with it"),
    Ability.AUDIT: ("list who did what", f"read the log lines of the nodes, or keep the jobs in {_SQL}"),
    Ability.RECORDS: ("write down who did what", f"read the log lines of the nodes, or keep the jobs in {_SQL}"),
    Ability.TOKENS: ("keep tokens", "give the tokens by configuration"),
    Ability.OWNERSHIP: ("be worked on by a node", "start the node with the URL of the store behind it"),
    Ability.MARKS: ("mark the jobs that may have ended a process", f"set store.url to {_SQL}"),
    Ability.CLOCK: ("tell the time", "let NTP set the clocks of all machines"),
}
"""What cannot be done, and what to do instead."""


class Abilities(msgspec.Struct, frozen=True):
    """What one store can do: `Ability.INBOX in store.abilities`."""

    store: str
    """What people call this kind of store: SQLite, S3."""
    can: frozenset[Ability] = EVERYTHING
    instead: str | None = None
    """What to do instead of anything that it cannot; None: what is best for each."""

    def __contains__(self, ability: Ability) -> bool:
        return ability in self.can

    def require(self, ability: Ability) -> None:
        """Raise NotSupported, which names the store and what to use instead, unless it has this ability."""
        if ability not in self.can:
            raise self.refusal(ability)

    def refusal(self, ability: Ability) -> NotSupported:
        """The error for a call that needs what this store cannot do."""
        deed, instead = _WORDS[ability]
        return NotSupported(self.store, deed, self.instead or instead)

    def without(self, *abilities: Ability) -> Self:
        """These abilities without the given ones."""
        return msgspec.structs.replace(self, can=self.can - set(abilities))
