"""Blobs in S3: a blob is an object, and a reader always sees one whole version.

Up to 8 MB are sent in one request. More is sent as a multipart upload, a few parts at a time, and
becomes visible with the request that completes it. A put that fails aborts its upload; the bucket's
lifecycle rule removes uploads that were never finished. A put holds about six parts in memory.
Encryption is the bucket's default.

A reader whose connection breaks continues where it was, in the version that it started with.

==========  ==========================================================
call        requests
==========  ==========================================================
``put``     1; in parts 2, and 1 for each 8 MB (fewer above 8 GB)
``get``     1, and 1 for each time the connection breaks
``stream``  as ``get``
``size``    1
``delete``  2, 1 if there is none; 1 for many
``keys``    1 for each 1,000
``url``     none
==========  ==========================================================

If the answer to a put or a delete is lost, it is repeated: both are idempotent. Of several
concurrent deletes of one blob, each may return True. ``size`` and ``delete`` cannot distinguish a
missing bucket from a missing blob, because S3 does not. The role needs ``s3:ListBucket``: without
it S3 answers "denied" for a missing blob.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# The client library lets some of its errors through.
import aiohttp
from botocore.exceptions import BotoCoreError

from longshore.adapters.aws.client import (
    AwsClient,
    AwsResponse,
    CallRefused,
    retry_unknown_outcome,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import new_token
from longshore.core.documents import validate_key
from longshore.errors import (
    BackendError,
    BackendUnavailable,
    NotFound,
    OutcomeUnknown,
)

PART_BYTES = 8 * 1024 * 1024
"""The size of one request; S3 wants at least 5 MB in every part but the last."""

_PARALLEL_PARTS = 4
_PARTS_PER_SIZE = 1000
_CHUNK_BYTES = 256 * 1024
_READ_ATTEMPTS = 3
_LIST_LIMIT = 1000  # S3's limit
_CONNECTION_ERRORS = (BotoCoreError, aiohttp.ClientError, OSError, TimeoutError)
_UPLOAD_METADATA_KEY = "longshore-upload"
_CHECKSUM = "CRC32"
_NO_SUCH_KEY, _HEAD_NOT_FOUND, _NO_SUCH_UPLOAD = "NoSuchKey", "404", "NoSuchUpload"
_PRECONDITION_FAILED = "PreconditionFailed"


@dataclass(frozen=True, slots=True)
class S3BlobStore:
    """See ``ports.blobs.BlobStore``."""

    aws: AwsClient
    names: Names

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        parts = _regroup(_stream(data) if isinstance(data, bytes) else data)
        first, second = await anext(parts, b""), await anext(parts, None)
        if second is not None:
            return await self._put_multipart(key, _stream(first, second, then=parts))
        await retry_unknown_outcome(
            lambda: self._call("put_object", alters=True, Key=key, Body=first)
        )
        return len(first)

    async def get(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self.stream(key)])

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        validate_key(key)
        version, offset, failures = "", 0, 0
        while True:
            answer = await self._open(key, version, offset)
            body, version, end = answer["Body"], answer["ETag"], offset + answer["ContentLength"]
            try:
                while chunk := await body.read(_CHUNK_BYTES):
                    offset, failures = offset + len(chunk), 0
                    yield chunk
            except _CONNECTION_ERRORS as error:
                failures += 1
                # At the end the checksum is wrong, and the data was returned already.
                if failures == _READ_ATTEMPTS or offset >= end:
                    raise BackendUnavailable(f"s3.get_object: {type(error).__name__}") from error
            else:
                return
            finally:
                body.close()

    async def _open(self, key: str, version: str, offset: int) -> AwsResponse:
        """Open a blob, or continue a version of it."""
        rest = {"Range": f"bytes={offset}-", "IfMatch": version} if version else {}
        expects = (_NO_SUCH_KEY, _PRECONDITION_FAILED)
        try:
            return await self._call("get_object", expects=expects, Key=key, **rest)
        except CallRefused as refused:
            if not version:
                raise NotFound("blob", key) from refused
            message = "s3.get_object: the blob was replaced or removed while it was read"
            raise BackendUnavailable(message) from refused

    async def size(self, key: str) -> int | None:
        validate_key(key)
        head = await self._head(key)
        return None if head is None else int(head["ContentLength"])

    async def delete(self, key: str) -> bool:
        validate_key(key)
        if await self._head(key) is None:
            return False
        await retry_unknown_outcome(lambda: self._call("delete_object", alters=True, Key=key))
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete up to a thousand blobs, whether they exist or not."""
        if not keys:
            return
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await retry_unknown_outcome(
            lambda: self._call("delete_objects", alters=True, Delete=objects)
        )
        if errors := answer.get("Errors"):
            raise BackendUnavailable(f"s3.delete_objects: {errors[0].get('Code')}")

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        keys: list[str] = []
        if limit <= 0:
            return keys
        # S3 orders by UTF-8 bytes, which is the order of code points.
        pages = self.aws.pages(
            "s3",
            "list_objects_v2",
            token=("NextContinuationToken", "ContinuationToken"),
            Bucket=self.names.bucket,
            Prefix=prefix,
            MaxKeys=min(limit, _LIST_LIMIT),
            **({"StartAfter": after} if after else {}),
        )
        async for page in pages:
            keys += [item["Key"] for item in page.get("Contents", ())]
            if len(keys) >= limit:
                break
        return keys[:limit]

    async def _put_multipart(self, key: str, parts: AsyncIterator[bytes]) -> int:
        token = new_token()
        # An upload whose answer is lost has no parts, costs nothing, and expires.
        upload_answer = await retry_unknown_outcome(
            lambda: self._call(
                "create_multipart_upload",
                alters=True,
                Key=key,
                ChecksumAlgorithm=_CHECKSUM,
                Metadata={_UPLOAD_METADATA_KEY: token},
            )
        )
        upload = {"Key": key, "UploadId": upload_answer["UploadId"]}
        try:
            size, sent = await self._upload_parts(upload, parts)
            await self._complete_upload(upload, sent, token)
        except BaseException:
            # The first error is raised, not one of the cleanup.
            with suppress(BackendError):
                await self._call("abort_multipart_upload", alters=True, **upload)
            raise
        return size

    async def _upload_parts(
        self, upload: dict[str, str], parts: AsyncIterator[bytes]
    ) -> tuple[int, list[AwsResponse]]:
        """Upload all parts, some concurrently. Returns their size, and their list for S3."""
        size = 0
        sending: list[asyncio.Task[AwsResponse]] = []
        try:
            async for part in parts:
                size += len(part)
                if len(sending) >= _PARALLEL_PARTS:
                    await sending[-_PARALLEL_PARTS]
                number = len(sending) + 1
                sending.append(asyncio.create_task(self._upload_part(upload, number, part)))
            return size, [await task for task in sending]
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _upload_part(self, upload: dict[str, str], number: int, part: bytes) -> AwsResponse:
        answer = await retry_unknown_outcome(
            lambda: self._call(
                "upload_part",
                alters=True,
                PartNumber=number,
                Body=part,
                ChecksumAlgorithm=_CHECKSUM,
                **upload,
            ),
            even_unavailable=True,  # one part must not fail the whole upload
        )
        sums = {name: answer[name] for name in answer if name.startswith("Checksum")}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    async def _complete_upload(
        self, upload: dict[str, str], sent: list[AwsResponse], token: str
    ) -> None:
        try:
            await retry_unknown_outcome(
                lambda: self._call(
                    "complete_multipart_upload",
                    alters=True,
                    expects=(_NO_SUCH_UPLOAD,),
                    MultipartUpload={"Parts": sent},
                    **upload,
                )
            )
        except CallRefused as refused:
            # An earlier attempt whose answer was lost has completed the upload, or it was aborted.
            head = await self._head(upload["Key"])
            if head is None or head.get("Metadata", {}).get(_UPLOAD_METADATA_KEY) != token:
                message = "s3.complete_multipart_upload: the upload is gone and was not completed"
                raise OutcomeUnknown(message) from refused

    async def _head(self, key: str) -> AwsResponse | None:
        try:
            return await self._call("head_object", expects=(_HEAD_NOT_FOUND,), Key=key)
        except CallRefused:
            return None

    async def _call(self, operation: str, **parameters: Any) -> AwsResponse:
        return await self.aws.call("s3", operation, Bucket=self.names.bucket, **parameters)


async def _stream(*chunks: bytes, then: AsyncIterator[bytes] | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if then is not None:
        async for chunk in then:
            yield chunk


async def _regroup(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Regroup chunks into parts, which grow, because an upload has at most 10,000 parts."""
    buffer = bytearray()
    number = 0
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= (size := PART_BYTES << number // _PARTS_PER_SIZE):
            yield bytes(buffer[:size])
            del buffer[:size]
            number += 1
    if buffer:
        yield bytes(buffer)
