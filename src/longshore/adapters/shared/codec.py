"""Rows as JSON text and back.

Fields that a newer version adds have defaults, and fields that it removed are ignored, so that
stores of neighbouring versions can be read. JSON can be read in the shell of a database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.jobs.numbers import NumberSet
from longshore.core.queues import QueuePause
from longshore.core.tasks.rows import JobRow, TaskRow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def encode_other(value: Any) -> Any:
    """The plain form of a value that msgspec does not know."""
    if isinstance(value, NumberSet):
        return value.to_text()
    raise NotImplementedError(type(value))


def decode_other(kind: type, value: Any) -> Any:
    """The inverse of ``encode_other``."""
    if kind is NumberSet:
        return NumberSet.from_text(value)
    raise NotImplementedError(kind)


_encoder = msgspec.json.Encoder(enc_hook=encode_other)
_task_from_json = msgspec.json.Decoder(TaskRow, dec_hook=decode_other).decode
job_from_json = msgspec.json.Decoder(JobRow, dec_hook=decode_other).decode
definition_from_json = msgspec.json.Decoder(Definition).decode
shared_budget_from_json = msgspec.json.Decoder(SharedBudget).decode
pause_from_json = msgspec.json.Decoder(QueuePause).decode
key_from_json = msgspec.json.Decoder(KeyRecord).decode
value_from_json = msgspec.json.Decoder().decode


def to_json(value: Any) -> str:
    """Any row or plain value as JSON text."""
    return _encoder.encode(value).decode()


def task_from_json(spec: str, body: str) -> TaskRow:
    """The task row from its two parts."""
    return _task_from_json(f'{{"spec":{spec},{body[1:]}')


def to_us(moment: datetime) -> int:
    """Whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """The inverse of ``to_us``."""
    return _EPOCH + timedelta(microseconds=us)
