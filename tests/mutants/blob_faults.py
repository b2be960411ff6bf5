"""Faults that the blob store's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Condition, Drop, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteBlobStore"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteBlobStoreInFour"
_MEMORY = "contract/test_memory.py::TestMemoryBlobStore"

_fault = partial(Fault, part=Part.BLOBS)

BLOB_FAULTS = (
    _fault(
        name="the row before the file",
        at="adapters.sqlite.blobs:SqliteBlobStore._put_file",
        do=(
            Drop("_write_to_disk() _persist"),
            Replace(
                "return name",
                "size = $1\nawait _write_to_disk(key, _persist, file, draft, path)\nreturn size",
            ),
        ),
        caught_by=f"{_FOUR}::test_many_writers_and_readers_never_meet_in_one_blob",
    ),
    _fault(
        name="the old bytes are gone before the new ones are there",
        at="adapters.sqlite.blobs:SqliteBlobStore.put",
        do=After("validate_key()", "await self.delete(key)"),
        caught_by=f"{_SQLITE}::test_the_old_bytes_are_read_until_the_new_ones_are_complete",
    ),
    _fault(
        name="a stream that breaks off is kept as far as it came",
        at="adapters.sqlite.blobs:SqliteBlobStore._put_file",
        do=Replace("for", ("try:\n    $0\nexcept ConnectionError:\n    pass")),
        caught_by=f"{_SQLITE}::test_a_stream_that_breaks_off_leaves_the_old_bytes",
    ),
    _fault(
        name="a blob is never replaced",
        at="adapters.sqlite.blobs:SqliteBlobStore._write_row.work",
        do=Text("OR REPLACE", "OR IGNORE"),
        caught_by=f"{_SQLITE}::test_a_second_put_replaces_the_first",
    ),
    _fault(
        name="two blobs in one file",
        at="adapters.sqlite.blobs:SqliteBlobStore._put_file",
        do=Replace("token_hex()", "'0' * 32"),
        caught_by=f"{_SQLITE}::test_every_key_that_is_one_names_a_blob_of_its_own",
    ),
    _fault(
        name="a file that is still named is removed",
        at="adapters.sqlite.blobs:SqliteBlobStore._write_row",
        do=After("_remove()", "self._remove(file)"),
        caught_by=f"{_SQLITE}::test_a_large_body_is_written_and_read_in_chunks",
    ),
    _fault(
        name="a reader does not look again for a file that was replaced",
        at="adapters.sqlite.blobs:SqliteBlobStore._open",
        do=Condition("point_value()", True),
        caught_by=f"{_FOUR}::test_many_writers_and_readers_never_meet_in_one_blob",
    ),
    _fault(
        name="the last piece is dropped",
        at="adapters.sqlite.blobs:SqliteBlobStore.stream",
        do=Condition("to_thread()", "len($0) == _CHUNK_BYTES"),
        caught_by=f"{_SQLITE}::test_a_second_put_replaces_the_first",
    ),
    _fault(
        name="a key is not looked at before a put",
        at="adapters.sqlite.blobs:SqliteBlobStore.put",
        do=Drop("validate_key()"),
        caught_by=f"{_SQLITE}::test_a_key_that_is_none_is_refused",
    ),
    _fault(
        name="a page of keys begins with the last of the one before",
        at="adapters.sqlite.blobs:SqliteBlobStore.list_keys",
        do=Text("> ?3 ORDER", ">= ?3 ORDER"),
        caught_by=f"{_SQLITE}::test_the_pages_of_keys_give_each_once",
    ),
    _fault(
        name="an underscore is a wildcard",
        at="adapters.sqlite.blobs:SqliteBlobStore.list_keys",
        do=Text(">= ?1 AND key < ?2", "LIKE ?1 || '%' AND ?2 IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_keys_are_listed_by_how_they_begin",
    ),
    _fault(
        name="what was not there counts as deleted",
        at="adapters.sqlite.blobs:SqliteBlobStore.delete",
        do=Replace("bool()", "True"),
        caught_by=f"{_SQLITE}::test_a_blob_is_deleted_once",
    ),
    _fault(
        name="the old bytes in memory are gone before the new ones are there",
        at="testing.memory.keyed_stores:MemoryBlobStore.put",
        do=After("validate_key()", "self._blobs[key] = b''"),
        caught_by=f"{_MEMORY}::test_a_stream_that_breaks_off_leaves_the_old_bytes",
    ),
    _fault(
        name="a reader in memory changes over to the new bytes",
        at="testing.memory.keyed_stores:MemoryBlobStore.stream",
        do=Replace("[] _CHUNK_BYTES", "self._blobs[key][$2]"),
        caught_by=f"{_MEMORY}::test_a_reader_that_has_begun_sees_one_version_to_the_end",
    ),
)
