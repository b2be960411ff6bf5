"""A fake Messages API: the real Claude CLI runs against it, offline and without cost.

Examples and tests of agent tasks run a script here instead of paying for a model. ``MessagesApi``
runs in the event loop of a test, ``MessagesApiThread`` beside a test that blocks, and
``python -m verification.messages_api`` as a process. All of them listen on loopback only.
"""

from verification.messages_api.requests import Request, RequestState, ToolResult, repeated_requests
from verification.messages_api.script import (
    Answer,
    Script,
    Usage,
    error,
    hang,
    raw,
    reset,
    sse_error,
    stall,
    structured,
    text,
    tool_use,
    tool_uses,
    truncate,
)
from verification.messages_api.script_json import BadScript, read_scripts
from verification.messages_api.server import MessagesApi
from verification.messages_api.thread import MessagesApiThread

__all__ = [
    "Answer",
    "BadScript",
    "MessagesApi",
    "MessagesApiThread",
    "Request",
    "RequestState",
    "Script",
    "ToolResult",
    "Usage",
    "error",
    "hang",
    "raw",
    "read_scripts",
    "repeated_requests",
    "reset",
    "sse_error",
    "stall",
    "structured",
    "text",
    "tool_use",
    "tool_uses",
    "truncate",
]
