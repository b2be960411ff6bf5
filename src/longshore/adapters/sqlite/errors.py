"""Translates errors of SQLite into those of Longshore. No other folder imports apsw."""

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
    """The error of Longshore for an error of SQLite; other errors are returned unchanged."""
    if isinstance(error, LongshoreError) or not isinstance(error, apsw.Error):
        return error
    return _with_cause(_classify(error), error)


def not_written(error: BaseException) -> BackendError:
    """The error for a failure before the commit: nothing was written, and a retry may succeed."""
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


def _with_cause(translated: BackendError, error: BaseException) -> BackendError:
    translated.__cause__ = error
    return translated
