"""What an operator sees who looks into the tables of a server."""

from datetime import UTC, datetime, timedelta

import pytest

from infinite_scheduler import Client
from tests.services.databases import connect, execute, kind_of

pytestmark = pytest.mark.servers


async def test_an_operator_reads_the_latest_jobs_of_a_day(url: str) -> None:
    noon = datetime(2030, 1, 31, 12, tzinfo=UTC)
    async with Client(url) as client:
        await client.register("sms_retry")
        jobs = [
            await client.schedule("sms_retry", {"n": n}, at=noon + timedelta(milliseconds=n), tags=["vip"])
            for n in range(12)
        ]
    connection = connect(url)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM sms_retry_scheduled_jobs_later ORDER BY scheduled_time DESC LIMIT 10")
        columns = [column[0] for column in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    connection.close()
    assert columns[:5] == ["job_id", "scheduled_time", "due_time", "created_at", "finished_at"]
    assert [str(row["job_id"]) for row in rows] == [job.id for job in reversed(jobs)][:10]
    latest = rows[0]["scheduled_time"]
    moment = latest.replace(tzinfo=UTC) if kind_of(url) == "mariadb" else latest
    assert moment == noon + timedelta(milliseconds=11)
    assert (rows[0]["status"], rows[0]["job_data"], rows[0]["tags"]) == ("pending", '{"n":11}', '["vip"]')
    assert rows[0]["finished_at"] is None


async def test_ids_are_looked_up_and_sorted_by_the_primary_key(url: str) -> None:
    async with Client(url) as client:
        await client.register("sms_retry")
        job = await client.schedule("sms_retry", at="2100-01-01T00:00:00Z")
    wanted = f"'{job.id}'" if kind_of(url) == "postgres" else f"UNHEX(REPLACE('{job.id}', '-', ''))"
    table = "sms_retry_scheduled_jobs_later"
    if kind_of(url) == "postgres":
        filled = (
            f"INSERT INTO {table} (status, due_ms, scheduled_ms, attempt, priority, shard, created_ms, id, job_data)"
            " SELECT 'done', 1, 1, 1, 1, 0, 1, gen_random_uuid(), '1' FROM generate_series(1, 20000)"
        )
    else:
        filled = (
            f"INSERT INTO {table} (status, due_ms, scheduled_ms, attempt, priority, shard, created_ms, id, job_data)"
            " SELECT 'done', 1, 1, 1, 1, 0, 1, UNHEX(MD5(seq)), '1' FROM seq_1_to_20000"
        )
    execute(url, filled)
    execute(url, f"ANALYZE {table}" if kind_of(url) == "postgres" else f"ANALYZE TABLE {table}")
    for question in (f"WHERE id = {wanted}", "ORDER BY id DESC LIMIT 10"):
        plan = " ".join(str(part) for row in execute(url, f"EXPLAIN SELECT * FROM {table} {question}") for part in row)
        assert ("_pkey" in plan) if kind_of(url) == "postgres" else ("PRIMARY" in plan), plan
        assert "Seq Scan" not in plan
        assert "filesort" not in plan
