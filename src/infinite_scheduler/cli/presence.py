"""Is there a store where the settings say? A command that finds nothing must not leave a new one behind."""

from infinite_scheduler.config import Settings
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store import scheme_of


def check_there(settings: Settings) -> None:
    """Raise unless there is a store: says who makes it, and nothing is made."""
    if (lack := lack_of_store(settings)) is not None:
        raise StoreUnavailable(
            f"no node has made the store yet: {lack}; check --store and --config. A node makes it when it starts "
            "(infinite-scheduler serve), and so does `schedule` with a configuration that names the app"
        )
    url = settings.store.address_url
    scheme_of(url).wait_until_made(url)


def lack_of_store(settings: Settings) -> str | None:
    """What is not there that a store has; None: there is a store, or a file that may be one."""
    url = settings.store.address_url
    return scheme_of(url).lack(url, settings.store.options)
