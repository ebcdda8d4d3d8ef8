"""The port of a store's ledger: what people want to know of all jobs at once, who did what, and who may come in.

No answer grows with the number of jobs: what is counted is counted when it changes, and a look at rows has a bound.
"""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.store.abilities import Abilities, Ability

Waiting = Mapping[str, Mapping[int, int]]
"""How many jobs wait: app → first moment of a day in UTC, in ms → jobs that are due on it; others are left out."""


class Recount(msgspec.Struct, frozen=True, kw_only=True):
    """What counting anew has found."""

    app: str
    before: int  # jobs that waited according to the counter
    counted: int


class ForecastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the future to look at: [start_ms, end_ms), in buckets of `step_ms`."""

    start_ms: int
    end_ms: int
    step_ms: int
    app: str | None = None  # None: all of them
    most: int  # rows that may be looked at
    herd: int | None = None  # look for seconds with more jobs than this; None: do not


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are due in one step of time."""

    start_ms: int
    jobs: int
    estimated: bool = False  # not counted: what is known to be due on that day, spread evenly


class Herd(msgspec.Struct, frozen=True, kw_only=True):
    """A second in which very many jobs of an app are due."""

    app: str
    start_ms: int
    jobs: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are due when; those that were moved count at their present moment."""

    buckets: Sequence[Bucket]
    herds: Sequence[Herd] = ()
    counted_to_ms: int  # up to here jobs were counted and herds looked for


class TableKind(enum.StrEnum):
    """What a table holds."""

    JOBS = "jobs"  # of one app and one period
    LATER = "later"  # jobs of one app that are far ahead
    MOVED = "moved"  # where moved jobs of one app are found
    SHARED = "shared"  # what all apps share


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the database's own catalogue describes it; None: the catalogue does not say."""

    name: str
    kind: TableKind
    app: str | None = None
    starts_ms: int | None = None  # the period that it is for: [starts_ms, ends_ms)
    ends_ms: int | None = None
    created_ms: int | None = None
    rows: int | None = None  # an estimate
    data_bytes: int | None = None
    index_bytes: int | None = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody did, and how it ended."""

    id: str  # `sortable_id` of `at_ms`
    at_ms: int
    who: str  # the name of a token, or local
    address: str  # from where
    verb: str
    target: str  # the id of a job, the name of an app or node, or the filter that chose many
    count: int = 1  # how many were concerned
    result: str


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records to list, newest first."""

    who: str | None = None
    verb: str | None = None
    target: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 100
    cursor: str | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of records; `cursor` asks for the next."""

    records: Sequence[AuditRecord]
    cursor: str | None


class Role(enum.StrEnum):
    """What the holder of a token may do: each role includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a token: never the token itself."""

    name: str
    role: Role
    digest: bytes
    created_ms: int
    revoked_ms: int | None = None  # None: it is valid


class Ledger:
    """What a dashboard and its door ask of a store, in any process.

    A store overrides what it can do and declares in its abilities; all else is refused in words.
    """

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities

    async def waiting(self, app: str | None = None) -> Waiting:
        """How many jobs wait, by the day on which they are due; exact, and not counted now."""
        del app
        raise self._abilities.refusal(Ability.WAITING)

    async def recount(self, app: str) -> Recount:
        """Count anew how many jobs of an app wait, and correct `waiting`. Raises UnknownApp."""
        del app
        raise self._abilities.refusal(Ability.WAITING)

    async def forecast(self, query: ForecastQuery) -> Forecast:
        """How many jobs are due when; what lies beyond the first `most` rows is estimated. Raises UnknownApp."""
        del query
        raise self._abilities.refusal(Ability.FORECAST)

    async def tables(self) -> Sequence[TableInfo]:
        """All tables of the store, in the order of their names."""
        raise self._abilities.refusal(Ability.TABLES)

    async def record(self, records: Sequence[AuditRecord]) -> None:
        """Keep records for as long as settled jobs are kept; one that is there already is left alone."""
        del records
        raise self._abilities.refusal(Ability.RECORDS)

    async def records(self, query: AuditQuery) -> AuditPage:
        """List records, a page at a time."""
        del query
        raise self._abilities.refusal(Ability.AUDIT)

    async def tokens(self) -> Sequence[Token]:
        """All tokens, in the order of their names; revoked ones too."""
        raise self._abilities.refusal(Ability.TOKENS)

    async def add_token(self, token: Token, *, only_first: bool = False) -> bool:
        """Add a token if its name is free; with `only_first`, only if no valid token is there.

        False: it was not added. Of several processes that add their first token at once, one does. A name is never free
        again, as records of the audit name it. Adding the same token again changes nothing, and is True.
        """
        del token, only_first
        raise self._abilities.refusal(Ability.TOKENS)

    async def revoke_token(self, name: str, now_ms: int) -> bool:
        """Make a token invalid, for all processes. False: there is none of this name."""
        del name, now_ms
        raise self._abilities.refusal(Ability.TOKENS)
