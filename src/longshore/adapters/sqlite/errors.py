"""SQLite's errors, told in Longshore's words; nothing above this folder knows apsw."""

from __future__ import annotations

import apsw

from longshore.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    LongshoreError,
    StoreCorrupt,
)

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
    """The error as callers know it; errors that are not SQLite's pass unchanged."""
    if isinstance(error, LongshoreError) or not isinstance(error, apsw.Error):
        return error
    return _with_cause(_classify(error), error)


def not_written(error: BaseException) -> BackendError:
    """An error from before the commit: nothing was written, and it may work the next time."""
    message = f"nothing was written: {error}"
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return _with_cause(StoreCorrupt("the database", str(error)), error)
    return _with_cause(BackendUnavailable(message), error)


def _classify(error: apsw.Error) -> BackendError:
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt("the database", str(error))
    if isinstance(error, _TRANSIENT):
        return BackendUnavailable(str(error))
    return BackendRejected(str(error))


def _with_cause(ours: BackendError, error: BaseException) -> BackendError:
    ours.__cause__ = error
    return ours
