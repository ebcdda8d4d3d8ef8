"""Does the store exist? A command that finds none must not create one."""

from infinite_scheduler.config import Settings
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store import scheme_of


def check_there(settings: Settings) -> None:
    """Raise unless there is a store, and say what creates it; nothing is created."""
    if (lack := lack_of_store(settings)) is not None:
        raise StoreUnavailable(
            f"the store does not exist yet: {lack}; check --store and --config. A node creates it when it starts "
            "(infinite-scheduler serve), and so does `schedule` with a configuration that names the app"
        )
    url = settings.store.address_url
    scheme_of(url).wait_until_made(url)


def lack_of_store(settings: Settings) -> str | None:
    """What a store has that is missing; None: there is a store, or a file that may be one."""
    url = settings.store.address_url
    return scheme_of(url).lack(url, settings.store.options)
