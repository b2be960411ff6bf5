"""Definitions, API keys, shared budgets, and pauses of queues."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.queues import QueuePause


class Definitions(Protocol):
    """Versions of definitions. A version that exists is never changed."""

    async def put(self, tenant: str, definition: Definition) -> Definition:
        """Store as the next version and return it with its number, counted from 1.

        If the newest version has the same content, it is returned and nothing is stored. Two
        writers at once get two versions or share one; none is lost.
        """
        ...

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        """A version, or the newest. A deleted definition is found only by its version."""
        ...

    async def list(self, tenant: str) -> list[Definition]:
        """The newest version of each that is not deleted, by name."""
        ...

    async def delete(self, tenant: str, name: str) -> bool:
        """Hide it from ``list`` and from ``get`` without a version; whether it was there.

        Running jobs keep the version they were started with. A later ``put`` goes on counting.
        """
        ...


class Keys(Protocol):
    """The records of keys; the keys themselves are kept by those who hold them."""

    async def add(self, record: KeyRecord) -> None:
        """Keep a record.

        Raises:
            AlreadyExists: its id or its hash is taken.
        """
        ...

    async def find(self, key_hash: str) -> KeyRecord | None:
        """The record with this hash, revoked or not; the caller asks ``allows``."""
        ...

    async def list(self, tenant: str) -> list[KeyRecord]:
        """A tenant's keys, oldest first, revoked ones too."""
        ...

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        """From now on the key allows nothing, for every process at once; whether it did before."""
        ...


class Budgets(Protocol):
    """The store of accounts. It knows nothing of budgets: it reads, and it commits decisions."""

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        """The tenant's account of that name, or None if it was never committed.

        Consistent: it sees every commit that was answered before the read began, by any process.
        """
        ...

    async def commit(self, budget: SharedBudget) -> None:
        """Write the account, whose ``version`` is one above that of the account it was made from.

        An account whose ``change_id`` is the stored one's already has been committed before (its
        answer was lost): that is success, and nothing is written again. What was answered is on
        disk.

        Raises:
            VersionConflict: the stored account is not at the version before; nothing was written.
            OutcomeUnknown: it may or may not have happened; commit the same account again.
            BackendUnavailable: it did not happen; worth another try.
        """
        ...


class QueueControls(Protocol):
    """Pauses and holds of queues.

    A pause affects all tenants: a queue is a part of the installation, it contains tasks of all
    tenants, and a worker that receives a message does not know the tenant before. Pausing is
    therefore an operation of the installation's operators. All tenants with tasks in the queue may
    read the reason of a pause, and nothing else, so that no tenant learns anything of another.

    A pause is stored beside the queue: messages are still sent and stored, and workers do not
    receive them. A message that is not received does not count as delivered, however long the pause
    lasts. Running tasks continue and are renewed and reported as usual.

    A hold is a pause that ends by itself: a service that all tasks of a queue need has asked for a
    pause. A queue may have an operator's pause and a hold; neither ends the other.
    """

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        """Pause a queue: none of its tasks starts; workers know within about a second.

        Returns the pause. The first pause of a queue counts: a later call, or one that is repeated
        because its answer was lost, changes nothing and returns the first. A queue that has never
        had a message can be paused. The pause is durable when this returns.
        """
        ...

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        """Hold a queue: none of its tasks starts until then, but no longer than ``MAX_HOLD``.

        Returns the hold. Of several holds the longest counts: one that lasts no longer changes
        nothing. A hold is a hint: if a power loss loses it, one more call is rate-limited, so it is
        not durable when this returns.
        """
        ...

    async def resume(self, name: str) -> QueuePause | None:
        """Resume a queue. Returns the pause that this ended, or None.

        A hold ends too, and is returned if there was no pause. Of concurrent calls, one returns the
        pause. Durable when this returns.
        """
        ...

    async def list_pauses(self) -> list[QueuePause]:
        """Returns all pauses and holds, by the name of the queue; a pause before a hold."""
        ...

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        """Returns which of ``queues`` are paused or held now.

        With ``other_than``, waits until the result differs from it: it returns at once if it
        already differs, so that nothing is missed between two calls. It also returns when a hold
        ends by itself.
        """
        ...
