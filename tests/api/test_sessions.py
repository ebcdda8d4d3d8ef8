"""Pages log in with a token and get a cookie: signed, with an end, void with its token, for the same origin only."""

import asyncio
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from pathlib import Path

import pytest

from infinite_scheduler import JobStatusApi
from infinite_scheduler.api import access
from infinite_scheduler.api.failed_logins import PER_ADDRESS
from infinite_scheduler.api.session_cookie import COOKIE, sealed
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.config import load_settings
from infinite_scheduler.store.ledger import Role, Token
from infinite_scheduler.testing.manual_clock import START_MS, ManualClock
from tests.api.api_rig import APP, Answer, ApiRig, api_rig
from tests.api.test_events import heard, until_heard
from tests.servers.certificates import make_certificates

TEXT, OTHER_TEXT = new_token(), new_token()
BOSS = Token(name="the.boss-1", role=Role.OPERATE, digest=digest_of(TEXT), created_ms=0)
READER = Token(name="reader", role=Role.READ, digest=digest_of(OTHER_TEXT), created_ms=0)
SESSION_MS = 12 * 3_600_000
SAME = {"Sec-Fetch-Site": "same-origin"}
PAUSE = f"/v1/apps/{APP}/pause"


async def log_in(api: ApiRig, text: str = TEXT, **headers: str) -> Answer:
    return await api.post("/login", {"token": text}, headers={**SAME, **headers})


def cookie_of(answer: Answer) -> dict[str, str]:
    """The header with which a browser sends the cookie back."""
    assert answer.status == 200, answer.content
    morsel = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
    return {"Cookie": f"{COOKIE}={morsel.value}"}


async def test_a_cookie_stands_for_its_token(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, clock=clock, server={"tokens": (BOSS, READER)}, root_path="/jobs") as api:
        answer = await log_in(api)
        assert answer.value == {"name": "the.boss-1", "role": "operate", "ends_at": "2026-01-01T12:00:00.000Z"}
        morsel = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
        assert (morsel["httponly"], morsel["samesite"], morsel["path"], morsel["secure"]) == (
            True,
            "Strict",
            "/jobs",
            "",
        )
        assert morsel["max-age"] == str(SESSION_MS // 1000)
        assert TEXT not in answer.headers["Set-Cookie"]
        cookie = cookie_of(answer)
        assert (await api.get("/v1/apps", headers=cookie)).status == 200
        assert (await api.post(PAUSE, headers={**cookie, **SAME})).status == 200
        (row,) = (await api.get("/v1/audit", headers=cookie)).value["records"]
        assert row["who"] == "the.boss-1"


async def test_a_cookie_may_do_what_the_role_of_its_token_includes(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS, READER)}) as api:
        cookie = cookie_of(await log_in(api, OTHER_TEXT))
        assert (await api.get("/v1/apps", headers=cookie)).status == 200
        assert (await api.post(PAUSE, headers={**cookie, **SAME})).problem == "forbidden"


async def test_a_session_has_an_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, clock=clock, server={"tokens": (BOSS,)}) as api:
        cookie = cookie_of(await log_in(api))
        clock.step_wall(SESSION_MS - 1)
        assert (await api.get("/v1/apps", headers=cookie)).status == 200
        clock.step_wall(1)
        ended = await api.get("/v1/apps", headers=cookie)
        assert (ended.status, ended.problem) == (401, "no-token")
        assert "the session has ended: log in again" in ended.value["detail"]


