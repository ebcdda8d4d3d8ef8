"""The trace of a message: the header `traceparent` of the W3C, read and written."""

import re
from collections.abc import Sequence
from typing import Final

TRACE: Final = "traceparent"

_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_PARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?P<id>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_FIRST_VERSION: Final = b"00"

_SPAN: Final = 8
"""The bytes of a span's id."""


def trace_id(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """The trace that these headers continue; None if they have none, or not as the W3C specifies.

    Of several the last counts. Later versions may add fields after the known ones.
    """
    value = next((value for name, value in reversed(headers) if name == TRACE), None)
    found = _PARENT.match(value or b"")
    if value is None or found is None:
        return None
    more = value[found.end() :]
    if more and (value.startswith(_FIRST_VERSION) or not more.startswith(b"-")):
        return None
    return found["id"].decode()


def is_trace_id(text: str | None) -> bool:
    """Is it a valid trace id?"""
    return text is not None and _ID.fullmatch(text) is not None


def parent(key: bytes, attempt: int, request_id: str | None) -> bytes:
    """The header of a message that one attempt of a job makes: equal when a crash repeats the delivery.

    The trace is that of the request, if its id can be one. Jobs of one request then share it, so their spans differ by
    the random half of the job's id. Otherwise the job's id is the trace, and the attempt is the span.
    """
    if request_id is not None and is_trace_id(request_id):
        span = int.from_bytes(key[-_SPAN:], "big") ^ attempt
        return b"00-%b-%016x-01" % (request_id.encode(), span)
    return b"00-%b-%016x-01" % (key.hex().encode(), attempt)
