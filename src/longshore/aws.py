"""Parts for AWS that work without the rest of Longshore.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longshore.adapters.aws.heartbeat import HeartbeatLost, SQSHeartbeat

__all__ = ["HeartbeatLost", "SQSHeartbeat", "heartbeat_interval_sec"]

_EXPORTS = {
    "HeartbeatLost": "longshore.adapters.aws.heartbeat",
    "SQSHeartbeat": "longshore.adapters.aws.heartbeat",
}


def heartbeat_interval_sec() -> float:
    """Returns the interval of heartbeats: ``SQS_HEARTBEAT_INTERVAL_MS``, or the setting.

    For ``SQSHeartbeat(queue_url, receipt_handle, heartbeat_interval_sec())``.
    """
    from longshore.settings import load_settings

    return load_settings().aws.heartbeat_every.total_seconds()


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        message = f"module 'longshore.aws' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
