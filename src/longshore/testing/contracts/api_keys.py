"""The contract of the ``Keys``."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from longshore.core.api_keys import ApiScope, KeyRecord, WorkLimits, hash_key
from longshore.errors import AlreadyExists
from longshore.ports.backend import Backend
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    clause,
    gather_all,
)

LATER = START + timedelta(days=1)


class KeysContract(PortContract):
    """What holds for every store of keys."""

    @clause
    async def test_a_key_that_does_not_exist_is_none(self, backend: Backend) -> None:
        assert await backend.keys.find(hash_key("lsk_none")) is None
        assert await backend.keys.list("acme") == []

    @clause
    async def test_every_field_of_a_record_is_kept(self, backend: Backend) -> None:
        record = replace(
            _record("a"),
            name="CI «Füße»",
            scopes=frozenset(ApiScope),
            revoked_at=LATER,
            expires_at=LATER,
            limits=WorkLimits(
                definitions=frozenset({"resize", "mail-2"}), queues=frozenset({"slow"})
            ),
        )

        await backend.keys.add(record)

        assert await backend.keys.find(record.hash) == record
        assert await backend.keys.list("acme") == [record]

    @clause
    async def test_limits_to_nothing_differ_from_no_limits(self, backend: Backend) -> None:
        nothing = WorkLimits(definitions=frozenset(), queues=frozenset())
        record = replace(_record("a"), limits=nothing)

        await backend.keys.add(record)

        assert await backend.keys.find(record.hash) == record

    @clause
    async def test_the_tenants_with_keys_are_listed_once_by_name(self, backend: Backend) -> None:
        assert list(await backend.keys.tenants()) == []
        for key_id, tenant in (("a", "evil"), ("b", "acme"), ("c", "evil")):
            await backend.keys.add(_record(key_id, tenant=tenant))
        await backend.keys.revoke("acme", "b", now=LATER)

        assert list(await backend.keys.tenants()) == ["acme", "evil"]

    @clause
    async def test_a_key_without_scopes_is_kept(self, backend: Backend) -> None:
        record = replace(_record("a"), scopes=frozenset())

        await backend.keys.add(record)

        assert await backend.keys.find(record.hash) == record

    @clause
    async def test_an_id_that_is_taken_is_refused_and_nothing_is_kept(
        self, backend: Backend
    ) -> None:
        first = _record("a")
        await backend.keys.add(first)
        second = replace(first, hash=hash_key("lsk_other"))

        with pytest.raises(AlreadyExists):
            await backend.keys.add(second)

        assert await backend.keys.find(second.hash) is None
        assert await backend.keys.list("acme") == [first]

    @clause
    async def test_a_hash_that_is_taken_is_refused_in_every_tenant(self, backend: Backend) -> None:
        first = _record("a")
        await backend.keys.add(first)

        for tenant in ("acme", "evil"):
            with pytest.raises(AlreadyExists):
                await backend.keys.add(replace(first, id="b", tenant=tenant))

        assert await backend.keys.find(first.hash) == first
        assert await backend.keys.list("evil") == []

    @clause
    async def test_keys_are_listed_oldest_first(self, backend: Backend) -> None:
        records = {
            days: _record(key_id, created_at=START + timedelta(days=days))
            for days, key_id in ((2, "b"), (0, "c"), (1, "a"))
        }
        for record in records.values():
            await backend.keys.add(record)

        assert await backend.keys.list("acme") == [records[0], records[1], records[2]]

    @clause
    async def test_keys_of_another_tenant_are_not_listed(self, backend: Backend) -> None:
        await backend.keys.add(_record("theirs", tenant="evil"))
        ours = _record("ours")
        await backend.keys.add(ours)

        assert await backend.keys.list("acme") == [ours]

    @clause
    async def test_a_revoked_key_is_found_and_listed_and_allows_nothing(
        self, backend: Backend
    ) -> None:
        record = _record("a")
        await backend.keys.add(record)

        revoked = await backend.keys.revoke("acme", record.id, now=LATER)

        assert revoked is True
        record_found = await backend.keys.find(record.hash)
        assert record_found == replace(record, revoked_at=LATER)
        assert not any(record_found.allows(scope) for scope in ApiScope)
        assert await backend.keys.list("acme") == [record_found]

    @clause
    async def test_a_key_is_revoked_once_and_the_first_moment_stays(self, backend: Backend) -> None:
        record = _record("a")
        await backend.keys.add(record)
        await backend.keys.revoke("acme", record.id, now=LATER)

        again = await backend.keys.revoke("acme", record.id, now=LATER + timedelta(days=1))

        assert again is False
        assert await backend.keys.find(record.hash) == replace(record, revoked_at=LATER)

    @clause
    async def test_revoking_one_key_leaves_the_others(self, backend: Backend) -> None:
        first, second = _record("a"), _record("b")
        for record in (first, second):
            await backend.keys.add(record)

        await backend.keys.revoke("acme", first.id, now=LATER)

        assert await backend.keys.find(second.hash) == second

    @clause
    async def test_a_key_of_another_tenant_cannot_be_revoked(self, backend: Backend) -> None:
        record = _record("a")
        await backend.keys.add(record)

        assert await backend.keys.revoke("evil", record.id, now=LATER) is False
        assert await backend.keys.revoke("acme", "none", now=LATER) is False
        assert await backend.keys.find(record.hash) == record

    @clause
    async def test_of_many_who_revoke_one_key_one_gets_true(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            record = _record(f"k{number}")
            await backend.keys.add(record)

            answers = await gather_all(
                backend.keys.revoke("acme", record.id, now=LATER) for _ in range(CALLERS)
            )

            assert sorted(answers, key=str) == [False] * (CALLERS - 1) + [True]

    @clause
    async def test_of_many_who_add_one_id_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            records = [
                replace(_record(f"k{number}"), hash=hash_key(f"lsk_{number}-{caller}"))
                for caller in range(CALLERS)
            ]

            answers = await gather_all(backend.keys.add(record) for record in records)

            winners = [r for r, answer in zip(records, answers, strict=True) if answer is None]
            assert len(winners) == 1
            record_found = [await backend.keys.find(record.hash) for record in records]
            assert [record for record in record_found if record] == winners


class KeysSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_key_is_revoked_for_every_instance_at_once(self, open_backend: Opener) -> None:
        record = _record("a")
        async with open_backend() as first, open_backend() as second:
            await first.keys.add(record)
            assert await second.keys.find(record.hash) == record

            await first.keys.revoke("acme", record.id, now=LATER)

            revoked = await second.keys.find(record.hash)
            assert revoked == replace(record, revoked_at=LATER)

        async with open_backend() as again:
            assert await again.keys.find(record.hash) == revoked


def _record(key_id: str, *, tenant: str = "acme", created_at: datetime = START) -> KeyRecord:
    return KeyRecord(
        id=key_id,
        tenant=tenant,
        name=f"key {key_id}",
        scopes=frozenset({ApiScope.READ, ApiScope.SUBMIT}),
        hash=hash_key(f"lsk_{key_id}"),
        created_at=created_at,
    )
