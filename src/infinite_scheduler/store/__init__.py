"""Where jobs wait: the ports, and the kinds of stores by the URLs that name them."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.secrets import masked

if TYPE_CHECKING:
    from infinite_scheduler.clock import Clock
    from infinite_scheduler.store.base import Store
    from infinite_scheduler.store.scheme import Options, Scheme

_SQLITE: Final = "infinite_scheduler.store.sql.sqlite.scheme"
_SERVER: Final = "infinite_scheduler.store.sql.server.scheme"

_HTTP: Final = "infinite_scheduler.store.http.scheme"

SCHEMES: Final[dict[str, str]] = {
    "sqlite": _SQLITE,
    "mariadb": _SERVER,
    "mysql": _SERVER,
    "postgresql": _SERVER,
    "postgres": _SERVER,
    "jdbc": _SERVER,
    "http": _HTTP,
    "https": _HTTP,
}
"""How URLs begin, and the module whose `SCHEME` knows what to do with them: it is loaded when it is used."""


def open_store(url: str, clock: "Clock", options: "Options | None" = None) -> "Store":
    """Create the store for a URL; it is not connected yet."""
    return scheme_of(url).open(url, clock, options or {})


def scheme_of(url: str) -> "Scheme":
    """The kind of store that a URL names; raises ConfigError with the known ones."""
    found = find_scheme(url)
    if found is None:
        known = ", ".join("jdbc:…" if name == "jdbc" else f"{name}://…" for name in SCHEMES)
        raise ConfigError(
            f"store.url: this version has no store for {_word(url)!r}; expected a URL that begins as one of {known}"
        )
    return found


def find_scheme(url: str) -> "Scheme | None":
    """The kind of store that a URL names, rightly written or not; None: there is no such kind."""
    module = SCHEMES.get(_word(url).partition("+")[0].partition(":")[0])
    if module is None:
        return None
    found: Scheme = import_module(module).SCHEME
    return found


def check_own_url(url: str, what: str) -> None:
    """Raise unless this is the URL of a store itself, which `what` needs."""
    if scheme_of(url).speaks_for_another:
        raise ConfigError(
            f"{what} needs the store's own URL, such as postgresql://USER@HOST/DATABASE: {shown_url(url)} speaks for a "
            "store that nodes work on elsewhere; set store.url, or use --store"
        )


def _word(url: str) -> str:
    """How the URL begins: as far as "://", or ":" where there is none."""
    word, slashes, _ = url.strip().lower().partition("://")
    return word if slashes else word.partition(":")[0]


def shown_url(url: str) -> str:
    """The URL without its secrets, for people to see; other text is unchanged, unless it looks like a secret."""
    scheme = find_scheme(url)
    return masked(url) if scheme is None else masked(url, scheme.shows)
