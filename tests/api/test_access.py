"""Who may come in: known hosts, tokens, roles, and nothing that a page of another origin could send."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from infinite_scheduler.api import access
from infinite_scheduler.api.failed_logins import PER_ADDRESS
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.store.ledger import Role, Token
from infinite_scheduler.testing.manual_clock import ManualClock
from tests.api.api_rig import APP, Answer, ApiRig, api_rig

TEXTS = {role: new_token() for role in Role}
TOKENS = tuple(
    Token(name=f"my-{role}", role=role, digest=digest_of(text), created_ms=0) for role, text in TEXTS.items()
)
JOB = {"app": APP, "delay": "1h"}


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def test_a_token_may_do_what_its_role_includes(tmp_path: Path) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}) as api:
        ways: dict[str, Callable[[str], Awaitable[Answer]]] = {
            "read": lambda token: api.get("/v1/apps", headers=bearer(token)),
            "submit": lambda token: api.post("/v1/jobs", JOB, headers=bearer(token)),
            "operate": lambda token: api.post(f"/v1/apps/{APP}/pause", headers=bearer(token)),
        }
        allowed = {
            role: [name for name, way in ways.items() if (await way(token)).status < 300]
            for role, token in TEXTS.items()
        }
        assert allowed == {
            Role.READ: ["read"],
            Role.SUBMIT: ["read", "submit"],
            Role.OPERATE: ["read", "submit", "operate"],
        }
        refused = await api.post("/v1/jobs", JOB, headers=bearer(TEXTS[Role.READ]))
        assert (refused.status, refused.problem) == (403, "forbidden")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer"}, {"Authorization": "Basic dTpw"}, bearer("wrong"), bearer(TEXTS[Role.READ] + "x")],
)
async def test_without_a_valid_token_nothing_but_health_is_answered(tmp_path: Path, headers: dict[str, str]) -> None:
    async with api_rig(tmp_path, server={"tokens": TOKENS}) as api:
        for path in ("/v1/jobs", "/v1/apps", "/openapi.json", "/docs"):
            answer = await api.get(path, headers=headers)
            assert (answer.status, answer.problem) == (401, "no-token")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await api.post("/v1/jobs", JOB, headers=headers)).status == 401
        assert (await api.get("/health/ready", headers=headers)).status == 200


async def test_a_token_of_the_store_counts_until_it_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FRESH_MS", 0)
    async with api_rig(tmp_path) as api:
        assert (await api.get("/v1/apps")).status == 200, "there is no token yet"
        ledger, text = api.client.ledger, new_token()
        await ledger.add_token(Token(name="ci", role=Role.READ, digest=digest_of(text), created_ms=1))
        assert (await api.get("/v1/apps")).status == 401
        assert (await api.get("/v1/apps", headers=bearer(text))).status == 200
        other = Token(name="other", role=Role.READ, digest=digest_of(new_token()), created_ms=1)
        await ledger.add_token(other)
        await ledger.revoke_token("ci", 2)
        assert (await api.get("/v1/apps", headers=bearer(text))).status == 401


async def test_the_store_is_not_asked_for_tokens_at_each_request(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, clock=clock) as api:
        assert (await api.get("/v1/apps")).status == 200
        text = new_token()
        await api.client.ledger.add_token(Token(name="ci", role=Role.READ, digest=digest_of(text), created_ms=1))
        assert (await api.get("/v1/apps")).status == 200
        clock.advance(access.FRESH_MS)
        assert (await api.get("/v1/apps")).status == 401


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:7070", "scheduler.internal:80"])
async def test_a_known_host_is_answered(tmp_path: Path, host: str) -> None:
    async with api_rig(tmp_path, server={"hosts": ("Scheduler.internal",)}) as api:
        assert (await api.get("/v1/apps", headers={"Host": host})).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::2]"])
async def test_a_foreign_host_is_refused_on_loopback(api: ApiRig, host: str) -> None:
    for answer in (
        await api.get("/v1/jobs", headers={"Host": host}),
        await api.post("/v1/jobs", JOB, headers={"Host": host}),
        await api.get("/health/live", headers={"Host": host}),
    ):
        assert (answer.status, answer.problem) == (421, "wrong-host")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a_change_needs_a_type_that_no_form_can_send(api: ApiRig, kind: str) -> None:
    job = await api.schedule()
    for path, body in (("/v1/jobs", JOB), (f"/v1/jobs/{job}/cancel", None), (f"/v1/apps/{APP}/pause", None)):
        answer = await api.post(path, body, headers={"Content-Type": kind})
        assert (answer.status, answer.problem) == (415, "wrong-content-type")
    assert (await api.client.get(job)).status == "pending"


async def test_no_answer_allows_other_origins_or_frames(api: ApiRig) -> None:
    for answer in (
        await api.get("/v1/apps", headers={"Origin": "https://evil.example"}),
        await api.get("/docs"),
        await api.get("/nothing"),
        await api.ask("OPTIONS", "/v1/jobs", headers={"Origin": "https://evil.example"}),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        policy = answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_many_wrong_tokens_make_an_address_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    async with api_rig(tmp_path, server={"tokens": TOKENS}, clock=clock) as api:
        for _ in range(PER_ADDRESS):
            assert (await api.get("/v1/apps", headers=bearer("wrong"))).status == 401
        limited = await api.get("/v1/apps", headers=bearer(TEXTS[Role.READ]))
        assert (limited.status, limited.problem, limited.headers["Retry-After"]) == (429, "too-many-failures", "60")
        clock.advance(60_000)
        assert (await api.get("/v1/apps", headers=bearer(TEXTS[Role.READ]))).status == 200


async def test_a_server_that_others_can_reach_makes_a_token_and_prints_it_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with api_rig(tmp_path, server={"host": "0.0.0.0"}) as api:
        printed = capfd.readouterr().err
        (text,) = [word for word in printed.split() if word.startswith("isk_")]
        (token,) = await api.client.ledger.tokens()
        assert (token.name, token.role, token.digest) == ("first-1", Role.OPERATE, digest_of(text))
        url = str(api.server.url).replace("0.0.0.0", "127.0.0.1")
        async with api.session.get(f"{url}/v1/apps", headers=bearer(text)) as answer:
            assert answer.status == 200
        async with api.session.get(f"{url}/v1/apps") as answer:
            assert answer.status == 401
        assert [type(event).__name__ for event in api.told] == ["HttpOpened", "HttpUnencrypted"]
        assert text not in repr(api.told)
    async with api_rig(tmp_path, server={"host": "0.0.0.0"}):
        assert "isk_" not in capfd.readouterr().err


async def test_a_server_that_others_can_reach_stays_closed_when_its_last_token_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FRESH_MS", 0)
    async with api_rig(tmp_path, server={"host": "0.0.0.0"}) as api:
        await api.client.ledger.revoke_token("first-1", 2)
        url = str(api.server.url).replace("0.0.0.0", "127.0.0.1")
        async with api.session.get(f"{url}/v1/apps") as answer:
            assert answer.status == 401


async def test_the_data_of_jobs_is_shown_to_those_who_may_see_it(tmp_path: Path) -> None:
    secret = "iban-DE02"
    for payloads, shown in (("operators", [False, True]), ("hidden", [False, False])):
        folder = tmp_path / payloads
        folder.mkdir()
        async with api_rig(folder, server={"tokens": TOKENS}, payloads=payloads) as api:
            accepted = await api.client.schedule(APP, {"secret": secret}, delay="1h")
            for role, expected in zip((Role.READ, Role.OPERATE), shown, strict=True):
                for path in ("/v1/jobs", f"/v1/jobs/{accepted.id}", f"/v1/jobs/{accepted.id}/payload"):
                    answer = await api.get(path, headers=bearer(TEXTS[role]))
                    assert (secret.encode() in answer.content) is expected, (payloads, role, path)
