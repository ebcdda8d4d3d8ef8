"""The dead letters of a store elsewhere."""

from collections.abc import Collection, Mapping

import msgspec

from infinite_scheduler.errors import UnknownLetter
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.abilities import Abilities
from infinite_scheduler.store.http.http_session import HttpRequest, HttpSession, path
from infinite_scheduler.store.http.wire import (
    AcceptedJob,
    ShownLetter,
    ShownLetters,
    ShownStates,
    moment_text,
    sent_job,
)
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, Letters, LetterState
from infinite_scheduler.store.letters_only import LettersOnly

MOST_LETTERS = 1000
MOST_BYTES = 8 << 20
"""What one page may have: the server takes no larger numbers."""

_letters = msgspec.json.Decoder(ShownLetters)
_letter = msgspec.json.Decoder(ShownLetter)
_accepted = msgspec.json.Decoder(AcceptedJob)
_states = msgspec.json.Decoder(ShownStates)


class HttpInbox(LettersOnly):
    """Lists, replays and drops dead letters; topics are read by nodes, where the store is."""

    def __init__(self, abilities: Abilities, session: HttpSession) -> None:
        super().__init__(abilities)
        self._session = session

    async def letters(self, query: LetterQuery) -> Letters:
        said = {
            "topic": query.topic,
            "group": query.group,
            "state": query.state,
            "before": None if query.before_ms is None else moment_text(query.before_ms),
            "oldest": "true" if query.oldest_first else None,
            "limit": str(min(query.limit, MOST_LETTERS)),
            "room": str(min(query.room, MOST_BYTES)),
            "cursor": query.cursor,
        }
        asked = {name: value for name, value in said.items() if value is not None}
        found = await self._session.ask(HttpRequest(method="GET", path=path("dlq-messages"), query=asked), _letters)
        return Letters(letters=[one.letter() for one in found.letters], cursor=found.cursor)

    async def letter(self, letter_id: str) -> DeadLetter | None:
        try:
            found = await self._session.ask(HttpRequest(method="GET", path=path("dlq", letter_id)), _letter)
        except UnknownLetter:
            return None
        return found.letter()

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        body = msgspec.json.encode(sent_job(spec))
        request = HttpRequest(method="POST", path=path("dlq", letter_id, "job"), body=body)
        return (await self._session.ask(request, _accepted)).accepted()

    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        ids, found = list(letter_ids), dict[str, LetterState]()
        for start in range(0, len(ids), MOST_LETTERS):
            body = msgspec.json.encode({"ids": ids[start : start + MOST_LETTERS]})
            found |= (
                await self._session.ask(HttpRequest(method="POST", path=path("dlq-drop"), body=body), _states)
            ).states
        return found
