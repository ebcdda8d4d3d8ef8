"""Operations for pages: log in with a token, and log out. Programs send their token with each request instead."""

from typing import Annotated

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.operation import ApiRequest, Operation, Reply, Subject
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.times import IsoTime, iso


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who wants to come in."""

    token: str


class PageHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser says of the page."""

    origin: Annotated[str | None, Meta(description="The origin of the page: that of this server.")] = msgspec.field(
        name="Origin", default=None
    )


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session that has begun: the name and the role of its token, and when it ends."""

    name: str
    role: Role
    ends_at: IsoTime


class LoggedOut(msgspec.Struct, frozen=True, kw_only=True):
    """There is no session any more."""

    logged_out: bool = True


async def log_in(api: ApiContext, request: ApiRequest) -> Reply:
    """Begin a session: the answer sets a cookie."""
    asked: Login = request.body
    page: PageHeaders = request.headers
    token = await api.access.log_in(asked.token, request.actor.address)
    cookies = api.access.cookies
    ends_ms = cookies.end_of_new()
    header = cookies.header(token, ends_ms, secure=(page.origin or "").startswith("https://"))
    return Reply(
        value=SessionView(name=token.name, role=token.role, ends_at=iso(ends_ms)), headers={"Set-Cookie": header}
    )


async def log_out(api: ApiContext, request: ApiRequest) -> Reply:
    """End a session: the answer deletes the cookie."""
    del request
    return Reply(value=LoggedOut(), headers={"Set-Cookie": api.access.cookies.header_of_none()})


ACCESS_OPERATIONS = (
    Operation(
        name="logIn",
        subject=Subject.ACCESS,
        method="POST",
        path="/login",
        summary=(
            "Log in, for a page of this server: a cookie stands for the token until it ends (http.session) or the "
            "token is revoked. Programs send their token with each request instead."
        ),
        role=None,
        by_page=True,
        call=log_in,
        headers=PageHeaders,
        body=Login,
        answer=SessionView,
        errors=(StoreUnavailable,),
    ),
    Operation(
        name="logOut",
        subject=Subject.ACCESS,
        method="POST",
        path="/logout",
        summary="Log out: the browser forgets its cookie.",
        role=None,
        by_page=True,
        call=log_out,
        optional_body=True,
        answer=LoggedOut,
    ),
)
