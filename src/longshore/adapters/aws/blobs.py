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
``delete``  2, 1 if there is none
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
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
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
    BackendRejected,
    BackendUnavailable,
    NotFound,
    OutcomeUnknown,
)

PART_BYTES = 8 * 1024 * 1024
"""The size of one request; S3 wants at least 5 MB in every part but the last."""

_PARALLEL_PARTS = 4
_PARTS_PER_SIZE = 1000
_PART_ATTEMPTS = 3
_CHUNK_BYTES = 256 * 1024
_READ_ATTEMPTS = 3
_LIST_LIMIT = 1000  # S3's limit
_URL_LIFETIME_LIMIT = timedelta(days=7)  # S3's limit
_CONNECTION_ERRORS = (BotoCoreError, aiohttp.ClientError, OSError, TimeoutError)
_UPLOAD_METADATA_KEY = "longshore-upload"
_CHECKSUM = "CRC32"
_NO_SUCH_KEY, _HEAD_NOT_FOUND, _NO_SUCH_UPLOAD = "NoSuchKey", "404", "NoSuchUpload"
_PRECONDITION_FAILED = "PreconditionFailed"


class S3BlobStore:
    """See ``ports.blobs.BlobStore``."""

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._aws = aws
        self._bucket = names.bucket

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        if isinstance(data, bytes):
            if len(data) <= PART_BYTES:
                return await self._put_whole(key, data)
            data = _split(data)
        parts = _regroup_parts(data)
        first = await anext(parts, b"")
        second = await anext(parts, None)
        if second is None:
            return await self._put_whole(key, first)
        return await self._put_multipart(key, _chain(first, second, parts))

    async def get(self, key: str) -> bytes:
        chunks = [chunk async for chunk in self.stream(key)]
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        validate_key(key)
        async with _BlobReader(self._aws, self._bucket, key) as reader:
            while chunk := await reader.read():
                yield chunk

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

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        keys: list[str] = []
        start = {"StartAfter": after} if after else {}
        while len(keys) < limit:
            # S3 orders by UTF-8 bytes, which is the order of code points.
            answer = await self._call(
                "list_objects_v2",
                Prefix=prefix,
                MaxKeys=min(limit - len(keys), _LIST_LIMIT),
                **start,
            )
            keys += [item["Key"] for item in answer.get("Contents", ())]
            if not (token := answer.get("NextContinuationToken")):
                break
            start = {"ContinuationToken": token}
        return keys

    async def url(self, key: str, *, expires_in: timedelta) -> str | None:
        """A URL that is valid for a week at most, and not longer than the credentials."""
        validate_key(key)
        client = await self._aws.client("s3")
        seconds = int(min(expires_in, _URL_LIFETIME_LIMIT).total_seconds())
        try:
            address: str = await client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket, "Key": key},
                ExpiresIn=max(seconds, 1),
            )
        except BotoCoreError as error:
            message = f"s3.generate_presigned_url: {type(error).__name__}"
            raise BackendRejected(message) from error
        return address

    async def _put_whole(self, key: str, data: bytes) -> int:
        await retry_unknown_outcome(
            lambda: self._call("put_object", alters=True, Key=key, Body=data)
        )
        return len(data)

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
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await self._call(
                    "upload_part",
                    alters=True,
                    PartNumber=number,
                    Body=part,
                    ChecksumAlgorithm=_CHECKSUM,
                    **upload,
                )
            except BackendUnavailable:
                # Retried even if throttled: one part must not fail the whole upload.
                if attempt == _PART_ATTEMPTS:
                    raise
            else:
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
        return await self._aws.call("s3", operation, Bucket=self._bucket, **parameters)


class _BlobReader:
    """Reads one version of a blob to its end, and reconnects if the connection breaks."""

    def __init__(self, aws: AwsClient, bucket: str, key: str) -> None:
        self._aws = aws
        self._blob: dict[str, Any] = {"Bucket": bucket, "Key": key}
        self._body: Any = None
        self._version = ""
        self._size = 0
        self._offset = 0

    async def __aenter__(self) -> _BlobReader:
        try:
            answer = await self._get(_NO_SUCH_KEY)
        except CallRefused as refused:
            raise NotFound("blob", self._blob["Key"]) from refused
        self._body, self._version, self._size = (
            answer["Body"],
            answer["ETag"],
            answer["ContentLength"],
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    async def read(self) -> bytes:
        """The next chunk; empty at the end."""
        attempt = 0
        while True:
            attempt += 1
            try:
                if self._body is None:
                    await self._resume()
                chunk: bytes = await self._body.read(_CHUNK_BYTES)
            except _CONNECTION_ERRORS as error:
                self._close()
                # At the end the checksum is wrong, and the data was returned already.
                if attempt == _READ_ATTEMPTS or self._offset >= self._size:
                    message = f"s3.get_object: {type(error).__name__}"
                    raise BackendUnavailable(message) from error
            else:
                self._offset += len(chunk)
                return chunk

    async def _resume(self) -> None:
        try:
            answer = await self._get(
                _NO_SUCH_KEY,
                _PRECONDITION_FAILED,
                Range=f"bytes={self._offset}-",
                IfMatch=self._version,
            )
        except CallRefused as refused:
            message = "s3.get_object: the blob was replaced or removed while it was read"
            raise BackendUnavailable(message) from refused
        self._body = answer["Body"]

    async def _get(self, *expects: str, **more: Any) -> AwsResponse:
        return await self._aws.call("s3", "get_object", expects=expects, **self._blob, **more)

    def _close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


async def _split(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), PART_BYTES):
        yield data[at : at + PART_BYTES]


async def _regroup_parts(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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


async def _chain(first: bytes, second: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for part in others:
        yield part
