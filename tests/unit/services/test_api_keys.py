"""Keys: made once, kept as hashes, gone at once when they are revoked."""

from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope, KeyRecord, Rate
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.ports.configuration import Keys
from longshore.services import api_keys as module
from longshore.services import reads
from longshore.services.api_keys import ApiKeys, TooManyFailedKeys
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services import virtual_time
from tests.unit.services.harness import APP, BACKENDS, TENANT, open_backend, scenario

RATE = Rate(per_second=1, burst=2)


def make_api_keys(backend: Backend) -> ApiKeys:
    numbers = count(1)
    return ApiKeys(
        backend=backend, app=APP, rate=RATE, random_bytes=lambda size: next(numbers).to_bytes(size)
    )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_key_is_known_until_it_is_revoked_everywhere(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        access, other_process = make_api_keys(backend), make_api_keys(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")
        assert await other_process.authenticate(text) == record
        assert text not in repr(record)

        revoked = await access.revoke(TENANT, record.id, by="bob")

        assert revoked.revoked_at is not None
        assert await other_process.authenticate(text) is None
        assert await access.revoke(TENANT, record.id, by="bob") == revoked
        assert await access.list(TENANT) == [revoked]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_every_change_of_a_key_is_emitted_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        access = make_api_keys(backend)
        record, _ = await access.create(
            TENANT, name="ci", scopes=[ApiScope.SUBMIT, ApiScope.READ], by="ann"
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


def broken(backend: Backend, port: str, method: str, **named: Any) -> Backend:
    """The backend, one call of which fails."""
    return replace(backend, **{port: FlakyPort(getattr(backend, port), method, **named)})


async def key_events(backend: Backend) -> list[tuple[str, str, str]]:
    history = await backend.events.history(TENANT, "SYSTEM#keys")
    return [(event.body.by, event.body.action, event.body.subject) for event in history]


@pytest.mark.parametrize("after_write", [False, True])
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_revocation_takes_effect_at_once_and_its_event_is_written_by_a_repeated_request(
    kind: str, after_write: bool, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        record, text = await make_api_keys(backend).create(
            TENANT, name="ci", scopes=[ApiScope.READ], by="ann"
        )
        flaky = broken(backend, "events", "append", after_write=after_write)
        access = make_api_keys(flaky)

        with pytest.raises(BackendUnavailable):
            await access.revoke(TENANT, record.id, by="bob")
        gone = await access.authenticate(text) is None
        for _ in range(2):
            await access.revoke(TENANT, record.id, by="bob")

        assert gone
        assert await key_events(backend) == [
            ("ann", "key.created", record.id),
            ("bob", "key.revoked", record.id),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_key_comes_to_be_that_history_does_not_know(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        silent = make_api_keys(broken(backend, "events", "append"))
        cut_off = make_api_keys(broken(backend, "keys", "add"))

        with pytest.raises(BackendUnavailable):
            await silent.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")
        after_failed_event = await backend.keys.list(TENANT), await key_events(backend)
        with pytest.raises(BackendUnavailable):
            await cut_off.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")

        assert after_failed_event == ([], [])
        assert await backend.keys.list(TENANT) == []
        assert [action for _, action, _ in await key_events(backend)] == ["key.created"]


@scenario
async def test_a_revocation_is_looked_for_in_the_whole_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        records = [
            (await access.create(TENANT, name=str(item), scopes=[ApiScope.READ], by="ann"))[0]
            for item in range(3)
        ]
        for record in records:
            await access.revoke(TENANT, record.id, by="bob")

        monkeypatch.setattr(reads, "AT_ONCE", 2)
        for record in records:
            await access.revoke(TENANT, record.id, by="eve")

        monkeypatch.undo()
        assert "eve" not in {by for by, _, _ in await key_events(backend)}


@scenario
async def test_only_administrators_of_the_machine_s_own_tenant_are_operators(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access, later = make_api_keys(backend), make_api_keys(backend)
        admin, _ = await access.create(TENANT, name="a", scopes=[ApiScope.ADMIN], by="ann")
        others = [
            (await access.create(tenant, name="b", scopes=scopes, by="ann"))[0]
            for tenant, scopes in (
                (TENANT, [ApiScope.OPERATE, ApiScope.SUBMIT, ApiScope.READ]),
                ("others", [ApiScope.ADMIN]),
            )
        ]
        before = access.is_operator_admin(admin)

        await access.ensure("lsk_own", TENANT, name="host")
        # Another process, set up for another tenant, with the same key file.
        await later.ensure("lsk_own", "others", name="host")

        assert not before
        for item in (access, later):
            assert item.is_operator_admin(admin)
            assert not any(item.is_operator_admin(record) for record in others)
        later.set_operator_tenant("others")
        assert later.is_operator_admin(others[1])
        await access.revoke(TENANT, admin.id, by="ann")
        (revoked, *_) = await access.list(TENANT)
        assert not access.is_operator_admin(revoked)


@scenario
async def test_the_machine_s_key_may_be_made_by_two_at_once(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        first, second = (
            make_api_keys(backend),
            make_api_keys(replace(backend, keys=_LateKeys(backend.keys))),
        )
        record, _ = await first.create("other", name="a", scopes=[ApiScope.ADMIN], by="ann")
        await first.ensure("lsk_own", "other", name="host")

        await second.ensure("lsk_own", TENANT, name="host")

        assert second.is_operator_admin(record)


class _LateKeys:
    """Keys of which the first asking finds none."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    async def find(self, key_hash: str) -> KeyRecord | None:
        self._calls += 1
        return await self._keys.find(key_hash) if self._calls > 1 else None


@scenario
async def test_another_tenant_s_key_cannot_be_revoked(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")

        with pytest.raises(NotFound):
            await access.revoke("others", record.id, by="eve")

        assert await access.authenticate(text) == record
        assert await access.list("others") == []


@pytest.mark.parametrize("text", ["", "lsk_", "x" * 201, "schlüssel", "lsk_\0"])
@scenario
async def test_malformed_text_is_not_a_key(text: str, tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        assert await make_api_keys(backend).authenticate(text) is None


@scenario
async def test_the_machine_s_own_key_stays_revoked_if_it_was(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        for _ in range(2):
            await access.ensure("lsk_own", TENANT, name="host")
        (record,) = await access.list(TENANT)
        assert record.allows(ApiScope.ADMIN)
        await access.revoke(TENANT, record.id, by="ann")

        await access.ensure("lsk_own", TENANT, name="host")

        assert await access.authenticate("lsk_own") is None


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("", [ApiScope.READ]), ("a\nb", [ApiScope.READ]), ("x" * 101, [ApiScope.READ]), ("x", [])],
)
@scenario
async def test_a_key_without_a_name_or_a_scope_is_refused(
    name: str, scopes: list[ApiScope], tmp_path: Path
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)

        with pytest.raises(UsageError):
            await access.create(TENANT, name=name, scopes=scopes, by="ann")

        assert await access.list(TENANT) == []


@scenario
async def test_each_key_has_its_own_rate_and_quiet_ones_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CALLER_LIMIT", 2)
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        keys = [
            (await access.create(TENANT, name=str(item), scopes=[ApiScope.READ], by="ann"))[0]
            for item in range(4)
        ]
        for _ in range(2):
            assert access.rate_limit(keys[0]) is None

        assert access.rate_limit(keys[0]) == timedelta(seconds=1)
        assert access.rate_limit(keys[1]) is None
        await virtual_time.advance(backend.clock, timedelta(seconds=10))
        assert access.rate_limit(keys[3]) is None
        assert list(access._free_at) == [keys[3].id]


async def refused_keys(
    access: ApiKeys, count: int, *, address: str = "192.0.2.1", prefix: str = "lsk_wrong"
) -> list[timedelta]:
    """Try unknown keys; the wait of each that was not looked up."""
    waits = []
    for number in range(count):
        try:
            assert await access.authenticate_from(address, f"{prefix}{number}") is None
        except TooManyFailedKeys as failed:
            waits.append(failed.wait)
    return waits


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_address_may_try_few_unknown_keys_and_others_are_not_concerned(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        access = make_api_keys(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")
        assert await access.authenticate_from("192.0.2.1", text) == record
        _, late = await access.create(TENANT, name="late", scopes=[ApiScope.READ], by="ann")

        waits = await refused_keys(access, 25)

        assert len(waits) == 5
        assert all(timedelta(0) < wait <= timedelta(seconds=1) for wait in waits)
        assert await access.authenticate_from("192.0.2.1", text) == record
        with pytest.raises(TooManyFailedKeys):
            await access.authenticate_from("192.0.2.1", late)
        assert await access.authenticate_from("192.0.2.2", late) is not None
        assert await access.authenticate_from("192.0.2.1", late) is not None


@scenario
async def test_a_revoked_key_counts_as_unknown_and_an_outage_as_nothing(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        record, text = await access.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")
        for _ in range(30):
            away = replace(access, backend=broken(backend, "keys", "find"))
            with pytest.raises(BackendUnavailable):
                await away.authenticate_from("192.0.2.1", text)
        assert await access.authenticate_from("192.0.2.1", text) == record
        await access.revoke(TENANT, record.id, by="ann")

        for _ in range(20):
            assert await access.authenticate_from("192.0.2.1", text) is None
        with pytest.raises(TooManyFailedKeys):
            await access.authenticate_from("192.0.2.1", text)


@scenario
async def test_a_network_of_ipv6_counts_as_one_address(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        for number in range(20):
            await refused_keys(access, 1, address=f"2001:db8::{number:x}")

        assert len(await refused_keys(access, 1, address="2001:db8::ffff")) == 1
        assert await refused_keys(access, 1, address="2001:db8:0:1::1") == []
        for number in range(20):
            await refused_keys(access, 1, address=f"::ffff:192.0.2.{number}")
        assert await refused_keys(access, 1, address="::ffff:192.0.2.99") == []


@scenario
async def test_unknown_keys_are_logged_once_a_minute_without_the_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        await refused_keys(access, 30)
        access._log_failures_at = timedelta(0)  # a minute later
        await refused_keys(access, 1)

    records = [record for record in caplog.records if record.message == "api.keys_refused"]
    assert [vars(record)["failures"] for record in records] == [1, 30]
    assert {vars(record)["address"] for record in records} == {"192.0.2.1"}
    assert "lsk_wrong" not in str([vars(record) for record in records])


@scenario
async def test_what_is_remembered_of_unknown_keys_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CALLER_LIMIT", 10)
    async with open_backend("memory", tmp_path) as backend:
        access = make_api_keys(backend)
        for number in range(50):
            await refused_keys(access, 1, address=f"198.51.100.{number}")
            _, text = await access.create(TENANT, name="ci", scopes=[ApiScope.READ], by="ann")
            await access.authenticate_from("192.0.2.1", text)

    assert (len(access._failures), len(access._seen)) == (10, 10)
