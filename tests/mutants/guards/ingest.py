"""Messages become jobs exactly once: positions, dead letters, calls that share a transaction."""

from tests.mutants.mutant import Mutant

INBOX = "store/sql/inbox.py"
INBOX_ROWS = "store/sql/inbox_rows.py"
TAKER = "ingest/taker.py"
POSITIONS = "ingest/positions.py"
START = "ingest/start_offset.py"
BATCH = "ingest/message_batch.py"
DOOR = "ingest/door.py"
LETTERS = "ingest/dead_letters.py"
INTAKE = "ingest/intake.py"

SCENES = ("tests/simulation/test_inbox.py", "-k", "promise_holds")
SERVERS = ("tests/servers/test_inbox.py",)
TAKES = ("tests/unit/test_taker.py",)
FINDS = ("tests/unit/test_positions.py",)
STARTS = ("tests/unit/test_start_offset.py",)
BATCHES = ("tests/unit/test_message_batch.py",)
AHEAD = ("tests/unit/test_door_ahead.py",)
SENDER = ("tests/unit/test_dead_letter_sender.py",)
CALLS = ("tests/unit/test_intake.py",)
DOORS = ("tests/kafka/test_door.py",)


def inbox(promise: str) -> tuple[str, ...]:
    """A part of the contract of an inbox."""
    return ("tests/contract/test_store_contract.py::TestSqliteInline", "-k", promise)


