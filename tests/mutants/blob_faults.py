"""Faults that the blob store's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteBlobStore"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteBlobStoreInFour"
_MEMORY = "contract/test_memory.py::TestMemoryBlobStore"

_in_sqlite = partial(Fault, part=Part.BLOBS, file="adapters/sqlite/blobs.py")
_in_memory = partial(Fault, part=Part.BLOBS, file="adapters/memory/blobs.py")

BLOB_FAULTS = (
    _in_sqlite(
        name="the row before the file",
        old="            await _on_disk(key, draft.keep)\n"
        "            return await self._name(key, draft.size, draft.name, None)\n",
        new="            size = await self._name(key, draft.size, draft.name, None)\n"
        "            await _on_disk(key, draft.keep)\n"
        "            return size\n",
        caught_by=f"{_FOUR}::test_many_writers_and_readers_never_meet_in_one_blob",
    ),
    _in_sqlite(
        name="the old bytes are gone before the new ones are there",
        old="        draft = _Draft(self._folder)\n",
        new="        await self.delete(key)\n        draft = _Draft(self._folder)\n",
        caught_by=f"{_SQLITE}::test_the_old_bytes_are_read_until_the_new_ones_are_complete",
    ),
    _in_sqlite(
        name="a stream that breaks off is kept as far as it came",
        old="            async for piece in data:\n"
        "                await _on_disk(key, draft.add, piece)\n",
        new="            try:\n"
        "                async for piece in data:\n"
        "                    await _on_disk(key, draft.add, piece)\n"
        "            except ConnectionError:\n"
        "                pass\n",
        caught_by=f"{_SQLITE}::test_a_stream_that_breaks_off_leaves_the_old_bytes",
    ),
    _in_sqlite(
        name="a blob is never replaced",
        old="INSERT OR REPLACE INTO blobs",
        new="INSERT OR IGNORE INTO blobs",
        caught_by=f"{_SQLITE}::test_a_second_put_replaces_the_first",
    ),
    _in_sqlite(
        name="two blobs in one file",
        old="self.name = secrets.token_hex(16)",
        new='self.name = "0" * 32',
        caught_by=f"{_SQLITE}::test_every_key_that_is_one_names_a_blob_of_its_own",
    ),
    _in_sqlite(
        name="a file that is still named is removed",
        old="        replaced = await self._database.write(work)\n        self._remove(replaced)\n",
        new="        replaced = await self._database.write(work)\n"
        "        self._remove(replaced)\n        self._remove(file)\n",
        caught_by=f"{_SQLITE}::test_a_large_body_goes_in_and_out_in_pieces",
    ),
    _in_sqlite(
        name="a reader does not look again for a file that was replaced",
        old="if (await self.size(key)) is not None and self._file_of(key) == file:",
        new="if True:",
        caught_by=f"{_FOUR}::test_many_writers_and_readers_never_meet_in_one_blob",
    ),
    _in_sqlite(
        name="the last piece is dropped",
        old="while piece := await asyncio.to_thread(found.read, _PIECE_BYTES):",
        new="while len(piece := await asyncio.to_thread(found.read, _PIECE_BYTES))"
        " == _PIECE_BYTES:",
        caught_by=f"{_SQLITE}::test_a_second_put_replaces_the_first",
    ),
    _in_sqlite(
        name="a key is not looked at before a put",
        old="    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:\n"
        "        checked_key(key)\n",
        new="    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:\n",
        caught_by=f"{_SQLITE}::test_a_key_that_is_none_is_refused",
    ),
    _in_sqlite(
        name="a page of keys begins with the last of the one before",
        old="AND key > ?3 ORDER BY key",
        new="AND key >= ?3 ORDER BY key",
        caught_by=f"{_SQLITE}::test_the_pages_of_keys_give_each_once",
    ),
    _in_sqlite(
        name="an underscore stands for any sign",
        old="WHERE key >= ?1 AND key < ?2 AND",
        new="WHERE key LIKE ?1 || '%' AND ?2 IS NOT NULL AND",
        caught_by=f"{_SQLITE}::test_keys_are_listed_by_how_they_begin",
    ),
    _in_sqlite(
        name="what was not there counts as deleted",
        old="return bool(gone)",
        new="return True",
        caught_by=f"{_SQLITE}::test_a_blob_is_deleted_once",
    ),
    _in_memory(
        name="the old bytes in memory are gone before the new ones are there",
        old="        # Whole before it is stored",
        new='        self._blobs[key] = b""\n        # Whole before it is stored',
        caught_by=f"{_MEMORY}::test_a_stream_that_breaks_off_leaves_the_old_bytes",
    ),
    _in_memory(
        name="a reader in memory changes over to the new bytes",
        old="yield data[start : start + _PIECE_BYTES]",
        new="yield self._blobs[key][start : start + _PIECE_BYTES]",
        caught_by=f"{_MEMORY}::test_a_reader_that_has_begun_sees_one_version_to_the_end",
    ),
)
