"""Prepares a store: what it lives in, its schema, the configured apps and what they need ahead."""

import asyncio

from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.store import check_own_url, scheme_of


def prepare_store(options: SharedOptions, *, create: bool, days: int) -> int:
    """Bring the store up to date, and say what was done."""
    settings, out = options.settings(), Output(as_json=options.as_json)
    url = settings.store.address_url
    check_own_url(url, "migrate")
    apps = {name: app.shards for name, app in settings.apps.items()}
    scheme = scheme_of(url)
    told = asyncio.run(scheme.prepare(url, SystemClock(), settings.store.options, apps=apps, create=create, days=days))
    if out.as_json:
        out.record(dict(told.data))
        return 0
    for line in told.done:
        out.say(line)
    for note in told.notes:
        out.note(note)
    return 0
