"""Translates errors of SQLite into those of Longshore. No other folder imports apsw."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from longshore.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    OutcomeUnknown,
    StoreCorrupt,
)

_CORRUPT = (apsw.NotADBError, apsw.CorruptError)
_TRANSIENT = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.IOError,
    apsw.FullError,
    apsw.NoMemError,
    apsw.CantOpenError,
    apsw.InterruptError,
    apsw.ProtocolError,
    apsw.SchemaChangeError,
)
# SQLite says "disk I/O error" or "unable to open database file" too if the disk is full.
_OF_FULL_DISK = (apsw.FullError, apsw.IOError, apsw.CantOpenError)
_FULL_BELOW_BYTES = 1 << 20


def text_of(error: BaseException, folder: Path) -> str:
    """The text of an error of the store in ``folder``, or that its disk is full."""
    if isinstance(error, _OF_FULL_DISK):
        free = shutil.disk_usage(folder).free
        if free < _FULL_BELOW_BYTES or isinstance(error, apsw.FullError):
            return _full_text(folder, free)
    return str(error)


def check_free_space(folder: Path) -> None:
    """Check that the disk is not full: a small write may succeed where a job finds no room.

    Raises:
        BackendUnavailable: it is.
    """
    free = shutil.disk_usage(folder).free
    if free < _FULL_BELOW_BYTES:
        raise BackendUnavailable(_full_text(folder, free))


def _full_text(folder: Path, free: int) -> str:
    return f"disk full: {folder} has {free:,} bytes free"


def translate_error(error: BaseException) -> BaseException:
    """The error of Longshore for an error of SQLite; other errors are returned unchanged."""
    if isinstance(error, _CORRUPT):
        return _caused_by(error, StoreCorrupt("the database", str(error)))
    if isinstance(error, _TRANSIENT):
        return _caused_by(error, BackendUnavailable(str(error)))
    if isinstance(error, apsw.Error):
        return _caused_by(error, BackendRejected(str(error)))
    return error


def not_written(error: BaseException, folder: Path) -> BaseException:
    """The error for a failure before the commit: nothing was written, and a retry may succeed."""
    if isinstance(error, _CORRUPT):
        return translate_error(error)
    return _caused_by(error, BackendUnavailable(f"nothing was written: {text_of(error, folder)}"))


def outcome_unknown(error: BaseException, folder: Path) -> BaseException:
    """The error for a failure of the commit itself: it may have been written."""
    text = text_of(error, folder)
    message = f"the commit failed ({text}); read the rows to see if it was written"
    return _caused_by(error, OutcomeUnknown(message))


def _caused_by(cause: BaseException, error: BackendError) -> BackendError:
    error.__cause__ = cause
    return error
