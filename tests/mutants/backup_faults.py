"""Faults that the tests of backups, restores and upgrades must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Value

_BACKUP = "adapters/sqlite/test_backup.py"
_RESTORE = "adapters/sqlite/test_restore.py"
_UPGRADE = "adapters/sqlite/test_upgrade.py"
_MAKING = "adapters.sqlite.backups.backup"
_RESTORING = "adapters.sqlite.backups.restore"
_FILES = "adapters.sqlite.blob_files"
_STORE = "adapters.sqlite.store_file"

_fault = partial(Fault, part=Part.BACKUPS)

BACKUP_FAULTS = (
    _fault(
        name="retention continues during a backup",
        at=f"{_FILES}:removal",
        do=Replace("_is_overdue()", "True"),
        caught_by=f"{_BACKUP}::test_a_file_stays_until_the_backup_has_ended",
    ),
    _fault(
        name="a backup that was frozen is finished",
        at=f"{_MAKING}:_Contents.write",
        do=Drop("check()"),
        caught_by=f"{_BACKUP}::test_a_backup_that_was_frozen_for_too_long_fails_and_hinders_nothing",
    ),
    _fault(
        name="two backups run at once",
        at=f"{_FILES}:pause_removal",
        do=Replace("LOCK_EX", "fcntl.LOCK_SH"),
        caught_by=f"{_BACKUP}::test_a_second_backup_is_refused_while_one_is_under_way",
    ),
    _fault(
        name="each step of a copy sees the latest rows",
        at=f"{_STORE}:copy_database",
        do=(Drop("execute() 'BEGIN'"), Drop("execute() 'COMMIT'")),
        caught_by=f"{_BACKUP}::test_what_is_committed_after_the_first_step_is_not_in_the_backup",
    ),
    _fault(
        name="a restored store continues in the epoch of the backup",
        at=f"{_RESTORING}:_prepare_database",
        do=Drop("begin_epoch()"),
        caught_by=f"{_RESTORE}::test_fences_of_a_restored_store_were_never_issued_before",
    ),
    _fault(
        name="two restores of one backup have the same epoch",
        at=f"{_RESTORING}:_prepare_database",
        do=Argument("begin_epoch()", 1, "before + 1"),
        caught_by=f"{_RESTORE}::test_fences_of_a_restored_store_were_never_issued_before",
    ),
    _fault(
        name="a restored store does not know where the epoch of the backup ended",
        at="adapters.sqlite.events:SqliteEventLog._check_exists",
        do=Replace("| epoch_ends", "{self._database.epoch: last_position}"),
        caught_by=f"{_RESTORE}::"
        "test_a_cursor_behind_the_backup_is_refused_and_says_where_to_read_again",
    ),
    _fault(
        name="a checksum is not compared",
        at=f"{_RESTORING}:_Reader._check",
        do=Condition("checksum !=", False),
        caught_by=f"{_RESTORE}::test_a_changed_backup_is_refused_and_nothing_is_left",
    ),
    _fault(
        name="any name in an archive is taken",
        at=f"{_RESTORING}:_Reader._is_known",
        do=Value("return", "True"),
        caught_by=f"{_RESTORE}::test_a_hostile_archive_is_refused_and_writes_nothing_outside",
    ),
    _fault(
        name="a restored store has the key of an earlier folder",
        at="wiring.services:restore",
        do=Drop("unlink()"),
        caught_by=f"{_RESTORE}::test_the_machine_gets_a_key_of_its_own",
    ),
    _fault(
        name="a file is migrated while others have it open",
        at=f"{_STORE}:migrate",
        do=Replace("live_processes()", "()"),
        caught_by=f"{_UPGRADE}::test_a_file_that_another_process_has_open_is_not_migrated",
    ),
    _fault(
        name="a process continues with a file of another schema",
        at="adapters.sqlite.writer:DatabaseWriter._check_schema",
        do=Condition("_schema", False),
        caught_by=f"{_UPGRADE}::test_a_process_whose_file_was_migrated_ends_and_writes_nothing",
    ),
    _fault(
        name="a file is migrated without a copy of it",
        at=f"{_STORE}:migrate",
        do=Drop("_copy_before_upgrade()"),
        caught_by=f"{_UPGRADE}::test_an_older_file_is_copied_before_it_is_migrated",
    ),
)
