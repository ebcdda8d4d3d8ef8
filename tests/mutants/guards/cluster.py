"""Which node owns which shard: heartbeats, watches, moves."""

from tests.mutants.mutant import Mutant

MEMBERSHIP = "cluster/membership.py"
PLAN = "cluster/plan.py"
WATCH = "cluster/watch.py"
OWNERSHIP = "store/sql/ownership.py"

CLUSTER = ("tests/unit/test_engine_cluster.py",)
CONTRACT = ("tests/contract/test_store_contract.py::TestSqliteInline",)
PLANS = ("tests/unit/test_plan.py",)
CLOCK = ("tests/unit/test_engine_clock.py",)

MUTANTS = (
    Mutant(
        "the lease counts from the answer of a heartbeat",
        MEMBERSHIP,
        "            if self._lease.renewed(asked_ms):",
        "            if self._lease.renewed(self._clock.steady_ms()):",
        (*CLUSTER, "-k", "counts_from"),
    ),
    Mutant(
        "a look that does not renew counts as a renewal",
        MEMBERSHIP,
        "        if renew:\n            self._renewed_ms = asked_ms\n",
        "        if True:\n            self._renewed_ms = asked_ms\n",
        CLUSTER,
    ),
    Mutant(
        "a node whose lease had lapsed goes on with what it holds",
        MEMBERSHIP,
        '                    holder.doubt(list(holder.owners()), "the lease had lapsed")\n',
        "                    pass\n",
        ("tests/unit/test_engine_rules.py",),
    ),
    Mutant(
        "a store outage counts as the silence of other nodes",
        MEMBERSHIP,
        "                self._watch.interrupt()\n",
        "",
        CLUSTER,
        survives="a look that comes half a lease after the one before begins anew as well; a shorter outage and the "
        "heartbeats that it swallows are less than a lease",
    ),
    Mutant(
        "what the store gives to another owner is kept without a look",
        MEMBERSHIP,
        '            holder.doubt(strange, "the store names another owner")\n',
        "            pass\n",
        CLUSTER,
        survives="a shard is taken only from a node whose lease has lapsed, which loads all it owns again when it "
        "renews, and every write is fenced: this finds it sooner",
    ),
    Mutant(
        "a shard that came while the store was looked at is doubted",
        MEMBERSHIP,
        "if held.get(s) == owner and s in shards and shards[s].owner != owner",
        "if s in shards and shards[s].owner != owner",
        CLUSTER,
    ),
    Mutant(
        "a node takes shards of live nodes",
        MEMBERSHIP,
        "elif goal.get((shard.app, shard.number)) == self._node.nonce and owner not in alive:",
        "elif goal.get((shard.app, shard.number)) == self._node.nonce:",
        CLUSTER,
    ),
    Mutant(
        "a claim does not say which heartbeat was seen",
        MEMBERSHIP,
        "beat=self._watch.beat(owner), dead=owner in dead)",
        "beat=None, dead=owner in dead)",
        CLUSTER,
    ),
    Mutant(
        "a claim calls every owner dead",
        MEMBERSHIP,
        "dead=owner in dead)",
        "dead=True)",
        (*CLUSTER, "tests/unit/test_engine_rules.py"),
        survives="only what counts as dead is claimed; that the heartbeat is compared again under the lock is the "
        "contract's, and the claim's `dead` is proven there alone",
    ),
    Mutant(
        "a second take begins while one is under way",
        MEMBERSHIP,
        "            if claims and not holder.taking:\n",
        "            if claims:\n",
        ("tests/unit/test_engine_cluster.py", "-k", "test_while_a_take_is_under_way_no_other_is_begun"),
    ),
    Mutant(
        "a node that leaves takes shards",
        MEMBERSHIP,
        "            if self.leaving:\n                continue\n",
        "",
        (*CLUSTER, "tests/unit/test_engine_stop.py"),
        survives="the plan gives nothing to a node that leaves, and a stop gives back what a take under way brings",
    ),
    Mutant(
        "what a crash left behind moves on before it is worked off",
        MEMBERSHIP,
        "            moving = [s for s in moving if s not in unsettled]\n",
        "",
        CLUSTER,
    ),
    Mutant(
        "a drain that was called off is tried again at once",
        MEMBERSHIP,
        "if self._off or self._not_before_ms.get(s, 0) <= now_ms]",
        "if True]",
        CLUSTER,
    ),
    Mutant(
        "a node whose clock is off keeps its shards",
        MEMBERSHIP,
        "return self.leaving or self._asked or self._off",
        "return self.leaving or self._asked",
        CLOCK,
    ),
    Mutant(
        "a node that is asked to drain keeps its shards",
        MEMBERSHIP,
        "return self.leaving or self._asked or self._off",
        "return self.leaving or self._off",
        CLUSTER,
    ),
    Mutant(
        "every node leads",
        MEMBERSHIP,
        "self.leads = not self._off and self._node.nonce == min(sound, default=None)",
        "self.leads = not self._off",
        (*CLUSTER, "-k", "maintenance"),
    ),
    Mutant(
        "a silent node counts as alive",
        WATCH,
        "            life.silent = over and nonce != self._own.nonce\n",
        "            life.silent = False\n",
        CLUSTER,
    ),
    Mutant(
        "a node counts as dead before its lease is over",
        WATCH,
        "if presumed_dead else self._lease_ms",
        "if presumed_dead else self._lease_ms // 2",
        CLUSTER,
    ),
    Mutant(
        "a presumed death counts as a proven one",
        WATCH,
        "return min(SIGNS * self._heartbeat_ms, self._lease_ms) if presumed_dead",
        "return 0 if presumed_dead",
        CLUSTER,
    ),
    Mutant(
        "silence counts through a store outage",
        WATCH,
        "                    life.since_ms = now_ms\n        self._looked_ms",
        "                    pass\n        self._looked_ms",
        (*CLUSTER, "-k", "costs_no_node"),
    ),
    Mutant(
        "a node that died long ago comes back to life with the store",
        WATCH,
        "                if not life.silent:  # a node that was silent before still is\n",
        "                if True:\n",
        CLUSTER,
    ),
    Mutant(
        "shards are planned for nodes that died long ago",
        WATCH,
        "return {nonce for nonce, life in others if not life.proven and (life.beat > 1 or life.met_ms <= young_ms)}",
        "return set()",
        CLUSTER,
    ),
    Mutant(
        "a node judges itself by its heartbeats",
        WATCH,
        "life.silent = over and nonce != self._own.nonce",
        "life.silent = over",
        CLUSTER,
        survives="`setdefault` adds the node itself once more; and one without the store has no look at all",
    ),
    Mutant(
        "a draining node gets shards",
        PLAN,
        "for node in sorted(nodes) if node not in draining}",
        "for node in sorted(nodes)}",
        PLANS,
    ),
    Mutant(
        "the plan depends on the order of the nodes",
        PLAN,
        "runs = {node: nodes[node] for node in sorted(nodes) if",
        "runs = {node: nodes[node] for node in nodes if",
        ("tests/unit/test_plan.py", "-k", "test_the_order_of_the_mappings_does_not_matter"),
    ),
    Mutant(
        "a node gets apps that it cannot run",
        PLAN,
        "self.nodes = [node for node, apps in runs.items() if name in apps]",
        "self.nodes = list(runs)",
        PLANS,
    ),
    Mutant(
        "a heartbeat whose answer was lost is sent a second time as the same",
        OWNERSHIP,
        "        self._node = node  # even if the answer is lost: every heartbeat must differ from the one before\n"
        "        view = await (self._beats.write(body) if renew else self._beats.read(body))\n",
        "        view = await (self._beats.write(body) if renew else self._beats.read(body))\n"
        "        self._node = node\n",
        (*CLUSTER, "-k", "answers_are_lost"),
    ),
    Mutant(
        "the shards of a view are read after its nodes",
        OWNERSHIP,
        "            shards = self._shards(tx)  # before the nodes: the owner of a shard has been a node for longer\n"
        "            nodes, apps = tuple(tx.read_nodes()), tuple(tx.read_apps())\n",
        "            nodes, apps = tuple(tx.read_nodes()), tuple(tx.read_apps())\n"
        "            shards = self._shards(tx)\n",
        ("tests/servers/test_line_protocol.py",),
        survives="a node that has just joined and taken a shard would be missing among the nodes for one look; the "
        "claim of another then fails under the lock, as its heartbeat is not the one seen",
    ),
    Mutant(
        "a settle that must lower low gives up",
        OWNERSHIP,
        "        if settled is None:\n            settled = await lane.write(",
        "        if False:\n            settled = await lane.write(",
        (*CONTRACT, "-k", "low"),
    ),
    Mutant(
        "decisions of withdrawn requests are told",
        OWNERSHIP,
        "for decision in answers.decisions if decision.claimed)",
        "for decision in answers.decisions)",
        (*CONTRACT, "-k", "withdrawn or request"),
        survives="a caller that has withdrawn its request does not wait for the decision any more, so none hears of it",
    ),
)
