"""How log records look on stderr: lines for a person, or one JSON object a line for a program.

A record is an event name and fields. Whatever it says goes through the masking of secrets, since a
log travels further than anybody expects.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from longshore.core.text.sanitise import mask_mapping, mask_secrets

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_VERBOSE_LEVEL = logging.INFO


def configure_logging(*, level: int, style: Literal["auto", "text", "json"]) -> None:
    """Send the records of this process to stderr, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextRecords() if text else JsonRecords())
    ours, root = logging.getLogger("longshore"), logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    ours.setLevel(level)


def level_for(verbose: int, default: int) -> int:
    """The level that ``-v`` asks for; without it the command's usual one."""
    if verbose >= 2:
        return logging.DEBUG
    return min(default, _VERBOSE_LEVEL) if verbose else default


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


class TextRecords(logging.Formatter):
    """``12:01:05 warning  lease.lost  task_id=… fence=7``."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        fields = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items())
        line = f"{moment:%H:%M:%S} {record.levelname.lower():7}  {record.getMessage()}  {fields}"
        if record.exc_info:
            line = f"{line.rstrip()}\n{self.formatException(record.exc_info)}"
        return mask_secrets(line.rstrip())


class JsonRecords(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        # Masked value by value: on the finished line a rule might take a quotation mark along.
        plain = json.loads(json.dumps(document, default=str))
        return json.dumps(mask_mapping(plain), ensure_ascii=False)


def _plain(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text