MUTANTS = (
    Mutant(
        "jobs are accepted although the position is another",
        INBOX,
        "        if not tx.move_position(move, now_ms):\n",
        "        if not tx.move_position(move, now_ms) and False:\n",
        inbox("position or place or offset or moved"),
    ),
    Mutant(
        "a position is moved wherever it is",
        INBOX_ROWS,
        'AND partition_number = ? AND next_offset = ?"',
        'AND partition_number = ? AND (next_offset = ? OR 1=1)"',
        inbox("position or place or offset or moved"),
    ),
    Mutant(
        "a position that exists is taken for a new one",
        INBOX_ROWS,
        "return self._dialect.insert_many(self._cursor, OFFSETS_TABLE, OFFSET, [row]) == 1",
        "return self._dialect.insert_many(self._cursor, OFFSETS_TABLE, OFFSET, [row]) <= 1",
        inbox("position or place or offset or moved"),
    ),
    Mutant(
        "positions move after the jobs are in",
        INBOX,
        "    move_positions(tx, moves, now_ms)\n"
        "    inserted = anybody.insert(tx, chunks, now_ms, strict=False) if chunks else NOTHING\n",
        "    inserted = anybody.insert(tx, chunks, now_ms, strict=False) if chunks else NOTHING\n"
        "    move_positions(tx, moves, now_ms)\n",
        (*SERVERS, *SCENES),
        survives="both are one transaction, so the order is against deadlocks only; a database ends one, and the "
        "transaction is tried again",
    ),
    Mutant(
        "positions do not move with the jobs",
        INBOX,
        "    move_positions(tx, moves, now_ms)\n    inserted",
        "    inserted",
        SCENES,
    ),
    Mutant(
        "a known topic id is forgotten",
        INBOX_ROWS,
        "topic_id = COALESCE(?, topic_id)",
        "topic_id = ?",
        inbox("remembers_which_topic"),
    ),
    Mutant(
        "a letter that is replayed twice becomes two jobs",
        INBOX,
        "among=REPLAYABLE):\n        return _replayed(tx, key), NOTHING\n",
        "among=frozenset(LetterState)):\n        return _replayed(tx, key), NOTHING\n",
        inbox("replay"),
    ),
    Mutant(
        "a letter that became a job can be dropped",
        INBOX,
        "DROPPABLE: Final = frozenset(LetterState) - {LetterState.REPLAYED, LetterState.DROPPED}\n",
        "DROPPABLE: Final = frozenset(LetterState)\n",
        inbox("drop"),
    ),
    Mutant(
        "a letter that was replayed can be marked as sent",
        INBOX,
        "tx.mark_letters(keys, state, readable(note), among=unsent)",
        "tx.mark_letters(keys, state, readable(note), among=frozenset(LetterState))",
        inbox("letter or mark"),
    ),
    Mutant(
        "a letter that is too large for the database blocks those behind it",
        INBOX,
        "tx.insert_letters([fitting(letter, room) for letter in letters])",
        "tx.insert_letters(letters)",
        (*SERVERS, "-k", "too_large"),
    ),
    Mutant(
        "a repeated key with another content refuses the whole batch",
        INBOX,
        "inserted = anybody.insert(tx, chunks, now_ms, strict=False) if chunks else NOTHING",
        "inserted = anybody.insert(tx, chunks, now_ms, strict=True) if chunks else NOTHING",
        inbox("message or inbox or key"),
    ),
    # Taker
    Mutant(
        "a batch in doubt is not read again",
        TAKER,
        "            await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))\n"
        "            raise\n",
        "            raise\n",
        (*TAKES, *AHEAD),
    ),
    Mutant(
        "a consumer that was overtaken reads on",
        TAKER,
        "        await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))\n"
        "        self._tell(events.PositionsOvertaken",
        "        self._tell(events.PositionsOvertaken",
        TAKES,
    ),
    Mutant(
        "an error of the store makes dead letters",
        TAKER,
        "            except (StoreUnavailable, StoreBroken):\n                raise\n",
        "",
        TAKES,
    ),
    Mutant(
        "the message that fails takes its neighbours along",
        TAKER,
        "        elif len(batch) > 1:\n"
        "            for half in batch.halves():\n"
        "                await self._take(half, meanwhile)\n",
        "",
        TAKES,
    ),
    Mutant(
        "an error that is not the message's is taken for it",
        TAKER,
        "        elif batch.refused:\n            raise StoreBroken(",
        "        elif False:\n            raise StoreBroken(",
        TAKES,
    ),
    Mutant(
        "a message is given up at its first error",
        TAKER,
        "elif batch.tries < self._config.max_retries:",
        "elif False:",
        TAKES,
    ),
    Mutant(
        "a door that stops makes dead letters of what it could not check",
        TAKER,
        "        if not self._thread.stopping:  # else they are left to the next reader of the partition\n",
        "        if True:\n",
        TAKES,
    ),
    Mutant(
        "a door that stops goes on searching for the message that fails",
        TAKER,
        "        if self._thread.stopping:\n"
        "            await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))\n"
        "        elif",
        "        if False:\n"
        "            await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))\n"
        "        elif",
        TAKES,
    ),
    Mutant(
        "what is stored is not where reading goes on",
        TAKER,
        "            assigned.committed = position\n",
        "            pass\n",
        (*TAKES, *AHEAD),
    ),
    Mutant(
        "one unknown app refuses the jobs of all others",
        TAKER,
        "                if not batch.refuse_apps_but(error.known):\n",
        "                if True:\n",
        TAKES,
    ),
    # Batches
    Mutant(
        "messages of partitions that are gone are taken",
        BATCH,
        "if not consumer.holds(assigned) or assigned.committed is None",
        "if assigned.committed is None",
        BATCHES,
    ),
    Mutant(
        "messages of partitions in doubt are taken",
        BATCH,
        "if not consumer.holds(assigned) or assigned.committed is None",
        "if not consumer.holds(assigned)",
        BATCHES,
    ),
    Mutant(
        "a message that is tried again is overtaken by those behind it",
        BATCH,
        "                closed.add(assigned)\n",
        "                pass\n",
        BATCHES,
    ),
    Mutant(
        "whatever a check raises ends the door",
        BATCH,
        "    except BaseException as raised:  # noqa: BLE001 - a handler's check",
        "    except ZeroDivisionError as raised:  # noqa: BLE001 - a handler's check",
        BATCHES,
    ),
    # Positions
    Mutant(
        "reading begins before the position is durable",
        POSITIONS,
        "                await self._thread.wait_for(self._inbox.reset(moves))\n"
        "            except PositionsMoved:\n"
        "                return  # another",
        "                pass\n            except PositionsMoved:\n                return  # another",
        FINDS,
    ),
    Mutant(
        "another node that was faster is not noticed",
        POSITIONS,
        "                return  # another node was faster: look again\n",
        "                pass\n",
        FINDS,
    ),
    Mutant(
        "a position that an operator has set has no effect",
        POSITIONS,
        "        if moved:\n            await self._overtaken(moved)\n",
        "",
        FINDS,
    ),
    Mutant(
        "a consumer that is overtaken at the end of a partition goes on",
        POSITIONS,
        "            await self._overtaken(list(rests))\n            return\n",
        "            return\n",
        FINDS,
    ),
    Mutant(
        "Kafka's offset counts before the store's position",
        START,
        "    elif position is not None:\n        offset = position.next\n",
        "    elif position is not None:\n"
        "        offset = position.next if facts.committed is None else facts.committed.offset\n",
        STARTS,
    ),
    Mutant(
        "a topic that was made anew is read from the old position",
        START,
        "        and position.topic_id != facts.topic_id\n",
        "        and False\n",
        STARTS,
    ),
    Mutant(
        "a partition that was added later is read from its end",
        START,
        "offset = bounds[0] if reset == EARLIEST or facts.is_known else bounds[1]",
        "offset = bounds[0] if reset == EARLIEST else bounds[1]",
        STARTS,
    ),
    Mutant(
        "a topic that has lost its newest messages is read from its beginning",
        START,
        "offset = min(max(bounds[0], facts.resume or 0), bounds[1]) if lost else bounds[0]",
        "offset = bounds[0]",
        STARTS,
    ),
    # Door
    Mutant(
        "a batch behind one that failed is stored",
        DOOR,
        "        except BaseException:\n"
        "            self._in_doubt = True  # what was gathered after it was not stored either\n"
        "            raise\n",
        "        except BaseException:\n            raise\n",
        AHEAD,
    ),
    Mutant(
        "positions are not read again after a store outage",
        DOOR,
        "        self._in_doubt = True  # so that the positions are read before reading goes on\n",
        "",
        (*DOORS, "-k", "TestStore or lost_answer or wait or away"),
    ),
    Mutant(
        "a door in doubt reads on",
        DOOR,
        "            await self._thread.call(self._consumer.forget_all)\n",
        "            pass\n",
        (*DOORS, "-k", "behind_a_part or begins_again or lost_answer"),
    ),
    # Dead letters
    Mutant(
        "a letter that was sent is sent again while the store is away",
        LETTERS,
        "        await self._write_down(queue)\n        queue.drop([",
        "        queue.drop([",
        SENDER,
    ),
    Mutant(
        "a letter that was dropped while its topic was away is sent",
        LETTERS,
        "        await self._forget_unwanted(queue)\n",
        "",
        SENDER,
    ),
    Mutant(
        "a letter that comes while the store is asked for others is forgotten",
        LETTERS,
        "for key in asked if",
        "for key in queue.letters if",
        SENDER,
    ),
    Mutant(
        "two nodes send the same letter",
        LETTERS,
        "return LEFT_MS <= waited_ms < LOST_MS and not self._reads(letter.source.partition)",
        "return False",
        SENDER,
    ),
    Mutant(
        "a letter of a partition that no node reads is never sent",
        LETTERS,
        "return LEFT_MS <= waited_ms < LOST_MS and not",
        "return LEFT_MS <= waited_ms and not",
        SENDER,
    ),
    Mutant(
        "a part of a message is sent for the whole",
        LETTERS,
        "        return [letter for letter in letters if not letter.cut_bytes]\n",
        "        return letters\n",
        SENDER,
    ),
    Mutant(
        "a refusal that can be put right refuses letters for good",
        LETTERS,
        "return error is not None and not error.retryable and error.code not in _NOT_ITS_FAULT",
        "return error is not None and not error.retryable",
        SENDER,
    ),
    Mutant(
        "letters that were refused together are all refused",
        LETTERS,
        "            if len(letters) > 1:\n                ends |= await self._deliver([letter])\n",
        "",
        SENDER,
    ),
    # Intake
    Mutant(
        "a caller is answered before the commit",
        INTAKE,
        "            accepted = await self._store.add([spec for call in calls for spec in call.specs])\n",
        "            adding = asyncio.ensure_future(self._store.add([spec for call in calls for spec in call.specs]))\n"
        "            accepted = [Accepted(bytes(16), 0) for call in calls for _ in call.specs]\n"
        "            await asyncio.sleep(0)\n            del adding\n",
        CALLS,
    ),
    Mutant(
        "a refused call refuses those that share its transaction",
        INTAKE,
        "            if len(calls) == 1:\n",
        "            if True:\n",
        CALLS,
    ),
    Mutant(
        "callers get each other's answers",
        INTAKE,
        "            start += len(call.specs)\n",
        "",
        CALLS,
    ),
    Mutant(
        "a close does not wait for what has come in",
        INTAKE,
        "            await asyncio.wait([self._task])\n",
        "            self._task.cancel()\n",
        CALLS,
    ),
    Mutant(
        "a job is accepted after the close has begun",
        INTAKE,
        "        if self._closed:\n            raise",
        "        if False:\n            raise",
        CALLS,
    ),
)
