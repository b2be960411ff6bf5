"""Keys: made once, kept as hashes, gone at once when they are revoked."""

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from longshore.core.keys import Scope
from longshore.core.rate import Rate
from longshore.errors import AlreadyExists, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.services import access as module
from longshore.services.access import Access
from tests.unit.services import patience
from tests.unit.services.stage import APP, BACKENDS, TENANT, opened, scenario

RATE = Rate(per_second=1, burst=2)


def access_on(backend: Backend) -> Access:
    numbers = count(1)
    return Access(
        backend=backend, app=APP, rate=RATE, draw=lambda size: next(numbers).to_bytes(size)
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_key_is_known_until_it_is_revoked_everywhere(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        access, other_process = access_on(backend), access_on(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[Scope.READ], by="ann")
        assert await other_process.who(text) == record
        assert text not in repr(record)

        revoked = await access.revoke(TENANT, record.id, by="bob")

        assert revoked.revoked_at is not None
        assert await other_process.who(text) is None
        assert await access.revoke(TENANT, record.id, by="bob") == revoked
        assert await access.list(TENANT) == [revoked]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_done_to_keys_is_told_once_each(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        access = access_on(backend)
        record, _ = await access.create(
            TENANT, name="ci", scopes=[Scope.SUBMIT, Scope.READ], by="ann"
        )
        for _ in range(2):
            await access.revoke(TENANT, record.id, by="bob")

        history = await backend.events.history(TENANT, "SYSTEM#keys")

        bodies = [event.body for event in history]
        assert [(body.by, body.action, body.subject) for body in bodies] == [
            ("ann", "key.created", record.id),
            ("bob", "key.revoked", record.id),
        ]
        assert bodies[0].detail == "ci (read, submit)"


@scenario
async def test_another_tenant_s_key_cannot_be_revoked(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        access = access_on(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[Scope.READ], by="ann")

        with pytest.raises(NotFound):
            await access.revoke("others", record.id, by="eve")

        assert await access.who(text) == record
        assert await access.list("others") == []


@pytest.mark.parametrize("text", ["", "lsk_", "x" * 201, "schlüssel", "lsk_\0"])
@scenario
async def test_nonsense_is_nobody_s_key(text: str, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        assert await access_on(backend).who(text) is None


@scenario
async def test_the_machine_s_own_key_stays_revoked_if_it_was(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        access = access_on(backend)
        for _ in range(2):
            await access.ensure("lsk_own", TENANT, name="host")
        (record,) = await access.list(TENANT)
        assert record.allows(Scope.ADMIN)
        await access.revoke(TENANT, record.id, by="ann")

        await access.ensure("lsk_own", TENANT, name="host")

        assert await access.who("lsk_own") is None
        with pytest.raises(AlreadyExists):
            await access.keep("lsk_own", TENANT, name="host", scopes=[Scope.READ])


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("", [Scope.READ]), ("a\nb", [Scope.READ]), ("x" * 101, [Scope.READ]), ("x", [])],
)
@scenario
async def test_a_key_without_a_name_or_a_scope_is_refused(
    name: str, scopes: list[Scope], tmp_path: Path
) -> None:
    async with opened("memory", tmp_path) as backend:
        access = access_on(backend)

        with pytest.raises(UsageError):
            await access.create(TENANT, name=name, scopes=scopes, by="ann")

        assert await access.list(TENANT) == []


@scenario
async def test_each_key_has_its_own_rate_and_quiet_ones_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FORGET_FROM", 2)
    async with opened("memory", tmp_path) as backend:
        access = access_on(backend)
        keys = [
            (await access.create(TENANT, name=str(one), scopes=[Scope.READ], by="ann"))[0]
            for one in range(4)
        ]
        for _ in range(2):
            assert access.wait_for(keys[0]) is None

        assert access.wait_for(keys[0]) == timedelta(seconds=1)
        assert access.wait_for(keys[1]) is None
        await patience.passes(backend.clock, timedelta(seconds=10))
        assert access.wait_for(keys[3]) is None
        assert list(access._buckets) == [keys[3].id]
