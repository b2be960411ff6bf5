"""The contract of the ``BlobStore``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from longshore.core.documents import KEY_LIMIT_BYTES
from longshore.errors import NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore
from longshore.testing.contracts.suite import (
    CALLERS,
    Opener,
    PortContract,
    clause,
)

LARGE_BYTES = 20 * 1024 * 1024
KEY = "jobs/job-one/input.json"
BAD_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../a",
    "a/../b",
    "a/..",
    ".",
    "a/./b",
    "a//b",
    "a/",
    "a\0b",
    "a\nb",
    "a\udcffb",
    "k" * (KEY_LIMIT_BYTES + 1),
    "ü" * (KEY_LIMIT_BYTES // 2 + 1),
]
# All that have made a store on a file system stumble.
ODD_KEYS = [
    "a",
    "a/b",
    "a.b",
    "a..b",
    "...",
    ".hidden",
    "A",
    "a b",
    "a%2Fb",
    "a\\b",
    "~",
    "-rf",
    "CON",
    "x.tmp",
    "*?[]'\"",
    "Füße/🚢",
    "n" * 256,
    "k" * KEY_LIMIT_BYTES,
    "/".join(["d"] * 512),
]


class BlobClauses(PortContract):
    """Bytes in and out."""

    @pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)) * 1000], ids=len)
    @clause
    async def test_bytes_come_out_as_they_went_in(self, backend: Backend, data: bytes) -> None:
        size = await backend.blobs.put(KEY, data)

        assert size == len(data)
        assert await backend.blobs.get(KEY) == data
        assert await backend.blobs.size(KEY) == len(data)
        assert await _streamed(backend.blobs, KEY) == data

    @clause
    async def test_a_stream_is_stored_whole(self, backend: Backend) -> None:
        size = await backend.blobs.put(KEY, _chunks(b"one ", b"", b"two ", b"three"))

        assert size == 13
        assert await backend.blobs.get(KEY) == b"one two three"

    @clause
    async def test_an_empty_stream_is_an_empty_blob(self, backend: Backend) -> None:
        assert await backend.blobs.put(KEY, _chunks()) == 0
        assert await backend.blobs.get(KEY) == b""

    @clause
    async def test_a_large_body_is_written_and_read_in_chunks(self, backend: Backend) -> None:
        piece = bytes(range(256)) * 4096
        size = await backend.blobs.put(KEY, _chunks(*[piece] * (LARGE_BYTES // len(piece))))

        lengths = [len(part) async for part in backend.blobs.stream(KEY)]

        assert size == sum(lengths) == LARGE_BYTES
        assert max(lengths) < LARGE_BYTES
        assert await backend.blobs.get(KEY) == piece * (LARGE_BYTES // len(piece))

    @clause
    async def test_a_blob_that_does_not_exist_is_not_found(self, backend: Backend) -> None:
        assert await backend.blobs.size(KEY) is None
        with pytest.raises(NotFound):
            await backend.blobs.get(KEY)
        with pytest.raises(NotFound):
            await _streamed(backend.blobs, KEY)

    @clause
    async def test_a_blob_is_deleted_once(self, backend: Backend) -> None:
        await backend.blobs.put(KEY, b"a" * 100_000)

        deleted = [await backend.blobs.delete(KEY) for _ in range(2)]

        assert deleted == [True, False]
        assert await backend.blobs.size(KEY) is None
        with pytest.raises(NotFound):
            await backend.blobs.get(KEY)

    @clause
    async def test_a_blob_can_be_put_again_after_it_was_deleted(self, backend: Backend) -> None:
        await backend.blobs.put(KEY, b"old")
        await backend.blobs.delete(KEY)

        await backend.blobs.put(KEY, b"new")

        assert await backend.blobs.get(KEY) == b"new"


class OverwriteClauses(PortContract):
    """The old bytes or the new ones, never a mixture."""

    @pytest.mark.parametrize("sizes", [(10, 300_000), (300_000, 10), (300_000, 300_001)])
    @clause
    async def test_a_second_put_replaces_the_first(
        self, backend: Backend, sizes: tuple[int, int]
    ) -> None:
        await backend.blobs.put(KEY, b"a" * sizes[0])

        await backend.blobs.put(KEY, b"b" * sizes[1])

        assert await backend.blobs.get(KEY) == b"b" * sizes[1]
        assert await backend.blobs.size(KEY) == sizes[1]
        assert await backend.blobs.list_keys("") == [KEY]

    @clause
    async def test_the_old_bytes_are_read_until_the_new_ones_are_complete(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, b"old")
        seen: list[bytes] = []

        async def slowly() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"n" * 100_000
                seen.append(await backend.blobs.get(KEY))

        await backend.blobs.put(KEY, slowly())

        assert seen == [b"old"] * 3
        assert await backend.blobs.get(KEY) == b"n" * 300_000

    @clause
    async def test_a_stream_that_breaks_off_leaves_the_old_bytes(self, backend: Backend) -> None:
        await backend.blobs.put(KEY, b"old")

        async def broken() -> AsyncIterator[bytes]:
            yield b"n" * 300_000
            raise ConnectionResetError

        for key in (KEY, "jobs/new"):
            with pytest.raises(ConnectionResetError):
                await backend.blobs.put(key, broken())

        assert await backend.blobs.get(KEY) == b"old"
        assert await backend.blobs.size("jobs/new") is None
        assert await backend.blobs.list_keys("") == [KEY]

    @clause
    async def test_a_reader_that_has_begun_sees_one_version_to_the_end(
        self, backend: Backend
    ) -> None:
        size = 4 * 1024 * 1024
        await backend.blobs.put(KEY, b"a" * size)

        reader = backend.blobs.stream(KEY)
        data = await anext(reader)
        await backend.blobs.put(KEY, b"b" * size)
        async for piece in reader:
            data += piece

        assert data == b"a" * size

    @pytest.mark.parametrize("size", [1_000, 200_000])
    @clause
    async def test_many_writers_and_readers_never_meet_in_one_blob(
        self, backend: Backend, size: int
    ) -> None:
        whole = [bytes([letter]) * (size + letter) for letter in range(CALLERS)]
        await backend.blobs.put(KEY, whole[0])
        seen: list[bytes] = []

        async def write(own: list[bytes]) -> None:
            for data in own * (self.rounds // 10):
                assert await backend.blobs.put(KEY, data) == len(data)

        writing = asyncio.gather(*(write(whole[first::4]) for first in range(4)))

        async def read() -> None:
            while not writing.done():
                seen.append(await backend.blobs.get(KEY))
                seen.append(await _streamed(backend.blobs, KEY))
                await asyncio.sleep(0)

        await asyncio.gather(writing, read(), read())

        assert [data for data in seen if data not in whole] == []
        assert await backend.blobs.get(KEY) in whole


class KeyNameClauses(PortContract):
    """Which keys there may be, and how they are listed."""

    @pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key[:10]))
    @clause
    async def test_a_key_that_is_none_is_refused(self, backend: Backend, key: str) -> None:
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: backend.blobs.put(key, b"a"),
            lambda: backend.blobs.put(key, _chunks(b"a")),
            lambda: backend.blobs.get(key),
            lambda: _streamed(backend.blobs, key),
            lambda: backend.blobs.size(key),
            lambda: backend.blobs.delete(key),
        ]

        for call in calls:
            with pytest.raises(UsageError):
                await call()

        assert await backend.blobs.list_keys("") == []

    @pytest.mark.parametrize("size", [10, 200_000])
    @clause
    async def test_every_key_that_is_one_names_a_blob_of_its_own(
        self, backend: Backend, size: int
    ) -> None:
        for number, key in enumerate(ODD_KEYS):
            await backend.blobs.put(key, bytes([number]) * size)

        assert await backend.blobs.list_keys("") == sorted(ODD_KEYS)
        for number, key in enumerate(ODD_KEYS):
            assert await backend.blobs.get(key) == bytes([number]) * size, key
        assert await backend.blobs.delete("a") is True
        assert await backend.blobs.get("a/b") == bytes([1]) * size

    @clause
    async def test_keys_are_listed_by_how_they_begin(self, backend: Backend) -> None:
        for key in ("jobs/a/1", "jobs/a/2", "jobs/ab", "jobs/b", "JOBS/a", "jobs_a"):
            await backend.blobs.put(key, b"x")

        assert await backend.blobs.list_keys("jobs/a") == ["jobs/a/1", "jobs/a/2", "jobs/ab"]
        assert await backend.blobs.list_keys("jobs/a/") == ["jobs/a/1", "jobs/a/2"]
        assert await backend.blobs.list_keys("jobs_") == ["jobs_a"]
        for prefix in ("jobs/%", "jobs?", "*", "none"):
            assert await backend.blobs.list_keys(prefix) == []

    @clause
    async def test_the_pages_of_keys_give_each_once(self, backend: Backend) -> None:
        names = [f"jobs/{number:02}" for number in range(12)]
        for key in [*names, "other/0", "a"]:
            await backend.blobs.put(key, b"x")

        listed, sizes = [""], []
        for _ in range(4):
            page = await backend.blobs.list_keys("jobs/", after=listed[-1], limit=5)
            listed += page
            sizes.append(len(page))

        assert listed[1:] == names
        assert sizes == [5, 5, 2, 0]

    @clause
    async def test_a_listing_goes_on_after_a_key_that_is_gone(self, backend: Backend) -> None:
        for key in ("a", "b", "c"):
            await backend.blobs.put(key, b"x")
        await backend.blobs.delete("b")

        assert await backend.blobs.list_keys("", after="b") == ["c"]


class BlobStoreContract(BlobClauses, OverwriteClauses, KeyNameClauses):
    """What holds for every blob store."""


class BlobStoreSharedContract(PortContract):
    """What holds when several instances share the store."""

    @pytest.mark.parametrize("size", [10, 200_000])
    @clause
    async def test_a_blob_is_read_in_another_instance_and_after_a_restart(
        self, open_backend: Opener, size: int
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await first.blobs.put(KEY, b"a" * size)
            assert await second.blobs.get(KEY) == b"a" * size

            await second.blobs.put(KEY, b"b" * size)
            assert await first.blobs.get(KEY) == b"b" * size

        async with open_backend() as again:
            assert await again.blobs.get(KEY) == b"b" * size
            assert await again.blobs.list_keys("") == [KEY]

    @clause
    async def test_writers_in_two_instances_never_meet_in_one_blob(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            for _ in range(5):
                whole = [bytes([letter]) * (200_000 + letter) for letter in range(CALLERS)]
                backends = [first, second] * (CALLERS // 2)

                await asyncio.gather(
                    *(b.blobs.put(KEY, data) for b, data in zip(backends, whole, strict=True))
                )

                assert await first.blobs.get(KEY) in whole
                assert await first.blobs.get(KEY) == await second.blobs.get(KEY)


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for piece in chunks:
        yield piece


async def _streamed(blobs: BlobStore, key: str) -> bytes:
    return b"".join([piece async for piece in blobs.stream(key)])
