"""Blobs in S3: a key is a key, a blob an object, and what S3 shows is always one whole version.

Up to 8 MB go by one request. More, and a stream that turns out to be more, go in parts, a few at a
time, and are shown by the request that joins them. A put that fails in between takes back its
parts, and what even that misses is removed by the bucket's rule for uploads that were never
finished. A put holds about six parts in memory. Encryption is the bucket's default.

A reader whose connection breaks goes on where it was, but only in the version that it began with.

==========  ==========================================================
call        requests
==========  ==========================================================
``put``     1; in parts 2, and 1 for each 8 MB (fewer above 8 GB)
``get``     1, and 1 for each time the connection breaks
``stream``  likewise
``size``    1
``delete``  2, 1 if there is none
``keys``    1 for each 1,000
``url``     none
==========  ==========================================================

If the answer to a put or a delete is lost, it is made again: both do the same when done twice. Of
several who delete one blob at once each may be told that it was there. ``size`` and ``delete`` take
a bucket that does not exist for one without this blob, because S3 tells no more. The role needs
``s3:ListBucket``: without it S3 does not say that a blob is not there, but that it is denied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

# Some of its errors come through the client library as they are.
import aiohttp
from botocore.exceptions import BotoCoreError

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import new_token, retry_unknown_outcome
from longshore.core.documents import validate_key
from longshore.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    NotFound,
    OutcomeUnknown,
)

PART_BYTES = 8 * 1024 * 1024
"""What goes in one request; S3 wants at least 5 MB in every part but the last."""

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
        pieces = [piece async for piece in self.stream(key)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        validate_key(key)
        async with _BlobReader(self._aws, self._bucket, key) as reader:
            while piece := await reader.read():
                yield piece

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
        found: list[str] = []
        place = {"StartAfter": after} if after else {}
        while len(found) < limit:
            # S3 orders by the bytes of UTF-8, which is the order of the characters' numbers.
            answer = await self._call(
                "list_objects_v2",
                Prefix=prefix,
                MaxKeys=min(limit - len(found), _LIST_LIMIT),
                **place,
            )
            found += [each["Key"] for each in answer.get("Contents", ())]
            if not (more := answer.get("NextContinuationToken")):
                break
            place = {"ContinuationToken": more}
        return found

    async def url(self, key: str, *, expires_in: timedelta) -> str | None:
        """At most for a week, and not longer than the credentials that sign it."""
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
        mark = new_token()
        # One whose answer is lost has no parts, costs nothing, and goes by the bucket's rule.
        begun = await retry_unknown_outcome(
            lambda: self._call(
                "create_multipart_upload",
                alters=True,
                Key=key,
                ChecksumAlgorithm=_CHECKSUM,
                Metadata={_UPLOAD_METADATA_KEY: mark},
            )
        )
        upload = {"Key": key, "UploadId": begun["UploadId"]}
        try:
            size, sent = await self._upload_parts(upload, parts)
            await self._complete_upload(upload, sent, mark)
        except BaseException:
            # What went wrong is what the caller is to hear, not that this failed too.
            with suppress(BackendError):
                await self._call("abort_multipart_upload", alters=True, **upload)
            raise
        return size

    async def _upload_parts(
        self, upload: dict[str, str], parts: AsyncIterator[bytes]
    ) -> tuple[int, list[AwsResponse]]:
        """Send all parts, some at a time; their size, and what joins them."""
        size = 0
        sending: list[asyncio.Task[AwsResponse]] = []
        try:
            async for part in parts:
                size += len(part)
                if len(sending) >= _PARALLEL_PARTS:
                    await sending[-_PARALLEL_PARTS]
                number = len(sending) + 1
                sending.append(asyncio.create_task(self._upload_part(upload, number, part)))
            return size, [await each for each in sending]
        finally:
            for each in sending:
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _upload_part(self, upload: dict[str, str], number: int, part: bytes) -> AwsResponse:
        tries = 0
        while True:
            tries += 1
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
                # Throttled too: one part must not cost all the others.
                if tries == _PART_ATTEMPTS:
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
            # An upload is gone when it was joined, by a try whose answer was lost; or somebody
            # has thrown it away.
            head = await self._head(upload["Key"])
            if head is None or head.get("Metadata", {}).get(_UPLOAD_METADATA_KEY) != token:
                message = "s3.complete_multipart_upload: the upload is gone, and not what is there"
                raise OutcomeUnknown(message) from refused

    async def _head(self, key: str) -> AwsResponse | None:
        try:
            return await self._call("head_object", expects=(_HEAD_NOT_FOUND,), Key=key)
        except CallRefused:
            return None

    async def _call(self, operation: str, **parameters: Any) -> AwsResponse:
        return await self._aws.call("s3", operation, Bucket=self._bucket, **parameters)


class _BlobReader:
    """One version of a blob, read to its end, however often the connection breaks."""

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
        """The next piece; empty at the end."""
        tries = 0
        while True:
            tries += 1
            try:
                if self._body is None:
                    await self._resume()
                piece: bytes = await self._body.read(_CHUNK_BYTES)
            except _CONNECTION_ERRORS as error:
                self._close()
                # At the end it is the checksum that is wrong: what was read cannot be taken back.
                if tries == _READ_ATTEMPTS or self._offset >= self._size:
                    message = f"s3.get_object: {type(error).__name__}"
                    raise BackendUnavailable(message) from error
            else:
                self._offset += len(piece)
                return piece

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
    """The same bytes in parts, which grow, because an upload has at most 10,000 of them."""
    gathered = bytearray()
    number = 0
    async for piece in chunks:
        gathered += piece
        while len(gathered) >= (size := PART_BYTES << number // _PARTS_PER_SIZE):
            yield bytes(gathered[:size])
            del gathered[:size]
            number += 1
    if gathered:
        yield bytes(gathered)


async def _chain(first: bytes, second: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for part in others:
        yield part
