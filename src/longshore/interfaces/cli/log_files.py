"""Logs of a worker or a supervisor in a file that does not grow for ever.

Only one process may write such a file, because two would rename it under each other's feet: the
supervisor writes what its workers say, and they write no file.
"""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from longshore.errors import ConfigurationError
from longshore.interfaces.cli.log_records import JsonRecords, TextRecords
from longshore.settings import Settings

_MAX_BYTES = 10 * 2**20
_BACKUPS = 5  # full files that are kept beside the current one


def log_to_file(settings: Settings, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
    """Send the records of this process to a file instead of stderr.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        handler = RotatingFileHandler(
            path,
            maxBytes=max_bytes,
            backupCount=_BACKUPS,
            encoding="utf-8",
            errors="backslashreplace",
        )
    except OSError as error:
        problem = f"log_file: {str(path)!r} cannot be written: {error.strerror}"
        raise ConfigurationError([problem]) from error
    handler.setFormatter(TextRecords() if settings.log_format == "text" else JsonRecords())
    logging.getLogger().handlers = [handler]


class WorkerLog:
    """Writes the lines of workers to where the records of this process go."""

    def __init__(self) -> None:
        (self._handler,) = logging.getLogger().handlers
        self._handler.setFormatter(_WorkerLogFormatter(self._handler.formatter or JsonRecords()))

    def write(self, number: int, line: str) -> None:
        """A line of one worker, with its number."""
        self._handler.handle(
            logging.makeLogRecord({_WORKER_LINE: with_worker_number(number, line)})
        )


_WORKER_LINE = "worker_line"


class _WorkerLogFormatter(logging.Formatter):
    """What workers said stays as it is: it has been formatted by them."""

    def __init__(self, default: logging.Formatter) -> None:
        super().__init__()
        self._default = default

    def format(self, record: logging.LogRecord) -> str:
        line: str | None = getattr(record, _WORKER_LINE, None)
        return self._default.format(record) if line is None else line


def with_worker_number(number: int, line: str) -> str:
    """A line with the number of the worker that said it; an object of JSON stays one."""
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"worker": {number}, {line[1:]}'
    return f"[{number}] {line}"
