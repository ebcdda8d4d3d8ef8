"""What a node keeps in its memory, on real servers: each promise holds, and is broken without the rule it needs."""

from collections.abc import Awaitable, Callable

import pytest

from tests.servers.inline import InlineServer
from tests.simulation.rules import without
from tests.unit import engine_rig
from tests.unit.test_engine_rules import NEEDED

pytestmark = pytest.mark.servers


@pytest.fixture
def url(emptied_url: str) -> str:
    return emptied_url


@pytest.fixture(autouse=True)
def server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes share a database on this server."""
    monkeypatch.setattr(engine_rig, "empty_database", lambda: InlineServer(url))


@pytest.mark.parametrize("promise", dict.fromkeys(NEEDED.values()), ids=lambda promise: promise.__name__)
async def test_the_promise_holds(promise: Callable[[], Awaitable[None]]) -> None:
    await promise()


@pytest.mark.parametrize("name", NEEDED)
async def test_without_the_rule_the_promise_is_broken(name: str) -> None:
    with without(name), pytest.raises(AssertionError):
        await NEEDED[name]()
