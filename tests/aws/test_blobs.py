"""The contract of blobs in S3, and the handling of S3's own behaviour."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws import blobs
from longshore.adapters.aws.blobs import PART_BYTES, S3BlobStore
from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.blobs import BlobStoreContract, BlobStoreSharedContract
from longshore.testing.contracts.suite import clause, without_time_passing
from tests.aws.backends import AwsContract, on_aws
from tests.aws.call_faults import (
    Call,
    CallFault,
    FaultyPortContract,
    request_lost,
    response_lost,
    throttled,
    with_parameters,
)
from tests.aws.stand_in import stand_in

KEY = "jobs/job-one/input.json"
MB = 1024 * 1024


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, blobs=lambda aws, names, _: S3BlobStore(aws, names))


class TestS3BlobStore(_AwsBackend, BlobStoreContract, BlobStoreSharedContract):
    pass


class FaultyBlobContract(FaultyPortContract):
    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        self.aws, self.names = aws, names
        return {"blobs": S3BlobStore(aws, names)}

    async def uploads(self) -> list[Any]:
        """Those that were begun and neither joined nor taken back."""
        listed = await self.aws.call("s3", "list_multipart_uploads", Bucket=self.names.bucket)
        return list(listed.get("Uploads", []))


class TestPutWithFaults(FaultyBlobContract):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_put_whose_response_was_lost_is_stored(
        self, backend: Backend, fault: CallFault
    ) -> None:
        self.faulty_aws.inject("put_object", fault, fault)

        assert await backend.blobs.put(KEY, b"new") == 3
        assert await backend.blobs.get(KEY) == b"new"

    @clause
    async def test_a_put_whose_responses_are_all_lost_raises_outcome_unknown(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("put_object", *[response_lost] * 3)

        with pytest.raises(OutcomeUnknown):
            await backend.blobs.put(KEY, b"new")

    @clause
    async def test_a_put_that_is_throttled_raises_backend_unavailable(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("put_object", throttled)

        with pytest.raises(BackendUnavailable) as caught:
            await backend.blobs.put(KEY, b"new")

        assert not isinstance(caught.value, OutcomeUnknown)
        assert await backend.blobs.size(KEY) is None

    @pytest.mark.parametrize("streamed", [False, True])
    @pytest.mark.parametrize(
        ("size", "parts"),
        [(PART_BYTES, 0), (PART_BYTES + 1, 2), (2 * PART_BYTES, 2), (2 * PART_BYTES + 7, 3)],
    )
    @clause
    async def test_a_blob_larger_than_a_part_is_uploaded_in_parts(
        self, backend: Backend, streamed: bool, size: int, parts: int
    ) -> None:
        data = different_bytes(size)

        assert await backend.blobs.put(KEY, _stream(data, 3 * MB) if streamed else data) == size

        assert self.faulty_aws.count("upload_part") == parts
        assert self.faulty_aws.count("put_object") == (0 if parts else 1)
        assert await backend.blobs.get(KEY) == data
        assert await self.uploads() == []

    @clause
    async def test_parts_grow_so_that_the_largest_blob_has_few_enough(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # S3 wants larger parts, the stand-in takes any.
        monkeypatch.setattr(blobs, "PART_BYTES", 10)
        monkeypatch.setattr(blobs, "_PARTS_PER_SIZE", 2)

        await backend.blobs.put(KEY, _stream(different_bytes(145), 7))

        parts = [entry["Body"] for name, entry in self.faulty_aws.calls if name == "upload_part"]
        assert [len(part) for part in parts] == [10, 10, 20, 20, 40, 40, 5]
        assert await backend.blobs.get(KEY) == different_bytes(145)

    @pytest.mark.parametrize("fault", [response_lost, request_lost, throttled])
    @clause
    async def test_a_part_that_fails_is_sent_again(
        self, backend: Backend, fault: CallFault
    ) -> None:
        data = different_bytes(2 * PART_BYTES + 7)
        self.faulty_aws.inject("upload_part", fault, fault)

        await backend.blobs.put(KEY, _stream(data, 5 * MB))

        assert await backend.blobs.get(KEY) == data

    @clause
    async def test_a_part_that_fails_for_good_leaves_the_old_bytes_and_no_parts(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, b"old")
        self.faulty_aws.inject("upload_part", *[throttled] * 20)

        with pytest.raises(BackendUnavailable):
            await backend.blobs.put(KEY, _stream(bytes(5 * PART_BYTES), PART_BYTES))

        assert await backend.blobs.get(KEY) == b"old"
        assert await self.uploads() == []

    @clause
    async def test_a_stream_that_breaks_off_among_the_parts_leaves_the_old_bytes_and_no_parts(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, b"old")

        async def broken() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield bytes(PART_BYTES)
            while self.faulty_aws.count("upload_part") < 2:
                await asyncio.sleep(0.001)
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await backend.blobs.put(KEY, broken())

        assert await backend.blobs.get(KEY) == b"old"
        assert await self.uploads() == []

    @clause
    async def test_the_error_of_a_put_is_raised_even_if_its_parts_cannot_be_removed(
        self, backend: Backend
    ) -> None:
        self.faulty_aws.inject("upload_part", *[throttled] * 20)
        self.faulty_aws.inject("abort_multipart_upload", request_lost)

        with pytest.raises(BackendUnavailable, match="throttled"):
            await backend.blobs.put(KEY, bytes(PART_BYTES + 1))

    @clause
    async def test_a_cancelled_put_removes_its_parts(self, backend: Backend) -> None:
        three_sent = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield bytes(PART_BYTES)
            three_sent.set()
            await asyncio.Event().wait()

        putting = asyncio.create_task(backend.blobs.put(KEY, slowly()))
        await without_time_passing(three_sent.wait())
        assert len(await self.uploads()) == 1
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting

        assert await backend.blobs.size(KEY) is None
        assert await self.uploads() == []

    @clause
    async def test_a_few_parts_are_uploaded_concurrently(self, backend: Backend) -> None:
        under_way = most = 0

        async def counted(call: Call) -> AwsResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await call()
            finally:
                under_way -= 1

        self.faulty_aws.inject("upload_part", *[counted] * 8)

        await backend.blobs.put(KEY, bytes(8 * PART_BYTES))

        assert most == 4
        assert await backend.blobs.size(KEY) == 8 * PART_BYTES

    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_an_upload_whose_completion_response_was_lost_is_completed(
        self, backend: Backend, fault: CallFault
    ) -> None:
        data = different_bytes(PART_BYTES + 1)
        self.faulty_aws.inject("create_multipart_upload", request_lost)
        self.faulty_aws.inject("complete_multipart_upload", fault, fault)

        await backend.blobs.put(KEY, data)

        assert await backend.blobs.get(KEY) == data

    @clause
    async def test_an_upload_that_s3_removed_after_its_completion_counts_as_completed(
        self, backend: Backend
    ) -> None:
        data = different_bytes(PART_BYTES + 1)
        # S3 forgets an upload some time after it was joined, the stand-in does not.
        self.faulty_aws.inject("complete_multipart_upload", response_lost, _no_such_upload)

        assert await backend.blobs.put(KEY, data) == len(data)
        assert await backend.blobs.get(KEY) == data

    @clause
    async def test_an_upload_that_was_aborted_elsewhere_does_not_count_as_completed(
        self, backend: Backend
    ) -> None:
        await backend.blobs.put(KEY, b"old")
        self.faulty_aws.inject("complete_multipart_upload", request_lost, _no_such_upload)

        with pytest.raises(OutcomeUnknown):
            await backend.blobs.put(KEY, bytes(PART_BYTES + 1))

        assert await backend.blobs.get(KEY) == b"old"


class TestReadsWithFaults(FaultyBlobContract):
    @pytest.mark.parametrize("fault", [response_lost, request_lost])
    @clause
    async def test_a_delete_whose_response_was_lost_has_deleted(
        self, backend: Backend, fault: CallFault
    ) -> None:
        await backend.blobs.put(KEY, b"a")
        self.faulty_aws.inject("delete_object", fault, fault)

        assert await backend.blobs.delete(KEY) is True
        assert await backend.blobs.size(KEY) is None

    @clause
    async def test_keys_are_listed_over_several_pages(self, backend: Backend) -> None:
        names = [f"jobs/{number:02}" for number in range(12)]
        for key in [*names, "a", "z"]:
            await backend.blobs.put(key, b"")
        self.faulty_aws.inject("list_objects_v2", *[with_parameters(MaxKeys=3)] * 10)

        assert await backend.blobs.list_keys("jobs/", after="jobs/01") == names[2:]
        assert self.faulty_aws.count("list_objects_v2") == 4

    @clause
    async def test_a_listing_requests_no_more_keys_than_its_limit(self, backend: Backend) -> None:
        for number in range(5):
            await backend.blobs.put(f"k{number}", b"")

        assert await backend.blobs.list_keys("", limit=2) == ["k0", "k1"]
        assert await backend.blobs.list_keys("", limit=0) == []

        assert [entry["MaxKeys"] for _, entry in self.faulty_aws.calls if "MaxKeys" in entry] == [2]

    @clause
    async def test_a_bucket_that_does_not_exist_is_not_mistaken_for_an_empty_one(
        self, backend: Backend
    ) -> None:
        store = S3BlobStore(self.aws, replace(self.names, bucket="longshore-none"))

        for call in (store.get(KEY), store.put(KEY, b"a"), store.list_keys("")):
            with pytest.raises(BackendRejected):
                await call


@asynccontextmanager
async def another_aws(**options: Any) -> AsyncIterator[AwsClient]:
    aws = AwsClient(replace(stand_in().client_options, **options))
    try:
        yield aws
    finally:
        await aws.close()


async def _no_such_upload(_: Call) -> AwsResponse:
    raise CallRefused("NoSuchUpload", {})


def different_bytes(size: int) -> bytes:
    """Bytes of which no two aligned groups of four are equal."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


async def _stream(data: bytes, chunk_bytes: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), chunk_bytes):
        yield data[at : at + chunk_bytes]
