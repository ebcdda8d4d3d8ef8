"""Where a page of a list of jobs ended: the cursor, opaque to all but the store that made it."""

import base64
import binascii
import hashlib
from typing import Final, Self

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.store.looking import Query

PLACE_BYTES: Final = 16
TIME_BYTES: Final = 6
SUM_BYTES: Final = 8


class Bookmark(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a list that was being read, and the place in it at which the next page begins."""

    part: int
    place: bytes
    now_ms: int  # when the first page was read: what was still to come then is another part

    @classmethod
    def parse(cls, cursor: str, query: Query) -> Self:
        """Read a cursor; raises InvalidRequest if it is not one of this list."""
        try:
            data = base64.b64decode(cursor.encode("ascii"), b"-_", validate=True)
        except (binascii.Error, UnicodeError):
            data = b""
        body, checksum = data[:-SUM_BYTES], data[-SUM_BYTES:]
        if len(body) != 1 + PLACE_BYTES + TIME_BYTES or checksum != _sum(body, query):
            raise InvalidRequest(
                f"cursor {cursor!r} is not one of this list: use it with the same app, filters and order as the page "
                "that it came from, or leave it out to begin at the first page"
            )
        now_ms = int.from_bytes(body[1 + PLACE_BYTES :], "big")
        return cls(part=body[0], place=body[1 : 1 + PLACE_BYTES], now_ms=now_ms)

    def cursor(self, query: Query) -> str:
        """The cursor of the next page of this list."""
        body = bytes([self.part]) + self.place + self.now_ms.to_bytes(TIME_BYTES, "big")
        return base64.b64encode(body + _sum(body, query), b"-_").decode()


def _sum(body: bytes, query: Query) -> bytes:
    """A checksum over a bookmark and the list it is for. The range may differ: "an hour ago" moves on."""
    of = (
        query.app, query.status, query.tag, query.job_name, query.group, query.request_id, query.idempotency_key,
        query.error, query.newest_first,
    )  # fmt: skip
    return hashlib.blake2b(msgspec.json.encode(of) + body, digest_size=SUM_BYTES).digest()
