"""Promises about pauses and drains."""

from infinite_scheduler.errors import UnknownApp
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, Promises, refused


class OperatingContract(Promises):
    """What `pause` and `drain` promise."""

    async def test_a_node_that_is_asked_to_drain_is_seen_by_all_and_a_sign_of_life_changes_nothing(
        self, bench: Bench
    ) -> None:
        node, other = await bench.node("n1", store=await bench.process()), await bench.node("n2")
        for draining in (True, False):
            assert await bench.store.drain("n1", draining=draining) == 1
            for view in (await node.ownership.beat(), await node.ownership.beat(renew=False)):
                assert {n.node_id: n.drain_asked for n in view.nodes} == {"n1": draining, "n2": False}
        assert not any(n.draining for n in (await other.ownership.beat()).nodes), "whether it follows it says itself"

    async def test_all_nodes_of_one_name_are_asked_to_drain(self, bench: Bench) -> None:
        await bench.node("twin")
        await bench.node("twin", store=await bench.process())
        assert await bench.store.drain("twin", draining=True) == 2
        assert await bench.store.drain("twin", draining=True) == 2, "whether it was asked before or not"
        assert all(n.drain_asked for n in (await bench.store.survey()).view.nodes)

    async def test_no_node_of_an_unknown_name_is_asked_to_drain(self, bench: Bench) -> None:
        await bench.node("n1")
        assert await bench.store.drain("n2", draining=True) == 0

    async def test_a_pause_is_seen_in_the_view(self, bench: Bench) -> None:
        node = await bench.node(store=await bench.process())
        for paused in (True, False):
            await bench.store.pause(APP, paused=paused)
            (app,) = (await node.ownership.beat()).apps
            assert app.paused is paused
        with refused(UnknownApp, "'nobody'", APP):
            await bench.store.pause("nobody", paused=True)

    async def test_a_paused_app_accepts_jobs(self, bench: Bench) -> None:
        await bench.store.pause(APP, paused=True)
        assert await bench.add(1000)
