"""Apps, nodes, shards, topics and dead letters over HTTP, and the audit of what operators do."""

from typing import Any

import pytest

from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source, new_letter_id
from infinite_scheduler.store.ledger import AuditQuery
from tests.api.api_rig import APP, ApiRig

SOURCE = Source("g", "orders", 0)


async def audit(api: ApiRig) -> list[tuple[str, str, str, int]]:
    page = await api.client.ledger.records(AuditQuery())
    assert {record.address for record in page.records} <= {"127.0.0.1"}
    return [(record.who, record.verb, record.target, record.count) for record in reversed(page.records)]


async def keep(api: ApiRig, value: bytes, failed_ms: int = 1_700_000_000_000) -> str:
    """A dead letter in the store."""
    letter = DeadLetter(
        id=new_letter_id(failed_ms),
        source=SOURCE,
        offset=7,
        key=b"k",
        value=value,
        headers=[("h", b"\xff")],
        error="bad",
        failed_ms=failed_ms,
        dlq_topic=None,
        state=LetterState.KEPT,
    )
    await api.client.inbox.take([], [letter], [])
    return letter.id


def message(at: str = "2030-01-01T00:00:00Z", app: str = APP) -> bytes:
    return b'{"appName": "%b", "scheduledTime": "%b", "jobData": {"a": 1}}' % (app.encode(), at.encode())


async def test_apps_are_listed_paused_and_resumed(api: ApiRig) -> None:
    await api.schedule()
    (app,) = (await api.get("/v1/apps")).value["apps"]
    assert (app["app"], app["paused"], app["shards"], app["counts"]["accepted"]) == (APP, False, 2, 1)
    assert (await api.post(f"/v1/apps/{APP}/pause")).value == {"app": APP, "paused": True}
    assert (await api.get(f"/v1/apps/{APP}")).value["paused"] is True
    assert (await api.post(f"/v1/apps/{APP}/resume")).value == {"app": APP, "paused": False}
    assert await audit(api) == [("local", "pause app", APP, 1), ("local", "resume app", APP, 1)]


async def test_an_unknown_app_is_not_found_and_the_audit_says_so(api: ApiRig) -> None:
    assert (await api.get("/v1/apps/nobody")).problem == "unknown-app"
    assert (await api.post("/v1/apps/nobody/pause")).problem == "unknown-app"
    (record,) = (await api.client.ledger.records(AuditQuery())).records
    assert record.result.startswith("unknown app 'nobody'")


async def test_nodes_are_listed_drained_and_resumed(api: ApiRig) -> None:
    node = NodeInfo(nonce="n1", node_id="node-1", apps=frozenset({APP}), started_ms=1)
    ownership = api.client._store.ownership(node, lambda shards: None)
    await ownership.beat()
    (listed,) = (await api.get("/v1/nodes")).value["nodes"]
    assert (listed["node"], listed["apps"]) == ("node-1", [APP])
    assert (await api.post("/v1/nodes/node-1/drain")).value == {
        "node": "node-1",
        "drain_asked": True,
        "nodes": 1,
        "shards": 0,
    }
    assert (await api.post("/v1/nodes/node-1/resume")).value["drain_asked"] is False
    assert (await api.post("/v1/nodes/node-2/drain")).problem == "unknown-node"
    assert [row[1:3] for row in await audit(api)] == [
        ("drain node", "node-1"),
        ("resume node", "node-1"),
        ("drain node", "node-2"),
    ]


async def test_shards_are_listed(api: ApiRig) -> None:
    shards = (await api.get("/v1/shards")).value["shards"]
    assert [(shard["app"], shard["shard"], shard["owner"]) for shard in shards] == [(APP, 0, None), (APP, 1, None)]


async def test_without_topics_the_list_is_empty(api: ApiRig) -> None:
    assert (await api.get("/v1/topics")).value == {"topics": []}


async def test_dead_letters_are_listed_and_shown(api: ApiRig) -> None:
    ids = [await keep(api, b"\xff", 1_700_000_000_000 + number) for number in range(3)]
    first = (await api.get("/v1/dlq?limit=2")).value
    assert [letter["id"] for letter in first["letters"]] == [ids[2], ids[1]]
    rest = (await api.get(f"/v1/dlq?cursor={first['cursor']}&topic=orders&group=g&state=kept")).value
    assert ([letter["id"] for letter in rest["letters"]], rest["cursor"]) == ([ids[0]], None)
    assert (await api.get("/v1/dlq?topic=others")).value["letters"] == []
    shown = (await api.get(f"/v1/dlq/{ids[0]}")).value
    assert (shown["key"], shown["value_base64"], shown["offset"]) == ("k", "/w==", 7)


@pytest.mark.parametrize("path", ["/v1/dlq?state=gone", "/v1/dlq?limit=0", "/v1/dlq?before=soon", "/v1/dlq?cursor=x"])
async def test_a_question_about_letters_that_makes_no_sense_is_refused(api: ApiRig, path: str) -> None:
    assert (await api.get(path)).status == 422


async def test_an_unknown_letter_is_not_found(api: ApiRig) -> None:
    gone = new_letter_id(5)
    assert (await api.get(f"/v1/dlq/{gone}")).problem == "unknown-letter"
    assert (await api.post(f"/v1/dlq/{gone}/replay")).problem == "unknown-letter"
    assert (await api.get("/v1/dlq/nonsense")).status in {404, 422}


async def test_a_letter_is_replayed_once(api: ApiRig) -> None:
    letter = await keep(api, message())
    done = (await api.post(f"/v1/dlq/{letter}/replay")).value
    again = (await api.post(f"/v1/dlq/{letter}/replay", {})).value
    assert (done["job"], again["repeated"]) == (again["job"], True)
    assert (await api.client.get(done["job"])).job.data == {"a": 1}
    assert [row[1:] for row in await audit(api)] == [("replay dead letter", letter, 1)] * 2


async def test_a_letter_that_is_still_bad_stays(api: ApiRig) -> None:
    letter = await keep(api, b"{")
    assert (await api.post(f"/v1/dlq/{letter}/replay")).problem == "invalid-request"
    assert (await api.get(f"/v1/dlq/{letter}")).value["state"] == "kept"


async def test_many_letters_are_replayed_with_an_answer_each(api: ApiRig) -> None:
    ids = [await keep(api, value) for value in (message(), b"{", message("2030-01-01 00:00:00"))]
    body: dict[str, Any] = {"ids": ids}
    answer = (await api.post("/v1/dlq/replay", body)).value
    assert [one["job"] is not None for one in answer["results"]] == [True, False, False], (
        "no zone is known for the last"
    )
    assert (answer["replayed"], answer["refused"]) == (1, 2)
    answer = (await api.post("/v1/dlq/replay", {"ids": ids[2:], "zone": "Europe/Berlin"})).value
    assert answer["results"][0]["due_ms"] == 1_893_452_400_000
    assert (await api.post("/v1/dlq/replay", {"ids": ids, "zone": "Mars"})).problem == "invalid-request"
    assert [row[1:] for row in await audit(api)] == [
        ("replay dead letters", f"{ids[0]} …", 1),
        ("replay dead letters", f"{ids[2]} …", 1),
    ]
