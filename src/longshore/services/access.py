"""Access: who a key belongs to, what it allows, how often it may be used.

A key is shown once, when it is made; only its hash is kept. Whether it was revoked is asked at
every call, so that a revocation works at once.

What is done to keys is told as an event, also when something breaks between the two writes. A key
is told of before it can be used: at worst history names one that never came to be. A revocation
comes before its event, because it must not wait for anything; whoever gets no answer asks again,
and then it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta

from longshore.core.events.event import Context
from longshore.core.events.types import OperatorActed
from longshore.core.keys import SECRET_BYTES, KeyRecord, Scope, hash_of, key_from, matches
from longshore.core.rate import Bucket, Rate, full, is_full, take
from longshore.errors import AlreadyExists, NotFound, UsageError
from longshore.ports.backend import Backend

KEYS = "keys"
"""The entity whose history says what was done to keys."""

_CREATED = "key.created"
_REVOKED = "key.revoked"
_ID_BYTES = 6
_NAME_CHARACTERS = 100
_LONGEST_KEY = 200
_FORGET_FROM = 10_000


class Access:
    """Makes, finds and revokes keys. ``draw`` gives so many random bytes."""

    def __init__(
        self, *, backend: Backend, app: str, rate: Rate, draw: Callable[[int], bytes]
    ) -> None:
        self._backend = backend
        self._app = app
        self._rate = rate
        self._draw = draw
        self._buckets: dict[str, Bucket] = {}
        self._house: str | None = None  # the tenant that runs the installation, if one does

    async def create(
        self, tenant: str, *, name: str, scopes: Collection[Scope], by: str
    ) -> tuple[KeyRecord, str]:
        """A new key: its record, and the text that nobody can be told again.

        Raises:
            UsageError: the name is empty or too long, or there is no scope.
        """
        if not name.isprintable() or not 0 < len(name) <= _NAME_CHARACTERS:
            message = f"the name of a key has 1 to {_NAME_CHARACTERS} printable characters"
            raise UsageError(message)
        if not scopes:
            message = f"a key needs a scope: {', '.join(scope.value for scope in Scope)}"
            raise UsageError(message)
        text = key_from(self._draw(SECRET_BYTES))
        record = self._record(text, tenant, name=name, scopes=scopes)
        await self._tell(tenant, by, _CREATED, record)
        await self._backend.keys.add(record)
        return record, text

    async def keep(
        self, text: str, tenant: str, *, name: str, scopes: Collection[Scope]
    ) -> KeyRecord:
        """Know a key from now on whose text its holder has already.

        Raises:
            AlreadyExists: it is known, or was, if it has been revoked since.
        """
        record = self._record(text, tenant, name=name, scopes=scopes)
        await self._backend.keys.add(record)
        return record

    def _record(self, text: str, tenant: str, *, name: str, scopes: Collection[Scope]) -> KeyRecord:
        return KeyRecord(
            id=f"key-{self._draw(_ID_BYTES).hex()}",
            tenant=tenant,
            name=name,
            scopes=frozenset(scopes),
            hash=hash_of(text),
            created_at=self._backend.clock.now(),
        )

    async def ensure(self, text: str, tenant: str, *, name: str) -> None:
        """See to it that the machine's own key allows everything, unless it has been revoked.

        The tenant that it belongs to runs the installation, see ``runs_the_house``.
        """
        known = await self._backend.keys.find(hash_of(text))
        if known is None:
            try:
                known = await self.keep(text, tenant, name=name, scopes=(Scope.ADMIN,))
            except AlreadyExists:
                # Somebody was faster, and perhaps for another tenant.
                known = await self._backend.keys.find(hash_of(text))
        self.belongs_to(known.tenant if known else tenant)

    def belongs_to(self, tenant: str) -> None:
        """This tenant runs the installation: its administrators may do what concerns all."""
        self._house = tenant

    def runs_the_house(self, record: KeyRecord) -> bool:
        """Whether the key may do what concerns all tenants, such as pausing a queue.

        An administrator's key may, of the tenant to which the machine's own key belongs. Those of
        other tenants administer their own things only. Of an installation without such a key
        nobody may, unless it has been said to whom it belongs.
        """
        return self.is_of_the_house(record) and record.allows(Scope.ADMIN)

    def is_of_the_house(self, record: KeyRecord) -> bool:
        """Whether the key may see what is no tenant's: it is of the tenant that runs all this."""
        return record.tenant == self._house

    async def list(self, tenant: str) -> list[KeyRecord]:
        """A tenant's keys, oldest first, revoked ones too."""
        return await self._backend.keys.list(tenant)

    async def revoke(self, tenant: str, key_id: str, *, by: str) -> KeyRecord:
        """From now on the key allows nothing; one that was revoked before stays so.

        Raises:
            NotFound: the tenant has no such key.
        """
        changed = await self._backend.keys.revoke(tenant, key_id, now=self._backend.clock.now())
        record = next((one for one in await self.list(tenant) if one.id == key_id), None)
        if record is None:
            raise NotFound("key", key_id)
        if changed or not await self._told(tenant, _REVOKED, record):
            await self._tell(tenant, by, _REVOKED, record)
        return record

    async def who(self, text: str) -> KeyRecord | None:
        """The record of a key that may be used; None for everything else."""
        if len(text) > _LONGEST_KEY or not text.isascii():
            return None
        record = await self._backend.keys.find(hash_of(text))
        if record is None or record.revoked_at is not None or not matches(text, record):
            return None
        return record

    def wait_for(self, record: KeyRecord) -> timedelta | None:
        """Count one more call; how long to wait if that was one too many."""
        now = self._backend.clock.elapsed()
        if len(self._buckets) >= _FORGET_FROM:
            kept = {
                key_id: bucket
                for key_id, bucket in self._buckets.items()
                if not is_full(bucket, self._rate, now=now)
            }
            self._buckets = kept
        before = self._buckets.get(record.id) or full(self._rate, now=now)
        self._buckets[record.id], wait = take(before, self._rate, now=now)
        return wait

    async def _told(self, tenant: str, action: str, record: KeyRecord) -> bool:
        entity, wanted, seen = f"{OperatorActed.ENTITY.value}#{KEYS}", (action, record.id), 0
        while page := await self._backend.events.history(tenant, entity, after=seen):
            bodies = (event.body for event in page if isinstance(event.body, OperatorActed))
            if any((body.action, body.subject) == wanted for body in bodies):
                return True
            seen = page[-1].sequence
        return False

    async def _tell(self, tenant: str, by: str, action: str, record: KeyRecord) -> None:
        scopes = ", ".join(sorted(scope.value for scope in record.scopes))
        await self._backend.events.append(
            tenant=tenant,
            app=self._app,
            entity_id=KEYS,
            body=OperatorActed(
                by=by, action=action, subject=record.id, detail=f"{record.name} ({scopes})"
            ),
            context=Context(origin="operator", source="user"),
            now=self._backend.clock.now(),
        )
