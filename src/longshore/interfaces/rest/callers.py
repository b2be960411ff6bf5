"""Who calls: the key of a request, what it allows, how often."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from longshore.core.keys import KeyRecord, Scope
from longshore.interfaces.rest.problems import Refused
from longshore.services.access import Access

_header = APIKeyHeader(name="x-api-key", scheme_name="key", auto_error=False)
_bearer = HTTPBearer(scheme_name="bearer", auto_error=False)
_HOW = "send a key as 'x-api-key: …' or 'Authorization: Bearer …'"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request that is allowed."""

    key: KeyRecord

    @property
    def tenant(self) -> str:
        """Whose work it is."""
        return self.key.tenant

    @property
    def by(self) -> str:
        """What they are called in histories."""
        return self.key.name


def allowed(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, if the key allows this."""

    async def caller(
        request: Request,
        header: Annotated[str | None, Security(_header)] = None,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
    ) -> Caller:
        access: Access = request.app.state.desk.access
        text = header or (bearer.credentials if bearer else None)
        record = await access.who(text) if text else None
        if record is None:
            why = "this key is not known or was revoked" if text else _HOW
            raise Refused(401, "no-key", why, headers={"WWW-Authenticate": "Bearer"})
        if (wait := access.wait_for(record)) is not None:
            seconds = str(math.ceil(wait.total_seconds()))
            detail = f"too many requests with this key; try again in {seconds} s"
            raise Refused(429, "too-many-requests", detail, headers={"Retry-After": seconds})
        if not record.allows(scope):
            detail = f"this needs a key with the scope '{scope.value}' or 'admin'"
            raise Refused(403, "not-allowed", detail)
        return Caller(record)

    return caller


async def _housekeeper(
    request: Request, caller: Annotated[Caller, Security(allowed(Scope.ADMIN))]
) -> Caller:
    access: Access = request.app.state.desk.access
    if not access.runs_the_house(caller.key):
        detail = (
            "this concerns all tenants: it needs a key with the scope 'admin' of the tenant that "
            "runs this installation"
        )
        raise Refused(403, "not-allowed", detail)
    return caller


Reader = Annotated[Caller, Security(allowed(Scope.READ))]
Submitter = Annotated[Caller, Security(allowed(Scope.SUBMIT))]
Operator = Annotated[Caller, Security(allowed(Scope.OPERATE))]
Admin = Annotated[Caller, Security(allowed(Scope.ADMIN))]
Housekeeper = Annotated[Caller, Security(_housekeeper)]
"""For what concerns all tenants: see ``Access.runs_the_house``."""
