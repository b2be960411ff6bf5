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
    translated: BackendError
    if isinstance(error, _CORRUPT):
        translated = StoreCorrupt("the database", str(error))
    elif isinstance(error, _TRANSIENT):
        translated = BackendUnavailable(str(error))
    elif isinstance(error, apsw.Error):
        translated = BackendRejected(str(error))
    else:
        return error
    translated.__cause__ = error
    return translated


def not_written(error: BaseException) -> BaseException:
    """The error for a failure before the commit: nothing was written, and a retry may succeed."""
    if isinstance(error, _CORRUPT):
        return translate_error(error)
    unavailable = BackendUnavailable(f"nothing was written: {error}")
    unavailable.__cause__ = error
    return unavailable


def outcome_unknown(error: BaseException) -> OutcomeUnknown:
    """The error for a failure of the commit itself: it may have been written."""
    unknown = OutcomeUnknown("the commit failed; read the rows to see if it was written")
    unknown.__cause__ = error
    return unknown
