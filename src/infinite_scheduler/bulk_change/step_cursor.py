"""Where a step of a bulk change ended: the cursor with which the caller asks for the next one."""

import base64
import binascii
import hashlib
from typing import Any, Final, Self

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import MAX_DUE_MS

SUM_BYTES: Final = 8
_decode: Final = msgspec.msgpack.Decoder(tuple[int, str | None]).decode


class StepCursor(msgspec.Struct, frozen=True):
    """When the first step was made, which fixes what is meant by "now", and where the next one begins."""

    started_ms: int
    place: str | None = None  # the cursor of the list; None: at its beginning

    def text(self, change: Any) -> str:
        """The cursor of this change: a description of all that must stay the same from step to step."""
        body = msgspec.msgpack.encode((self.started_ms, self.place))
        return base64.b64encode(_sum(body, change) + body, b"-_").decode()

    @classmethod
    def parse(cls, text: str, change: Any) -> Self:
        """Read a cursor; raises InvalidRequest if it is not one of this change."""
        started_ms, place = -1, None
        try:
            data = base64.b64decode(text.encode("ascii"), b"-_", validate=True)
            body = data[SUM_BYTES:]
            if data[:SUM_BYTES] == _sum(body, change):
                started_ms, place = _decode(body)
        except (binascii.Error, UnicodeError, msgspec.MsgspecError):
            pass
        if not 0 <= started_ms <= MAX_DUE_MS:
            raise InvalidRequest(
                f"cursor {text!a:.100} is not one of this change: use it with the same filter, verb and time as the "
                "call that it came from, or leave it out to begin anew"
            )
        return cls(started_ms, place)


def _sum(body: bytes, change: Any) -> bytes:
    described = msgspec.json.encode(change, enc_hook=str, order="deterministic")
    return hashlib.blake2b(described + body, digest_size=SUM_BYTES).digest()
