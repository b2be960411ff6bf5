"""API keys: which tenant a key belongs to, what it allows, and how often it may be used.

A key is shown once, when it is created; only its hash is stored. Each call checks whether the key
was revoked, so that a revocation takes effect at once.

Every change of a key has an event, even if an error occurs between the two writes. The event of a
new key is stored before the key: at worst, the history names a key that was never usable. A
revocation is stored before its event, because it must not wait; a caller that gets no answer
repeats the request, which stores the event.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from longshore.core.api_keys import (
    NO_LIMITS,
    SECRET_BYTES,
    ApiScope,
    KeyRecord,
    Rate,
    WorkLimits,
    count_call,
    hash_key,
    key_matches,
    make_key,
)
from longshore.core.events.event import EventContext
from longshore.core.events.types import OperatorActed
from longshore.core.ids import is_name
from longshore.errors import AlreadyExists, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.services.reads import iter_history

T = TypeVar("T")

KEYS_ENTITY_ID = "keys"
"""The entity whose events record changes of keys."""

_CREATED = "key.created"
_REVOKED = "key.revoked"
_ID_BYTES = 6
_NAME_CHARACTERS = 100
_KEY_LIMIT_CHARACTERS = 200
_CALLER_LIMIT = 10_000
_SEVERAL = 2
_MAX_LIFETIME = timedelta(days=36_500)
_FAILURE_RATE = Rate(per_second=1, burst=20)  # of one address
_FAILURES_LOGGED_EVERY = timedelta(minutes=1)
_IPV6_NETWORK_BITS = 64

logger = logging.getLogger(__name__)


class KeyExpired(Exception):
    """A key may no longer be used, because its time is over."""


@dataclass(eq=False)
class TooManyFailedKeys(Exception):
    """An address sent too many unknown keys; another can be tried after ``wait``."""

    wait: timedelta


@dataclass(slots=True, kw_only=True)
class ApiKeys:
    """Creates, finds and revokes keys."""

    backend: Backend
    app: str
    rate: Rate
    random_bytes: Callable[[int], bytes]
    _free_at: dict[str, timedelta] = field(default_factory=dict)  # see ``count_call``
    _operator_tenant: str | None = None  # operates the installation
    _failures: dict[str, timedelta] = field(default_factory=dict)  # by network, as ``_free_at``
    _seen: dict[str, None] = field(default_factory=dict)  # hashes of keys that were valid here
    _failures_unlogged: int = 0
    _log_failures_at: timedelta = timedelta(0)

    async def create(
        self,
        tenant: str,
        *,
        name: str,
        scopes: Collection[ApiScope],
        by: str,
        expires: timedelta | None = None,
        limits: WorkLimits = NO_LIMITS,
    ) -> tuple[KeyRecord, str]:
        """Create a key. Returns its record and its text, which is not stored.

        Args:
            expires: After this time the key is refused; None: never.
            limits: Which tasks the key may start.

        Raises:
            UsageError: the name is empty or too long, there is no scope, the time is too long, or
                the limits are not valid.
        """
        if not name.isprintable() or not 0 < len(name) <= _NAME_CHARACTERS:
            raise UsageError(f"the name of a key has 1 to {_NAME_CHARACTERS} printable characters")
        if not scopes:
            raise UsageError(f"a key needs a scope: {', '.join(scope.value for scope in ApiScope)}")
        if limits and ApiScope.ADMIN in scopes:
            raise UsageError(
                "a key with the scope 'admin' can create other keys, so it cannot be limited to"
                " definitions or queues; leave out the scope or the limits"
            )
        for kind, names in (("definitions", limits.definitions), ("queues", limits.queues)):
            if names is not None and (not names or not all(map(is_name, names))):
                raise UsageError(f"{kind}: expected one or more names, not {sorted(names)}")
        text = make_key(self.random_bytes(SECRET_BYTES))
        record = replace(self._record(text, tenant, name=name, scopes=scopes), limits=limits)
        if expires is not None:
            if not timedelta() < expires <= _MAX_LIFETIME:
                raise UsageError(f"a key expires after at most {_MAX_LIFETIME.days} days, or never")
            record = replace(record, expires_at=record.created_at + expires)
        await self._emit(tenant, by, _CREATED, record)
        await self.backend.keys.add(record)
        return record, text

    def _record(
        self, text: str, tenant: str, *, name: str, scopes: Collection[ApiScope]
    ) -> KeyRecord:
        return KeyRecord(
            id=f"key-{self.random_bytes(_ID_BYTES).hex()}",
            tenant=tenant,
            name=name,
            scopes=frozenset(scopes),
            hash=hash_key(text),
            created_at=self.backend.clock.now(),
        )

    async def ensure(self, text: str, tenant: str, *, name: str) -> None:
        """Ensure that the machine's own key allows everything, unless it was revoked.

        Its tenant operates the installation; see ``is_operator_admin``.
        """
        record = await self.backend.keys.find(hash_key(text))
        if record is None:
            record = self._record(text, tenant, name=name, scopes=(ApiScope.ADMIN,))
            try:
                await self.backend.keys.add(record)
            except AlreadyExists:
                # Another process stored it first, perhaps for another tenant.
                record = await self.backend.keys.find(hash_key(text))
        self.set_operator_tenant(record.tenant if record else tenant)

    def set_operator_tenant(self, tenant: str) -> None:
        """Let the administrators of this tenant do what concerns all tenants."""
        self._operator_tenant = tenant

    def is_operator_admin(self, record: KeyRecord) -> bool:
        """Whether the key may do what concerns all tenants, such as pausing a queue.

        That is allowed to administrator keys of the tenant of the machine's own key. Administrators
        of other tenants manage their own tenant only. In an installation without such a key no key
        may, unless an operator tenant was set.
        """
        return self.is_operator(record) and record.allows(ApiScope.ADMIN)

    def is_operator(self, record: KeyRecord) -> bool:
        """Whether the key may see what belongs to no tenant: it is the operator tenant's."""
        return record.tenant == self._operator_tenant

    async def list(self, tenant: str) -> list[KeyRecord]:
        """Returns a tenant's keys, oldest first, including revoked ones."""
        return await self.backend.keys.list(tenant)

    async def shared_workers_warning(self, new_tenant: str | None = None) -> str | None:
        """What operators must know if several tenants have keys; None if not.

        Args:
            new_tenant: Gets a key; if it has one already, there is no warning.
        """
        tenants = {*await self.backend.keys.tenants()}
        if new_tenant is not None:
            if new_tenant in tenants:
                return None
            tenants.add(new_tenant)
        if len(tenants) < _SEVERAL:
            return None
        return (
            f"{len(tenants)} tenants have keys; their tasks run as one user, who can read the data"
            " of all of them, unless each has workers of its own: see docs/explain/threat-model.md"
        )

    async def revoke(self, tenant: str, key_id: str, *, by: str) -> KeyRecord:
        """Revoke a key; a key that was revoked before stays revoked.

        Raises:
            NotFound: the tenant has no such key.
        """
        changed = await self.backend.keys.revoke(tenant, key_id, now=self.backend.clock.now())
        record = next((item for item in await self.list(tenant) if item.id == key_id), None)
        if record is None:
            raise NotFound("key", key_id)
        if changed or not await self._was_emitted(tenant, _REVOKED, record):
            await self._emit(tenant, by, _REVOKED, record)
        return record

    async def authenticate(self, text: str) -> KeyRecord | None:
        """Returns the record of a valid key; None for any other text.

        Raises:
            KeyExpired: it was valid.
        """
        if len(text) > _KEY_LIMIT_CHARACTERS or not text.isascii():
            return None
        record = await self.backend.keys.find(hash_key(text))
        if record is None or record.revoked_at is not None or not key_matches(text, record):
            return None
        if record.expires_at is not None and record.expires_at <= self.backend.clock.now():
            raise KeyExpired(f"this key expired at {record.expires_at:%Y-%m-%d %H:%M} UTC")
        return record

    async def authenticate_from(self, address: str, text: str) -> KeyRecord | None:
        """Like ``authenticate``, for a caller at an address that may try few unknown keys.

        Keys that were valid in this process are exempt: clients behind one proxy share its address.

        Raises:
            KeyExpired: the key was valid.
            TooManyFailedKeys: the address sent too many unknown keys; this one was not looked up.
        """
        now, network, digest = self.backend.clock.elapsed(), _network_of(address), hash_key(text)
        _, wait = count_call(self._failures.get(network, now), _FAILURE_RATE, now=now)
        if wait is not None and digest not in self._seen:
            self._log_failure(network, now)
            raise TooManyFailedKeys(wait)
        try:
            record = await self.authenticate(text)
        except KeyExpired:
            self._count_failure(network, digest, now)
            raise
        if record is None:
            self._count_failure(network, digest, now)
        else:
            self._seen.pop(digest, None)
            _put(self._seen, digest, None)
        return record

    def _count_failure(self, network: str, digest: str, now: timedelta) -> None:
        free_at = self._failures.pop(network, now)
        _put(self._failures, network, count_call(free_at, _FAILURE_RATE, now=now)[0])
        self._seen.pop(digest, None)
        self._log_failure(network, now)

    def _log_failure(self, network: str, now: timedelta) -> None:
        self._failures_unlogged += 1
        if now >= self._log_failures_at:
            fields = {"address": network, "failures": self._failures_unlogged}
            logger.warning("api.keys_refused", extra=fields)
            self._failures_unlogged = 0
            self._log_failures_at = now + _FAILURES_LOGGED_EVERY

    def rate_limit(self, record: KeyRecord) -> timedelta | None:
        """Count a call. Returns how long to wait if it exceeds the rate, else None."""
        now = self.backend.clock.elapsed()
        if len(self._free_at) >= _CALLER_LIMIT:
            self._free_at = {key_id: at for key_id, at in self._free_at.items() if at > now}
        before = self._free_at.get(record.id, now)
        self._free_at[record.id], wait = count_call(before, self.rate, now=now)
        return wait

    async def _was_emitted(self, tenant: str, action: str, record: KeyRecord) -> bool:
        entity = f"{OperatorActed.ENTITY.value}#{KEYS_ENTITY_ID}"
        async for event in iter_history(self.backend.events, tenant, entity):
            match event.body:
                case OperatorActed(action=emitted, subject=record.id) if emitted == action:
                    return True
        return False

    async def _emit(self, tenant: str, by: str, action: str, record: KeyRecord) -> None:
        scopes = ", ".join(sorted(scope.value for scope in record.scopes))
        limits = f"; {record.limits}" if record.limits else ""
        await self.backend.events.append(
            tenant=tenant,
            app=self.app,
            entity_id=KEYS_ENTITY_ID,
            body=OperatorActed(
                by=by,
                action=action,
                subject=record.id,
                detail=f"{record.name} ({scopes}{limits})",
            ),
            context=EventContext(origin="operator", source="user"),
            now=self.backend.clock.now(),
        )


def _network_of(address: str) -> str:
    """What an address is counted as: a host has all addresses of a network of IPv6."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if ip.version == 4 or ip.ipv4_mapped:
        return str(ip)
    return str(ipaddress.ip_network((ip.packed, _IPV6_NETWORK_BITS), strict=False))


def _put(values: dict[str, T], key: str, value: T) -> None:
    """Add a value; the oldest ones make room."""
    values[key] = value
    if len(values) > _CALLER_LIMIT:
        del values[next(iter(values))]
