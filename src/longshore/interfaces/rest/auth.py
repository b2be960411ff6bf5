"""Authentication: the key of a request, which operations it allows, and its rate limit."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Protocol, TypeVar

from fastapi import Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from longshore.core.api_keys import ApiScope
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.requests import check_query
from longshore.services.api_keys import ApiKeys, KeyExpired, TooManyFailedKeys
from longshore.services.app import Application, Caller
from longshore.settings import Settings

ItemT = TypeVar("ItemT")

_KEY_HEADER = APIKeyHeader(name="x-api-key", scheme_name="key", auto_error=False)
_BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)
_KEY_HINT = "send a key as 'x-api-key: …' or 'Authorization: Bearer …'"
# Many clients may follow events at once; output readers are woken by new output anyway.
_POLL_INTERVAL = timedelta(milliseconds=500)


# Less than the 5 s within which a stream ends after its key was revoked.
_KEY_CHECKED_EVERY_S = 4.0


class RestServices(Protocol):
    """What the API needs; ``wiring.services.Services`` has it."""

    @property
    def api_keys(self) -> ApiKeys: ...
    @property
    def settings(self) -> Settings: ...

    def application(self, caller: Caller | None = None, *, poll: timedelta) -> Application: ...


async def while_allowed(request: Request, items: AsyncIterator[ItemT]) -> AsyncIterator[ItemT]:
    """The items, while the key of the request is valid."""
    api_keys: ApiKeys = request.app.state.services.api_keys
    now = asyncio.get_running_loop().time
    check_at = now() + _KEY_CHECKED_EVERY_S
    following: asyncio.Future[ItemT] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(items))
            await asyncio.wait({following}, timeout=max(check_at - now(), 0))
            if now() >= check_at:
                check_at = now() + _KEY_CHECKED_EVERY_S
                if await api_keys.authenticate(request.state.api_key) is None:
                    return
            if following.done():
                item, following = following, None
                yield item.result()
    except (StopAsyncIteration, KeyExpired):
        return
    finally:
        if following is not None:
            following.cancel()


def require_scope(
    scope: ApiScope, *, all_tenants: bool = False
) -> Callable[..., Awaitable[Application]]:
    """A dependency: the operations of the caller, if the key has this scope.

    Args:
        all_tenants: The operation concerns all tenants: the key must belong to the tenant that
            operates the installation.
    """

    async def authenticate(
        request: Request,
        header: Annotated[str | None, Security(_KEY_HEADER)] = None,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)] = None,
    ) -> Application:
        services: RestServices = request.app.state.services
        api_keys = services.api_keys
        text = header or (bearer.credentials if bearer else None)
        record, detail = None, "this key is not known or was revoked" if text else _KEY_HINT
        try:
            address = request.client.host if request.client else ""
            record = await api_keys.authenticate_from(address, text) if text else None
        except TooManyFailedKeys as failed:
            seconds = str(math.ceil(failed.wait.total_seconds()))
            detail = f"too many unknown keys from this address; try again in {seconds} s"
            again = {"Retry-After": seconds}
            raise ApiProblem(429, "too-many-requests", detail, headers=again) from None
        except KeyExpired as expired:
            detail = f"{expired}; create another with `longshore keys create`"
        request.state.api_key = text
        if record is None:
            raise ApiProblem(401, "no-key", detail, headers={"WWW-Authenticate": "Bearer"})
        request.state.key_id, request.state.tenant = record.id, record.tenant
        if (wait := api_keys.rate_limit(record)) is not None:
            seconds = str(math.ceil(wait.total_seconds()))
            detail = f"too many requests with this key; try again in {seconds} s"
            raise ApiProblem(429, "too-many-requests", detail, headers={"Retry-After": seconds})
        if not record.allows(scope):
            scopes = " or ".join(f"'{name}'" for name in dict.fromkeys((scope, ApiScope.ADMIN)))
            raise ApiProblem(403, "not-allowed", f"this needs a key with the scope {scopes}")
        if all_tenants and not api_keys.is_operator_admin(record):
            detail = (
                "this concerns all tenants: it needs a key with the scope 'admin' of the tenant "
                "that runs this installation"
            )
            raise ApiProblem(403, "not-allowed", detail)
        await check_query(request)
        caller = Caller(
            tenant=record.tenant,
            name=record.name,
            is_admin=record.allows(ApiScope.ADMIN),
            is_operator=api_keys.is_operator(record),
            may_define=record.allows(ApiScope.OPERATE),
            limits=replace(record.limits, builtins=services.settings.api.builtin_definitions),
        )
        return services.application(caller, poll=_POLL_INTERVAL)

    return authenticate


async def take_stream(request: Request) -> AsyncIterator[None]:
    """A dependency: one of the streams of the key of an authenticated request, until it ends."""
    streams: Counter[str] = request.app.state.streams
    key_id: str = request.state.key_id
    limit: int = request.app.state.streams_per_key
    if streams[key_id] >= limit:
        hint = "close one of them, or raise the setting api.streams_per_key of the server"
        detail = f"this key has {limit} open streams; {hint}"
        raise ApiProblem(429, "too-many-requests", detail)
    streams[key_id] += 1
    try:
        yield
    finally:
        streams[key_id] -= 1


Reader = Annotated[Application, Security(require_scope(ApiScope.READ))]
Submitter = Annotated[Application, Security(require_scope(ApiScope.SUBMIT))]
Operator = Annotated[Application, Security(require_scope(ApiScope.OPERATE))]
Admin = Annotated[Application, Security(require_scope(ApiScope.ADMIN))]
OperatorAdmin = Annotated[Application, Security(require_scope(ApiScope.ADMIN, all_tenants=True))]
