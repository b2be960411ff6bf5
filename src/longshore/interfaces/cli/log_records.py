"""Log records: text for a person or one JSON object per line, on stderr or in a file.

A record is an event name and fields. Secrets are masked in all of it.

Only one process may write a log file, because two would rotate it at the same time: the supervisor
writes the lines of its workers, and the workers write no file.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longshore.core.text.sanitise import mask_mapping, mask_secrets
from longshore.errors import ConfigurationError

if TYPE_CHECKING:
    from longshore.settings import Settings

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_WORKER_LINE = "worker_line"
_MAX_BYTES = 10 * 2**20
_BACKUPS = 5  # full files that are kept beside the current one


def configure_logging(*, level: int, style: Literal["auto", "text", "json"]) -> None:
    """Send the records of this process to stderr, from this level up."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextRecords() if text else JsonRecords())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("longshore").setLevel(level)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


class _Records(logging.Formatter):
    """Leaves the lines of worker processes as they are: the workers have formatted them."""

    def format(self, record: logging.LogRecord) -> str:
        line: str | None = getattr(record, _WORKER_LINE, None)
        return self.text_of(record) if line is None else line

    def text_of(self, record: logging.LogRecord) -> str:
        raise NotImplementedError


class TextRecords(_Records):
    """``12:01:05 warning  lease.lost  task_id=… fence=7``."""

    def text_of(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        fields = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items())
        line = f"{at:%H:%M:%S} {record.levelname.lower():7}  {record.getMessage()}  {fields}"
        if record.exc_info:
            line = f"{line.rstrip()}\n{self.formatException(record.exc_info)}"
        return mask_secrets(line.rstrip())


class JsonRecords(_Records):
    """One JSON object per line."""

    def text_of(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        # Masked value by value: in the finished line, a match could include a quotation mark.
        plain = json.loads(json.dumps(document, default=str))
        return json.dumps(mask_mapping(plain), ensure_ascii=False)


def _plain(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text


def log_to_file(settings: Settings, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
    """Send the records of this process to a rotating file instead of stderr.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
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


def write_worker_line(number: int, line: str) -> None:
    """Write a line of the worker process with this number to the log of this process."""
    record = logging.makeLogRecord({_WORKER_LINE: with_worker_number(number, line)})
    for handler in logging.getLogger().handlers:
        handler.handle(record)


def with_worker_number(number: int, line: str) -> str:
    """The line with the number of its worker; a JSON object stays a JSON object."""
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"worker": {number}, {line[1:]}'
    return f"[{number}] {line}"
