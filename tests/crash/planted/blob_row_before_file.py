"""A blob's row is written before its file has its name."""

from pathlib import Path
from typing import BinaryIO

from longshore.adapters.sqlite import blobs

_persist = blobs._persist
_write_row = blobs.SqliteBlobStore._write_row
# By the file's name: another blob that is named meanwhile must not keep this one's file.
_late: dict[str | None, tuple[BinaryIO, Path, Path]] = {}


async def _write_row_early(
    self: blobs.SqliteBlobStore, key: str, size: int, file: str | None, data: bytes | None
) -> int:
    written = await _write_row(self, key, size, file, data)
    if file in _late:
        _persist(*_late.pop(file))
    return written


def _persist_late(file: BinaryIO, draft: Path, path: Path) -> None:
    _late[path.name] = (file, draft, path)


blobs._persist = _persist_late
blobs.SqliteBlobStore._write_row = _write_row_early
