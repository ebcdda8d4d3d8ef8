"""The lock files of nodes: what a handler, a child process or a kill does to them, with nodes as processes."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from infinite_scheduler import Accepted, Client, JobRecord
from tests.integration.sqlite.sqlite_file import BOUND_S, said
from tests.waiting import until_async

Start = Callable[..., subprocess.Popen[str]]

SHARDS = 8
LEASE_S = 3
JOBS = 3000 if os.environ.get("INFINITE_SCHEDULER_SOAK") else 75
"""Jobs of two nodes that read their lock files, 50 per second: in a soak for a minute."""

NODE = f"""
import signal, subprocess
from pathlib import Path
from infinite_scheduler import Scheduler
from infinite_scheduler.observe.events import ShardsLost
from infinite_scheduler.store.sql.sqlite import liveness

how = sys.argv[2:]
if "posix" in how:
    from infinite_scheduler.store.sql.sqlite import file_lock
    file_lock.OFD = False
lost = []
scheduler = Scheduler(
    f"sqlite:///{{path}}",
    settings={{"node.heartbeat": 1, "node.lease": {LEASE_S}}},
    observers=[lambda event: lost.append(event) if isinstance(event, ShardsLost) else None],
)

@scheduler.app("mail", shards={SHARDS})
async def read_everything(job):
    print(job.id, flush=True)
    for file in Path(f"{{path}}-nodes").iterdir():
        file.read_bytes()

async def main():
    async with scheduler:
        if "heir" in how:
            child = subprocess.Popen(["sleep", "60"], pass_fds=tuple(liveness._held.values()))
            print(child.pid, flush=True)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("lost", len(lost), flush=True)

asyncio.run(main())
"""


def begun(start: Start, path: Path, *how: str) -> subprocess.Popen[str]:
    process = start(NODE, path, *how)
    assert said(process) == "ready"
    return process


def ended(process: subprocess.Popen[str]) -> Sequence[str]:
    """Let a node stop; what it has said since it was ready."""
    out, err = process.communicate("\n", BOUND_S)
    assert process.returncode == 0, err
    return out.splitlines()


async def shared(client: Client) -> None:
    """Wait until two nodes have half of the shards each."""

    async def holds() -> bool:
        owners = Counter(info.owner.nonce for info in (await client.survey()).view.shards)
        return sorted(owners.values()) == [SHARDS // 2] * 2

    await until_async(holds)


async def settled(client: Client, jobs: Sequence[Accepted]) -> Sequence[JobRecord]:
    return [await client.wait(job.id, timeout=BOUND_S + 0.02 * JOBS) for job in jobs]


@pytest.mark.endurance
@pytest.mark.parametrize("how", [(), ("posix",)], ids=["as the system can", "without OFD locks"])
async def test_nodes_whose_handlers_read_the_lock_files_take_nothing_from_each_other(
    path: Path, start: Start, how: Sequence[str]
) -> None:
    nodes = [begun(start, path, *how) for _ in range(2)]
    async with Client(f"sqlite:///{path}") as client:
        await shared(client)
        jobs = [await client.schedule("mail", n, delay=0.02 * n) for n in range(JOBS)]
        found = await settled(client, jobs)
    told = [line for node in nodes for line in ended(node)]
    assert [line for line in told if line.startswith("lost")] == ["lost 0"] * 2
    assert Counter(line for line in told if not line.startswith("lost")) == dict.fromkeys((job.id for job in jobs), 1)
    assert {(record.status, record.job.attempt) for record in found} == {("done", 1)}


async def taken_over_after(client: Client, killed: subprocess.Popen[str]) -> float:
    """How long it takes after `kill -9` until another node owns everything."""

    async def by_one() -> bool:
        return len({info.owner.nonce for info in (await client.survey()).view.shards}) == 1

    killed.send_signal(signal.SIGKILL)
    killed.wait()
    began = time.monotonic()
    await until_async(by_one)
    return time.monotonic() - began


async def test_a_killed_node_is_replaced_at_once(path: Path, start: Start) -> None:
    first = begun(start, path)
    begun(start, path)
    async with Client(f"sqlite:///{path}") as client:
        await shared(client)
        assert await taken_over_after(client, first) < LEASE_S / 2


async def test_a_killed_node_whose_lock_a_child_has_is_replaced_after_its_lease(path: Path, start: Start) -> None:
    first = start(NODE, path, "heir")
    child = int(said(first))
    try:
        assert said(first) == "ready"
        begun(start, path)
        async with Client(f"sqlite:///{path}") as client:
            await shared(client)
            assert LEASE_S - 1 < await taken_over_after(client, first) < LEASE_S + 2
    finally:
        os.kill(child, signal.SIGKILL)
