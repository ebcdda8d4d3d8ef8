"""The settings of the store: where jobs wait, and for how long they are kept."""

from datetime import timedelta
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from infinite_scheduler.config.database_settings import DatabaseSettings
from infinite_scheduler.config.store_url import DEFAULT_URL, PARTS, effective_url
from infinite_scheduler.config.values import PositiveDuration, StoreUrl, TokenText, does_not_fit, whole
from infinite_scheduler.store import scheme_of
from infinite_scheduler.store.scheme import BadPart

_ADDRESS: Final = frozenset({"url", "connect_timeout", *PARTS})


class StoreSettings(DatabaseSettings):
    """Where jobs are stored."""

    url: StoreUrl = Field(default=DEFAULT_URL, repr=False)  # may contain a password
    """Where jobs are stored; a relative SQLite path is relative to the working directory."""
    token: TokenText | None = Field(default=None, repr=False)
    """The token for the server, if `url` begins with http:// or https://."""
    shards: Annotated[int, whole(1, 256)] = 16
    """How many shards a new app gets; fixed when the app is created."""
    retention: PositiveDuration = timedelta(days=7)
    """How long settled jobs are kept."""
    idempotency: PositiveDuration = timedelta(hours=24)
    """How long an idempotency key is remembered."""

    @property
    def address_url(self) -> str:
        """The URL of the store: `url`, completed by the settings beside it."""
        given = {name: getattr(self, name) for name in PARTS}
        if "connect_timeout" in self.model_fields_set:
            given["connect_timeout"] = f"{self.connect_timeout.total_seconds():g}"
        return effective_url(self.url if "url" in self.model_fields_set else None, given)

    @property
    def options(self) -> dict[str, Any]:
        """What a store is told beside its address: plain values that somebody has set; lengths of time as NAME_ms."""
        options: dict[str, Any] = {}
        beside = frozenset() if scheme_of(self.address_url).speaks_for_another else {"token"}
        for name in self.model_fields_set - _ADDRESS - beside:
            value = getattr(self, name)
            if isinstance(value, timedelta):
                options[f"{name}_ms"] = value // timedelta(milliseconds=1)
            else:
                options[name] = value
        return options

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        try:
            self.address_url  # noqa: B018
        except BadPart as error:
            beside = getattr(self, error.part, None)
            part = error.part if beside is not None or "url" not in self.model_fields_set else "url"
            raise does_not_fit(part, getattr(self, part, None), str(error)) from None
        return self
