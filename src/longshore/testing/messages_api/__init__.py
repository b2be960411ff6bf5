"""A stand-in of the Messages API: the real Claude CLI runs against it, offline and for nothing.

Examples and tests of agent tasks play a script here instead of paying a model. ``MessagesApi`` runs
in the event loop of a test, ``MessagesApiThread`` beside a test that blocks, and
``python -m longshore.testing.messages_api`` as a process. All of them listen on loopback only.
"""

from longshore.testing.messages_api.reading import BadScript, read_scripts
from longshore.testing.messages_api.requests import Request, Stage, ToolResult, asked_again
from longshore.testing.messages_api.script import (
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
from longshore.testing.messages_api.server import MessagesApi
from longshore.testing.messages_api.threaded import MessagesApiThread

__all__ = [
    "Answer",
    "BadScript",
    "MessagesApi",
    "MessagesApiThread",
    "Request",
    "Script",
    "Stage",
    "ToolResult",
    "Usage",
    "asked_again",
    "error",
    "hang",
    "raw",
    "read_scripts",
    "reset",
    "sse_error",
    "stall",
    "structured",
    "text",
    "tool_use",
    "tool_uses",
    "truncate",
]
