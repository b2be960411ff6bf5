"""Translates errors of SQLite into those of Longshore. No other folder imports apsw."""

from __future__ import annotations

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


def translate_error(error: BaseException) -> BaseException:
    """The error of Longshore for an error of SQLite; other errors are returned unchanged."""
    if isinstance(error, _CORRUPT):
        return _caused_by(error, StoreCorrupt("the database", str(error)))
    if isinstance(error, _TRANSIENT):
        return _caused_by(error, BackendUnavailable(str(error)))
    if isinstance(error, apsw.Error):
        return _caused_by(error, BackendRejected(str(error)))
    return error


def not_written(error: BaseException) -> BaseException:
    """The error for a failure before the commit: nothing was written, and a retry may succeed."""
    if isinstance(error, _CORRUPT):
        return translate_error(error)
    return _caused_by(error, BackendUnavailable(f"nothing was written: {error}"))


def outcome_unknown(error: BaseException) -> BaseException:
    """The error for a failure of the commit itself: it may have been written."""
    message = "the commit failed; read the rows to see if it was written"
    return _caused_by(error, OutcomeUnknown(message))


def _caused_by(cause: BaseException, error: BackendError) -> BackendError:
    error.__cause__ = cause
    return error
