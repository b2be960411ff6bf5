"""A blob's row is written before its file has its name."""

from longshore.adapters.sqlite import blobs

_keep = blobs._Draft.persist
_name = blobs.SqliteBlobStore._write_row
# By the file's name: another blob that is named meanwhile must not keep this one's file.
_late: dict[str | None, blobs._Draft] = {}


async def _write_row_early(
    self: blobs.SqliteBlobStore, key: str, size: int, file: str | None, data: bytes | None
) -> int:
    named = await _name(self, key, size, file, data)
    if file in _late:
        _keep(_late.pop(file))
    return named


def _write_file_late(self: blobs._Draft) -> None:
    _late[self.name] = self


blobs._Draft.persist = _write_file_late
blobs.SqliteBlobStore._write_row = _write_row_early