GOOD = sealed(BOSS, START_MS + 1000)
FORGED = {
    "empty": "",
    "nonsense": "nonsense",
    "made up": "1.2.3",
    "longer": GOOD.replace(str(START_MS + 1000), str(START_MS + 2000)),
    "of another token": GOOD.replace("the.boss-1", "reader"),
    "of another secret": sealed(
        Token(name="the.boss-1", role=Role.OPERATE, digest=digest_of("x"), created_ms=0), START_MS + 1000
    ),
    "huge": f"{'9' * 5000}.0.the.boss-1",
    "other digits": f"٣{GOOD}",
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
async def test_a_cookie_that_was_not_signed_with_its_token_is_refused(tmp_path: Path, value: str) -> None:
    async with api_rig(tmp_path, clock=ManualClock(), server={"tokens": (BOSS, READER)}) as api:
        for _ in range(PER_ADDRESS + 1):
            answer = await api.get("/v1/apps", headers={"Cookie": f"{COOKIE}={value}"})
            assert (answer.status, answer.problem) == (401, "no-token")
        good = {"Cookie": f"{COOKIE}={GOOD}"}
        assert (await api.get("/v1/apps", headers=good)).status == 200, "an address is not held up by old cookies"


async def test_a_cookie_is_void_on_every_server_when_its_token_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FRESH_MS", 0)
    async with api_rig(tmp_path) as api, api_rig(tmp_path) as other:
        await api.client.ledger.add_token(BOSS)
        await api.client.ledger.add_token(READER)
        cookie = cookie_of(await log_in(api))
        assert (await other.get("/v1/apps", headers=cookie)).status == 200, "any server of the store knows it"
        await api.client.ledger.revoke_token(BOSS.name, 2)
        for one in (api, other):
            refused = await one.get("/v1/apps", headers=cookie)
            assert (refused.status, refused.problem) == (401, "no-token")
            assert "its token was revoked: log in again" in refused.value["detail"]


async def until_ended(api: ApiRig, headers: dict[str, str], end: Callable[[], Awaitable[object]]) -> str:
    """Follow events, do what ends them, and return the reason that the last event has."""
    async with api.session.get(f"{api.server.url}/v1/events", headers=headers) as stream:
        assert (await heard(stream.content))[0] == "overview"
        await end()
        async with asyncio.timeout(5):
            return str((await until_heard(stream.content, "end"))["reason"])


async def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FRESH_MS", 0)
    async with api_rig(tmp_path, every_ms=5) as api:
        for token in (BOSS, READER):
            await api.client.ledger.add_token(token)
        bearer, cookie = {"Authorization": f"Bearer {TEXT}"}, cookie_of(await log_in(api, OTHER_TEXT))
        reason = await until_ended(api, bearer, lambda: api.client.ledger.revoke_token(BOSS.name, 2))
        assert "the token is unknown or was revoked" in reason
        await api.client.ledger.add_token(Token(name="other", role=Role.READ, digest=digest_of("x"), created_ms=0))
        reason = await until_ended(api, cookie, lambda: api.client.ledger.revoke_token(READER.name, 2))
        assert "its token was revoked" in reason


async def test_a_stream_goes_on_although_others_at_its_address_give_wrong_tokens(tmp_path: Path) -> None:
    async with api_rig(tmp_path, every_ms=5, server={"tokens": (BOSS,)}) as api:
        bearer = {"Authorization": f"Bearer {TEXT}"}
        async with api.session.get(f"{api.server.url}/v1/events", headers=bearer) as stream:
            for _ in range(PER_ADDRESS):
                assert (await log_in(api, "wrong")).status == 401
            assert (await api.get("/v1/apps", headers=bearer)).status == 429
            assert {(await heard(stream.content))[0] for _ in range(200)} == {"overview"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://"},
    ],
)
async def test_a_change_by_cookie_needs_the_same_origin(tmp_path: Path, headers: dict[str, str]) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS,)}) as api:
        cookie = cookie_of(await log_in(api))
        refused = await api.post(PAUSE, headers={**cookie, **headers})
        assert (refused.status, refused.problem) == (403, "wrong-origin")
        assert (await api.post("/login", {"token": TEXT}, headers=headers)).problem == "wrong-origin"
        assert (await api.post("/logout", headers={**cookie, **headers})).problem == "wrong-origin"
        own = str(api.server.url)
        assert (await api.post(PAUSE, headers={**cookie, "Origin": own})).status == 200
        plain = await api.post(PAUSE, headers={**cookie, **SAME, "Content-Type": "text/plain"})
        assert plain.problem == "wrong-content-type"


async def test_a_token_in_the_header_goes_before_a_cookie(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS, READER)}) as api:
        cookie = cookie_of(await log_in(api))
        reader = {**cookie, **SAME, "Authorization": f"Bearer {OTHER_TEXT}"}
        assert (await api.post(PAUSE, headers=reader)).problem == "forbidden"
        wrong = {**cookie, **SAME, "Authorization": "Bearer wrong"}
        assert (await api.get("/v1/apps", headers=wrong)).status == 401
        program = {**cookie, "Authorization": f"Bearer {TEXT}"}
        assert (await api.post(PAUSE, headers=program)).status == 200, "no page can set that header"


async def test_wrong_tokens_at_login_make_an_address_wait(tmp_path: Path) -> None:
    async with api_rig(tmp_path, clock=ManualClock(), server={"tokens": (BOSS,)}) as api:
        for _ in range(PER_ADDRESS):
            refused = await log_in(api, "wrong")
            assert (refused.status, refused.problem) == (401, "no-token")
            assert "Set-Cookie" not in refused.headers
        limited = await log_in(api)
        assert (limited.status, limited.problem) == (429, "too-many-failures")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"token": 1}', b'{"token": "x", "more": 1}', b"[]", b"{"])
async def test_a_login_that_is_not_one_is_refused(tmp_path: Path, body: bytes) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS,)}) as api:
        answer = await api.post("/login", body, headers=SAME)
        assert answer.status in {400, 422}
        assert "Set-Cookie" not in answer.headers


async def test_a_logout_deletes_the_cookie(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS,)}) as api:
        answer = await api.post("/logout", headers=SAME)
        morsel = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
        assert (answer.value, morsel.value, morsel["max-age"], morsel["path"]) == ({"logged_out": True}, "", "0", "/")


async def test_a_cookie_is_for_tls_alone_if_the_page_came_by_tls(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": (BOSS,)}) as api:
        by_proxy = await log_in(api, Origin="https://scheduler.example")
        assert SimpleCookie(by_proxy.headers["Set-Cookie"])[COOKIE]["secure"] is True
    files = make_certificates(tmp_path)
    tls = {"tokens": (BOSS,), "certificate": str(files.certificate), "key": str(files.key)}
    (tmp_path / "other").mkdir()
    async with api_rig(tmp_path / "other", server=tls) as api:
        answer = await api.post("/login", {"token": TEXT}, headers=SAME, ssl=False)
        assert SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]["secure"] is True


def test_the_length_of_a_session_and_open_metrics_are_settings(tmp_path: Path) -> None:
    overrides = {"store.url": f"sqlite:///{tmp_path / 'jobs.db'}", "http.session": "90s", "http.metrics": "open"}
    server = JobStatusApi(load_settings(overrides=overrides))
    server.start(0)
    try:
        assert server._server is not None
        settings = server._server._settings
        assert (settings.session_ms, settings.open_metrics) == (90_000, True)
    finally:
        server.stop()
