"""Why a query to an agent brought no result: the reasons, and what each of them means.

One table: a reason's category, whether it is worth another attempt where the category alone would
say otherwise, and the sentence that tells whoever reads it what to do. What a status of the API
means stands in a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from longshore.core.error_categories import ErrorCategory

CREDENTIALS = "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"


class Reason(StrEnum):
    """Why a query did not bring a result."""

    DEADLINE = "deadline"
    TURNS = "turns"
    BUDGET = "budget"
    SHAPE = "shape"
    NO_RESULT = "no result"
    STOPPED = "stopped"
    SESSION_GONE = "session gone"
    SESSION_TAKEN = "session taken"
    BILLING = "billing"
    TOO_LONG = "too long"
    TROUBLE = "trouble"
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
class Meaning:
    """What a reason comes to; ``words`` may name ``{model}``, ``{status}``, ``{terminal}``."""

    category: ErrorCategory
    words: str
    retry: bool | None = None  # None: the category decides


def _means(category: ErrorCategory, words: str, *, retry: bool | None = None) -> Meaning:
    return Meaning(category=category, words=words, retry=retry)


_NO_CREDIT = (
    "the account has no credit left: add some, or give the worker another "
    f"{CREDENTIALS} and resume the task"
)

MEANINGS: Mapping[Reason, Meaning] = {
    Reason.DEADLINE: _means(ErrorCategory.TIMEOUT, "the time of the step was up"),
    Reason.TURNS: _means(
        ErrorCategory.VALIDATION,
        "the agent was not done at its limit of turns: raise maxTurns, or give the step less to do",
    ),
    Reason.BUDGET: _means(
        ErrorCategory.VALIDATION,
        "the agent was not done when its budget was spent: raise the budget, or give the step "
        "less to do",
    ),
    Reason.SHAPE: _means(
        ErrorCategory.PARSE, "the agent handed in no result that fits outputSchema", retry=True
    ),
    Reason.NO_RESULT: _means(ErrorCategory.CRASH, "the agent's CLI ended without a result"),
    Reason.STOPPED: _means(
        ErrorCategory.VALIDATION, "the agent was stopped before it was done ({terminal})"
    ),
    Reason.SESSION_GONE: _means(
        ErrorCategory.NOT_FOUND, "the agent's session is not here any more: it must begin anew"
    ),
    Reason.SESSION_TAKEN: _means(
        ErrorCategory.VALIDATION, "the agent's session has begun already: it must be resumed"
    ),
    Reason.BILLING: _means(ErrorCategory.AUTH, _NO_CREDIT),
    Reason.TOO_LONG: _means(
        ErrorCategory.VALIDATION,
        "the conversation is too long for model {model}: give the step a shorter input, or make "
        "two of it",
    ),
    Reason.TROUBLE: _means(ErrorCategory.NETWORK, "the API could not be asked"),
    Reason.STATUS: _means(ErrorCategory.UNKNOWN, "the API answered {status}"),
    Reason.INTERRUPTED: _means(ErrorCategory.TIMEOUT, "the agent was interrupted"),
    Reason.MALFORMED_CALLS: _means(
        ErrorCategory.PARSE,
        "the model kept calling tools in a form that nobody can read",
        retry=True,
    ),
    Reason.REFUSAL: _means(
        ErrorCategory.VALIDATION, "model {model} refused to do this: change the prompt or its input"
    ),
    Reason.USAGE_LIMIT: _means(
        ErrorCategory.RATE_LIMIT, "the usage limit of the credentials is reached for now"
    ),
    Reason.NETWORK: _means(ErrorCategory.NETWORK, "the connection to the API failed"),
    Reason.NO_ANSWER: _means(ErrorCategory.TIMEOUT, "the API did not answer in time"),
    Reason.NO_CREDENTIALS: _means(
        ErrorCategory.AUTH,
        f"there are no credentials for the model: set {CREDENTIALS} in the environment of the "
        "worker (a task's own environment never reaches the API) and start it again",
    ),
    Reason.OUTPUT_LIMIT: _means(
        ErrorCategory.VALIDATION,
        "one answer of model {model} was longer than it may be: ask for less at once, or for files",
    ),
    Reason.BAD_ANSWER: _means(
        ErrorCategory.PARSE, "what the API answered is no message", retry=True
    ),
    Reason.SERVER: _means(ErrorCategory.SERVER_ERROR, "the API failed"),
    Reason.EXECUTION: _means(ErrorCategory.VALIDATION, "the agent's CLI could not go on"),
    Reason.CLI_MISSING: _means(
        ErrorCategory.NOT_FOUND,
        "the Claude CLI is not installed where the worker runs: install longshore[agent] there "
        "(its wheel brings the CLI; there is none for Alpine)",
    ),
    Reason.CLI_START: _means(ErrorCategory.PROGRAMMING, "the agent's CLI could not be started"),
    Reason.CLI_SILENT: _means(
        ErrorCategory.TIMEOUT, "the agent's CLI was started and did not answer"
    ),
    Reason.CLI_ENDED: _means(ErrorCategory.CRASH, "the agent's CLI ended while it was needed"),
    Reason.CLI_KILLED: _means(ErrorCategory.CRASH, "the agent's CLI was killed"),
    Reason.CLI_OUTPUT: _means(
        ErrorCategory.PARSE, "what the agent's CLI said cannot be read", retry=True
    ),
    Reason.FOLDER_MISSING: _means(
        ErrorCategory.NOT_FOUND, "the working folder of the step is not there"
    ),
    Reason.OPTIONS: _means(
        ErrorCategory.VALIDATION, "the agent's CLI refused to start as the definition asks"
    ),
    Reason.RAISED: _means(ErrorCategory.UNKNOWN, "the query failed"),
    Reason.UNKNOWN: _means(ErrorCategory.UNKNOWN, "the agent failed in a way that is not known"),
}

_FAULTY = _means(ErrorCategory.VALIDATION, "the API found the request faulty ({status})")
_FAILING = _means(ErrorCategory.SERVER_ERROR, "the API has trouble of its own ({status})")
_SLOW = _means(ErrorCategory.TIMEOUT, "the API did not answer in time ({status})")

_STATUSES: Mapping[int, Meaning] = {
    401: _means(
        ErrorCategory.AUTH,
        f"the API does not accept the credentials (401): check {CREDENTIALS} of the worker",
    ),
    402: _means(ErrorCategory.AUTH, f"{_NO_CREDIT} (402)"),
    403: _means(
        ErrorCategory.AUTH,
        "the credentials may not do this with model {model} (403): give the worker an "
        f"{CREDENTIALS} that may",
    ),
    404: _means(
        ErrorCategory.NOT_FOUND,
        "the API has no model {model} (404): name another in the definition",
    ),
    408: _SLOW,
    413: _means(
        ErrorCategory.VALIDATION,
        "the request is too large for the API (413): give the step a smaller input",
    ),
    429: _means(ErrorCategory.RATE_LIMIT, "the API's rate limit is reached (429)"),
    504: _SLOW,
    529: _means(ErrorCategory.SERVER_ERROR, "the API is overloaded (529)"),
}


def meaning_of_status(status: int) -> Meaning:
    """What an answer of the API with this status comes to."""
    return _STATUSES.get(status, _FAILING if status >= 500 else _FAULTY)
