"""Rows as JSON text and back.

Fields that a newer version adds have defaults, fields that it dropped are ignored, so files of
neighbouring versions can be read. JSON, not a binary form, so that a person with a database's own
shell can see what is going on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.rows import JobRow, TaskRow, TaskSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _encode_other(value: Any) -> Any:
    if isinstance(value, NumberSet):
        return value.to_text()
    raise NotImplementedError(type(value))


def _decode_other(kind: type, value: Any) -> Any:
    if kind is NumberSet:
        return NumberSet.from_text(value)
    raise NotImplementedError(kind)


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_task_from_json = msgspec.json.Decoder(TaskRow, dec_hook=_decode_other).decode
job_from_json = msgspec.json.Decoder(JobRow, dec_hook=_decode_other).decode
definition_from_json = msgspec.json.Decoder(Definition).decode
shared_budget_from_json = msgspec.json.Decoder(SharedBudget).decode
key_from_json = msgspec.json.Decoder(KeyRecord).decode
value_from_json = msgspec.json.Decoder().decode


def to_json(value: Any) -> str:
    """Any row or plain value as JSON text."""
    return _encoder.encode(value).decode()


def spec_to_json(spec: TaskSpec) -> str:
    """The part of a task that is written once."""
    return to_json(spec)


def body_to_json(row: TaskRow) -> str:
    """The rest of it, which every transition writes."""
    changing = row.__dict__.copy()
    del changing["spec"]
    return to_json(changing)


def task_from_json(spec: str, body: str) -> TaskRow:
    """Both parts together."""
    return _task_from_json(f'{{"spec":{spec},{body[1:]}')


def to_us(moment: datetime) -> int:
    """Whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def optional_us(moment: datetime | None) -> int | None:
    """Likewise, where there may be none."""
    return None if moment is None else to_us(moment)


def from_us(us: int) -> datetime:
    """The moment these microseconds name."""
    return _EPOCH + timedelta(microseconds=us)
