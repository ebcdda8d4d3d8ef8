"""What HTTP itself refuses, before or instead of a look at the store."""

from collections.abc import Mapping

import msgspec


class RefusalKind(msgspec.Struct, frozen=True):
    """One way to be refused: a stable word, the status, and what it means."""

    word: str
    status: int
    title: str


MALFORMED = RefusalKind("malformed", 400, "The body cannot be read as JSON.")
NO_TOKEN = RefusalKind("no-token", 401, "A valid token is needed.")
FORBIDDEN = RefusalKind("forbidden", 403, "The token's role does not include this.")
WRONG_ORIGIN = RefusalKind("wrong-origin", 403, "A page of another origin asks.")
HIDDEN_DATA = RefusalKind("data-hidden", 403, "The data of jobs is not shown.")
NO_PATH = RefusalKind("no-such-path", 404, "There is nothing at this path.")
WRONG_METHOD = RefusalKind("wrong-method", 405, "This path does not have this method.")
SLOW_BODY = RefusalKind("slow-body", 408, "The body did not arrive in time.")
LARGE_BODY = RefusalKind("body-too-large", 413, "The body has more bytes or jobs than are allowed.")
WRONG_TYPE = RefusalKind("wrong-content-type", 415, "The body is not of a type that is read here.")
WRONG_HOST = RefusalKind("wrong-host", 421, "The request is for another host.")
TOO_MANY_FAILURES = RefusalKind("too-many-failures", 429, "Too many requests of this address had a wrong token.")
BUSY = RefusalKind("busy", 429, "Too much is being read at once.")
UNEXPECTED = RefusalKind("internal-error", 500, "Something unexpected went wrong.")
NOT_READY = RefusalKind("not-ready", 503, "This process cannot do that now.")

REFUSALS = (
    MALFORMED,
    NO_TOKEN,
    FORBIDDEN,
    WRONG_ORIGIN,
    HIDDEN_DATA,
    NO_PATH,
    WRONG_METHOD,
    SLOW_BODY,
    LARGE_BODY,
    WRONG_TYPE,
    WRONG_HOST,
    TOO_MANY_FAILURES,
    BUSY,
    UNEXPECTED,
    NOT_READY,
)


class Refusal(Exception):
    """A request is refused for a reason of HTTP's own; the text says what to change."""

    def __init__(self, kind: RefusalKind, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.headers = headers or {}
