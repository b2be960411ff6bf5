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

_PASSING = (
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


def translated(error: BaseException) -> BaseException:
    """The error as callers know it; errors that are not SQLite's pass unchanged."""
    if isinstance(error, LongshoreError) or not isinstance(error, apsw.Error):
        return error
    return _chained(_kind(error), error)


def not_done(error: BaseException) -> BackendError:
    """An error from before the commit: nothing was written, and it may work the next time."""
    message = f"nothing was written: {error}"
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return _chained(StoreCorrupt("the database", str(error)), error)
    return _chained(BackendUnavailable(message), error)


def _kind(error: apsw.Error) -> BackendError:
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt("the database", str(error))
    if isinstance(error, _PASSING):
        return BackendUnavailable(str(error))
    return BackendRejected(str(error))


def _chained(ours: BackendError, error: BaseException) -> BackendError:
    ours.__cause__ = error
    return ours
