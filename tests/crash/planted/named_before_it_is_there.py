"""A blob's row is written before its file has its name."""

from longshore.adapters.sqlite import blobs

_keep = blobs._Draft.keep
_name = blobs.SqliteBlobStore._name
# By the file's name: another blob that is named meanwhile must not keep this one's file.
_late: dict[str | None, blobs._Draft] = {}


async def _named(
    self: blobs.SqliteBlobStore, key: str, size: int, file: str | None, data: bytes | None
) -> int:
    named = await _name(self, key, size, file, data)
    if file in _late:
        _keep(_late.pop(file))
    return named


def _kept_later(self: blobs._Draft) -> None:
    _late[self.name] = self


blobs._Draft.keep = _kept_later
blobs.SqliteBlobStore._name = _named
