"""What is sent to Kafka arrives once, and what is read from it is read from where the store says."""

from tests.mutants.mutant import Mutant

PRODUCER = "kafka/producer.py"
MEMBER = "kafka/group_member.py"
CLIENT = "kafka/group_client.py"
HANDLER = "handlers/kafka.py"

SENDS = ("tests/unit/test_kafka_producer.py",)
CLIENTS = ("tests/unit/test_kafka_clients.py",)
MEMBERS = ("tests/unit/test_group_member.py",)
HANDLERS = ("tests/unit/test_kafka_handler.py",)

MUTANTS = (
    Mutant("messages may be written twice", PRODUCER, "enable_idempotence=True", "enable_idempotence=False", CLIENTS),
    Mutant("one replica is enough", PRODUCER, 'acks="all"', 'acks="1"', CLIENTS),
    Mutant(
        "a client that is replaced loses what may have arrived",
        PRODUCER,
        "                if self._broken:\n                    client.purge()",
        "                client.purge()",
        (*SENDS, "-k", "replaced"),
    ),
    Mutant(
        "a client that gave up keeps its messages forever",
        PRODUCER,
        "                if self._broken:\n                    client.purge()\n",
        "",
        (*SENDS, "-k", "gave_up"),
    ),
    Mutant(
        "a stuck client is not replaced",
        PRODUCER,
        "                self._stuck = True\n",
        "                pass\n",
        (*SENDS, "-k", "replaced"),
    ),
    Mutant(
        "a client that gave up is not replaced",
        PRODUCER,
        "        if self._stuck or (self._broken and self._open):\n            self._renew()\n",
        "        if self._stuck:\n            self._renew()\n",
        (*SENDS, "-k", "gave_up or not_allowed"),
    ),
    Mutant(
        "a former client is closed with messages in it",
        PRODUCER,
        "for client in [client for client in self._former if not len(client)]:",
        "for client in list(self._former):",
        (*SENDS, "-k", "replaced"),
    ),
    Mutant(
        "the reports of former clients are not heard",
        PRODUCER,
        "for client in (self._client, self._single, *self._former) if client is not None]",
        "for client in (self._client, self._single) if client is not None]",
        (*SENDS, "-k", "replaced"),
    ),
    Mutant(
        "a record that was refused for its company is refused for good",
        PRODUCER,
        "if not alone and self._may_have_had_company(record, error) and self._put_alone(sending, index):",
        "if False:",
        (*SENDS, "-k", "one_by_one"),
    ),
    Mutant(
        "an error of one sender costs others their reports",
        PRODUCER,
        "        except Exception as raised:  # noqa: BLE001 - an error of one sender",
        "        except ZeroDivisionError as raised:  # noqa: BLE001 - an error of one sender",
        (*SENDS, "-k", "senders_own_trouble"),
    ),
    Mutant(
        "a record for which the queue has no room is lost",
        PRODUCER,
        "            if self._pending:\n                return False\n",
        "            if self._pending:\n                return True\n",
        (*SENDS, "-k", "waits_for_room"),
    ),
    Mutant(
        "a stop does not wait for what is under way",
        PRODUCER,
        "        clean = await self._settle(timeout_s)\n",
        "        clean = await self._settle(0)\n",
        (*SENDS, "-k", "waits_for_what_is_under_way"),
    ),
    Mutant(
        "Kafka's own commits say how far the group is",
        CLIENT,
        "enable_auto_commit=False",
        "enable_auto_commit=True",
        CLIENTS,
    ),
    Mutant(
        "librdkafka decides where to go on",
        CLIENT,
        'auto_offset_reset="error"',
        'auto_offset_reset="latest"',
        CLIENTS,
    ),
    # Handler
    Mutant(
        "a job is done before its message is delivered",
        HANDLER,
        "            report(sent[index], _DONE if error is None else _not_sent(error))\n",
        "            report(sent[index], _DONE)\n",
        HANDLERS,
    ),
    Mutant(
        "a topic that takes nothing fails its jobs",
        HANDLER,
        "    if not error.refused:\n        return DestinationAway(str(error))\n",
        "",
        HANDLERS,
    ),
    Mutant(
        "a message that is refused for good is tried again",
        HANDLER,
        "return error if error.retryable else Failed(str(error))",
        "return error",
        HANDLERS,
    ),
    Mutant(
        "a message may arrive after its job has timed out",
        HANDLER,
        "message_timeout_ms=max(1, timeout_ms * 2 // 3)",
        "message_timeout_ms=timeout_ms * 2",
        HANDLERS,
    ),
    Mutant(
        "data of which no message can be made stops its neighbours",
        HANDLER,
        "            except InvalidPayload as error:\n                report(job, Failed(str(error)))\n",
        "            except ZeroDivisionError as error:\n                report(job, Failed(str(error)))\n",
        HANDLERS,
    ),
    # Member
    Mutant(
        "a partition is fetched before its start offset is known",
        MEMBER,
        "if self.holds(each) and each.committed is not None and not each.fetching]",
        "if self.holds(each) and not each.fetching]",
        MEMBERS,
    ),
    Mutant(
        "messages of before the position are taken",
        MEMBER,
        "if assigned is None or not assigned.fetching or offset < assigned.expected:",
        "if assigned is None or not assigned.fetching:",
        MEMBERS,
    ),
    Mutant(
        "messages of partitions that are not fetched are taken",
        MEMBER,
        "if assigned is None or not assigned.fetching or offset < assigned.expected:",
        "if assigned is None or offset < assigned.expected:",
        MEMBERS,
    ),
    Mutant(
        "a partition in doubt keeps its position",
        MEMBER,
        "            each.committed = None\n",
        "            pass\n",
        MEMBERS,
    ),
    Mutant(
        "a partition in doubt is still fetched",
        MEMBER,
        "        self.drop(doubtful)\n",
        "",
        MEMBERS,
    ),
    Mutant(
        "a partition that came back is taken for the former one",
        MEMBER,
        "return self.held.get(partition.partition) is partition",
        "return partition.partition in self.held",
        MEMBERS,
    ),
    Mutant(
        "a partition that was revoked stays",
        MEMBER,
        "gone = [self.held.pop(Partition(each.topic, each.partition), None) for each in partitions]",
        "gone = [self.held.get(Partition(each.topic, each.partition)) for each in partitions]",
        MEMBERS,
    ),
    Mutant(
        "Kafka is told offsets of partitions that belong to others",
        MEMBER,
        "for partition, offset in offsets.items() if partition in self.held}",
        "for partition, offset in offsets.items()}",
        MEMBERS,
    ),
    Mutant(
        "Kafka does not hear of positions before a partition goes",
        MEMBER,
        "        self._commit_now()\n        gone",
        "        gone",
        MEMBERS,
    ),
    Mutant(
        "the position of before a partition was fetched anew counts",
        CLIENT,
        "if at >= 0 and at != self._former.get(partition)}",
        "if at >= 0}",
        MEMBERS,
    ),
    Mutant(
        "an error in the place of a committed offset is none",
        CLIENT,
        "                raise BrokerUnavailable(self._sentence(each.error, each.topic))\n        return {",
        "                continue\n        return {",
        MEMBERS,
    ),
)
