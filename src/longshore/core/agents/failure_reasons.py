"""Why a query to an agent brought no result: the reasons, and what each of them means.

One table: a reason's category, whether it is worth another attempt where the category alone would
say otherwise, and the sentence that tells whoever reads it what to do. What a status of the API
means stands in a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from longshore.core.tasks.error_categories import ErrorCategory

CREDENTIALS = "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"


class QueryFailureReason(StrEnum):
    """Why a query did not bring a result."""

    DEADLINE = "deadline"
    TURNS = "turns"
    BUDGET = "budget"
    SCHEMA_MISMATCH = "schema mismatch"
    NO_RESULT = "no result"
    STOPPED = "stopped"
    SESSION_MISSING = "session missing"
    SESSION_EXISTS = "session exists"
    BILLING = "billing"
    TOO_LONG = "too long"
    API_UNREACHABLE = "api unreachable"
    STATUS = "status"
    INTERRUPTED = "interrupted"
    MALFORMED_CALLS = "malformed calls"
    REFUSAL = "refusal"
    USAGE_LIMIT = "usage limit"
    NETWORK = "network"
    NO_ANSWER = "no answer"
    NO_CREDENTIALS = "no credentials"
    OUTPUT_LIMIT = "output limit"
    BAD_ANSWER = "bad answer"
    SERVER = "server"
    EXECUTION = "execution"
    CLI_MISSING = "cli missing"
    CLI_START = "cli start"
    CLI_SILENT = "cli silent"
    CLI_ENDED = "cli ended"
    CLI_KILLED = "cli killed"
    CLI_OUTPUT = "cli output"
    FOLDER_MISSING = "folder missing"
    OPTIONS = "options"
    RAISED = "raised"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMeaning:
    """What a reason comes to; ``words`` may name ``{model}``, ``{status}``, ``{terminal}``."""

    category: ErrorCategory
    text: str
    retry: bool | None = None  # None: the category decides


def _meaning(category: ErrorCategory, words: str, *, retry: bool | None = None) -> FailureMeaning:
    return FailureMeaning(category=category, text=words, retry=retry)


_NO_CREDIT = (
    "the account has no credit left: add some, or give the worker another "
    f"{CREDENTIALS} and resume the task"
)

MEANINGS: Mapping[QueryFailureReason, FailureMeaning] = {
    QueryFailureReason.DEADLINE: _meaning(ErrorCategory.TIMEOUT, "the time of the step was up"),
    QueryFailureReason.TURNS: _meaning(
        ErrorCategory.VALIDATION,
        "the agent was not done at its limit of turns: raise maxTurns, or give the step less to do",
    ),
    QueryFailureReason.BUDGET: _meaning(
        ErrorCategory.VALIDATION,
        "the agent was not done when its budget was spent: raise the budget, or give the step "
        "less to do",
    ),
    QueryFailureReason.SCHEMA_MISMATCH: _meaning(
        ErrorCategory.PARSE, "the agent handed in no result that fits outputSchema", retry=True
    ),
    QueryFailureReason.NO_RESULT: _meaning(
        ErrorCategory.CRASH, "the agent's CLI ended without a result"
    ),
    QueryFailureReason.STOPPED: _meaning(
        ErrorCategory.VALIDATION, "the agent was stopped before it was done ({terminal})"
    ),
    QueryFailureReason.SESSION_MISSING: _meaning(
        ErrorCategory.NOT_FOUND, "the agent's session is not here any more: it must begin anew"
    ),
    QueryFailureReason.SESSION_EXISTS: _meaning(
        ErrorCategory.VALIDATION, "the agent's session has begun already: it must be resumed"
    ),
    QueryFailureReason.BILLING: _meaning(ErrorCategory.AUTH, _NO_CREDIT),
    QueryFailureReason.TOO_LONG: _meaning(
        ErrorCategory.VALIDATION,
        "the conversation is too long for model {model}: give the step a shorter input, or make "
        "two of it",
    ),
    QueryFailureReason.API_UNREACHABLE: _meaning(
        ErrorCategory.NETWORK, "the API could not be asked"
    ),
    QueryFailureReason.STATUS: _meaning(ErrorCategory.UNKNOWN, "the API answered {status}"),
    QueryFailureReason.INTERRUPTED: _meaning(ErrorCategory.TIMEOUT, "the agent was interrupted"),
    QueryFailureReason.MALFORMED_CALLS: _meaning(
        ErrorCategory.PARSE,
        "the model kept calling tools in a form that nobody can read",
        retry=True,
    ),
    QueryFailureReason.REFUSAL: _meaning(
        ErrorCategory.VALIDATION, "model {model} refused to do this: change the prompt or its input"
    ),
    QueryFailureReason.USAGE_LIMIT: _meaning(
        ErrorCategory.RATE_LIMIT, "the usage limit of the credentials is reached for now"
    ),
    QueryFailureReason.NETWORK: _meaning(ErrorCategory.NETWORK, "the connection to the API failed"),
    QueryFailureReason.NO_ANSWER: _meaning(ErrorCategory.TIMEOUT, "the API did not answer in time"),
    QueryFailureReason.NO_CREDENTIALS: _meaning(
        ErrorCategory.AUTH,
        f"there are no credentials for the model: set {CREDENTIALS} in the environment of the "
        "worker (a task's own environment never reaches the API) and start it again",
    ),
    QueryFailureReason.OUTPUT_LIMIT: _meaning(
        ErrorCategory.VALIDATION,
        "one answer of model {model} was longer than it may be: ask for less at once, or for files",
    ),
    QueryFailureReason.BAD_ANSWER: _meaning(
        ErrorCategory.PARSE, "what the API answered is no message", retry=True
    ),
    QueryFailureReason.SERVER: _meaning(ErrorCategory.SERVER_ERROR, "the API failed"),
    QueryFailureReason.EXECUTION: _meaning(
        ErrorCategory.VALIDATION, "the agent's CLI could not go on"
    ),
    QueryFailureReason.CLI_MISSING: _meaning(
        ErrorCategory.NOT_FOUND,
        "the Claude CLI is not installed where the worker runs: install longshore[agent] there "
        "(its wheel brings the CLI; there is none for Alpine)",
    ),
    QueryFailureReason.CLI_START: _meaning(
        ErrorCategory.PROGRAMMING, "the agent's CLI could not be started"
    ),
    QueryFailureReason.CLI_SILENT: _meaning(
        ErrorCategory.TIMEOUT, "the agent's CLI was started and did not answer"
    ),
    QueryFailureReason.CLI_ENDED: _meaning(
        ErrorCategory.CRASH, "the agent's CLI ended while it was needed"
    ),
    QueryFailureReason.CLI_KILLED: _meaning(ErrorCategory.CRASH, "the agent's CLI was killed"),
    QueryFailureReason.CLI_OUTPUT: _meaning(
        ErrorCategory.PARSE, "what the agent's CLI said cannot be read", retry=True
    ),
    QueryFailureReason.FOLDER_MISSING: _meaning(
        ErrorCategory.NOT_FOUND, "the working folder of the step is not there"
    ),
    QueryFailureReason.OPTIONS: _meaning(
        ErrorCategory.VALIDATION, "the agent's CLI refused to start as the definition asks"
    ),
    QueryFailureReason.RAISED: _meaning(ErrorCategory.UNKNOWN, "the query failed"),
    QueryFailureReason.UNKNOWN: _meaning(
        ErrorCategory.UNKNOWN, "the agent failed in a way that is not known"
    ),
}

_INVALID_REQUEST = _meaning(ErrorCategory.VALIDATION, "the API found the request faulty ({status})")
_SERVER_FAILURE = _meaning(ErrorCategory.SERVER_ERROR, "the API has trouble of its own ({status})")
_TIMED_OUT = _meaning(ErrorCategory.TIMEOUT, "the API did not answer in time ({status})")

_STATUSES: Mapping[int, FailureMeaning] = {
    401: _meaning(
        ErrorCategory.AUTH,
        f"the API does not accept the credentials (401): check {CREDENTIALS} of the worker",
    ),
    402: _meaning(ErrorCategory.AUTH, f"{_NO_CREDIT} (402)"),
    403: _meaning(
        ErrorCategory.AUTH,
        "the credentials may not do this with model {model} (403): give the worker an "
        f"{CREDENTIALS} that may",
    ),
    404: _meaning(
        ErrorCategory.NOT_FOUND,
        "the API has no model {model} (404): name another in the definition",
    ),
    408: _TIMED_OUT,
    413: _meaning(
        ErrorCategory.VALIDATION,
        "the request is too large for the API (413): give the step a smaller input",
    ),
    429: _meaning(ErrorCategory.RATE_LIMIT, "the API's rate limit is reached (429)"),
    504: _TIMED_OUT,
    529: _meaning(ErrorCategory.SERVER_ERROR, "the API is overloaded (529)"),
}


def meaning_of_status(status: int) -> FailureMeaning:
    """What an answer of the API with this status comes to."""
    return _STATUSES.get(status, _SERVER_FAILURE if status >= 500 else _INVALID_REQUEST)
