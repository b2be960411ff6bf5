"""Endings as they come from the SDK, whose errors are known by their names and attributes alone."""

from typing import Any, ClassVar

from longshore.core.agents.failures import QueryEnding, QueryFailureReason, query_failure_of
from longshore.core.tasks.failures import Failure

MODEL = "claude-sonnet-5-5"


class ClaudeSDKError(Exception):
    pass


class CLIConnectionError(ClaudeSDKError):
    pass


class CLINotFoundError(CLIConnectionError):
    pass


class CLIJSONDecodeError(ClaudeSDKError):
    pass


class MessageParseError(ClaudeSDKError):
    # The frame that could not be read: never to be taken for a result.
    data: ClassVar = {"type": "system", "subtype": "strange"}


class ProcessError(ClaudeSDKError):
    def __init__(self, message: str = "Command failed", exit_code: int | None = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ResultError(ProcessError):
    def __init__(self, data: Any) -> None:
        super().__init__("Claude Code returned an error result")
        self.data = data


def frame(**fields: Any) -> dict[str, Any]:
    """A result that is an error, as the CLI writes it when the API has failed."""
    usual = {"subtype": "success", "is_error": True, "terminal_reason": "api_error"}
    return {**usual, "api_error_status": None, **fields}


def classify(
    error: BaseException | None, result: object = None, **seen: Any
) -> tuple[QueryFailureReason, Failure]:
    query_failure = query_failure_of(QueryEnding.from_query(error, result, model=MODEL, **seen))
    assert query_failure is not None
    return query_failure.reason, query_failure.failure


def classify_frame(fields: dict[str, Any], **seen: Any) -> tuple[QueryFailureReason, Failure]:
    return classify(ResultError(frame(**fields)), **seen)
