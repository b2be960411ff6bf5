"""Definitions, API keys, shared budgets, and pauses of queues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.queues import QueuePause


class Definitions(Protocol):
    """Versions of definitions. A stored version never changes."""

    async def put(self, tenant: str, definition: Definition) -> Definition:
        """Store a definition as the next version. Returns it with its version, counted from 1.

        If the newest version has the same content, it is returned and nothing is stored. Two
        concurrent writers get two versions or share one; none is lost.
        """
        ...

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        """Returns a version, by default the newest; a deleted definition only by its version."""
        ...

    async def list(self, tenant: str) -> list[Definition]:
        """Returns the newest version of each definition that is not deleted, by name."""
        ...

    async def delete(self, tenant: str, name: str) -> bool:
        """Hide a definition from ``list``, and from ``get`` without a version.

        Returns True if it was visible. Running jobs keep the version they were started with. A
        later ``put`` continues the version numbers.
        """
        ...


class Keys(Protocol):
    """The records of API keys; only the hash of a key is stored."""

    async def add(self, record: KeyRecord) -> None:
        """Store a record.

        Raises:
            AlreadyExists: a record with its id or its hash exists.
        """
        ...

    async def find(self, key_hash: str) -> KeyRecord | None:
        """Returns the record with this hash, also if it is revoked; see ``KeyRecord.allows``."""
        ...

    async def list(self, tenant: str) -> list[KeyRecord]:
        """Returns the keys of a tenant, oldest first, including revoked ones."""
        ...

    async def tenants(self) -> Sequence[str]:
        """Returns the tenants that have a key, also a revoked one, by name."""
        ...

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        """Revoke a key for all processes at once. Returns True if it was not revoked before."""
        ...


class Budgets(Protocol):
    """The store of shared budgets, which are changed by compare-and-swap only."""

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        """Returns the tenant's budget of that name, or None if it was never committed.

        Consistent: it sees every commit of any process that was answered before the read began.
        """
        ...

    async def commit(self, budget: SharedBudget) -> None:
        """Write a budget, whose ``version`` is one above the version it was decided from.

        If the stored budget has the same ``change_id``, it was committed before and the answer was
        lost: the call succeeds and writes nothing. The budget is durable when this returns.

        Raises:
            VersionConflict: the stored budget is not at the version before; nothing was written.
            OutcomeUnknown: the commit may or may not have happened; repeat it.
            BackendUnavailable: the commit did not happen; a retry may succeed.
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

        With ``changed_from``, waits until the result differs from it: it returns at once if it
        already differs, so that nothing is missed between two calls. It also returns when a hold
        ends by itself.
        """
        ...
