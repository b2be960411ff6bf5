"""Which job or task a person means: the whole id, or as much of it as is enough.

``job-k3x`` is a job if only one begins so, ``k3x`` is the same, and ``job-k3x_fetch`` is a task of
that job. Nothing is ever chosen among several.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from longshore.core.ids import split_task_id
from longshore.errors import UsageError
from longshore.interfaces.cli.exit_codes import MissingResource

FindIds = Callable[[str], Awaitable[list[str]]]
"""Ids of jobs and tasks that begin so, in order, up to ``MAX_IDS``."""

_JOB = "job-"
_JOB_ID_LENGTH = 28
# The letters of base32, of which job ids are made.
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
MAX_IDS = 200
_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class EntityRef:
    """What was meant."""

    job_id: str
    task_id: str | None = None  # None: the job

    @property
    def entity(self) -> str:
        """As the event log names it."""
        return f"JOB#{self.job_id}" if self.task_id is None else f"TASK#{self.task_id}"


async def resolve(find_ids: FindIds, scope: str, text: str) -> EntityRef:
    """The job or task that a text means.

    Args:
        scope: where was looked, for whoever finds nothing.

    Raises:
        Missing: none does.
        UsageError: several do; the message lists them.
    """
    prefix, _, key = text.partition("_")
    jobs: list[str] = []
    for guess in (prefix.lower(), f"{_JOB}{prefix.lower()}"):
        begin = _JOB if _JOB.startswith(guess) else guess
        jobs = jobs or await _job_ids(find_ids, begin)
    if not jobs:
        raise _missing(text, scope)
    if len(jobs) > 1:
        raise _ambiguous(text, jobs)
    if "_" not in text:
        return EntityRef(jobs[0])
    tasks = await find_ids(f"{jobs[0]}_{key}")
    if not tasks:
        raise _missing(text, scope)
    if len(tasks) > 1 and tasks[0] != f"{jobs[0]}_{key}":
        raise _ambiguous(text, tasks)
    return EntityRef(jobs[0], tasks[0])


async def _job_ids(find_ids: FindIds, prefix: str) -> list[str]:
    """Ids of jobs that begin so: all of them, or at least two."""
    found = await find_ids(prefix)
    jobs = list(dict.fromkeys(split_task_id(one)[0] for one in found))
    if len(jobs) > 1 or len(found) < MAX_IDS or len(prefix) >= _JOB_ID_LENGTH:
        return jobs
    # The many tasks of one job hide what comes after it: look letter by letter.
    jobs = []
    for letter in _LETTERS:
        jobs += await _job_ids(find_ids, prefix + letter)
    return jobs


def _missing(text: str, scope: str) -> MissingResource:
    return MissingResource(
        f"no job or task {scope} begins with {text!r}",
        "`longshore jobs` lists what there is",
    )


def _ambiguous(text: str, candidates: list[str]) -> UsageError:
    shown = "\n  ".join(candidates[:_MAX_SHOWN])
    more = "\n  …" if len(candidates) > _MAX_SHOWN else ""
    return UsageError(f"{text!r} could be any of these; add a letter or two:\n  {shown}{more}")
