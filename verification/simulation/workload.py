"""What people do in a run, drawn before it begins.

It is a list, so that a failing run can be tried again with less of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import chain
from random import Random
from typing import Any

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.health import HealthThresholds
from longshore.core.tasks.backoff import RetryPolicy
from verification.simulation.spending import TASK_BUDGET

QUEUES = ("default", "other")
DEFINITIONS = (
    Definition(name="plain", runner=RunnerKind.PYTHON),
    Definition(name="hasty", runner=RunnerKind.PYTHON, timeout=timedelta(seconds=4)),
    Definition(
        name="again",
        runner=RunnerKind.PYTHON,
        timeout=timedelta(seconds=6),
        retry_on_timeout=True,
        retry=RetryPolicy(max_attempts=4),
        health=HealthThresholds(longest_run=timedelta(seconds=4)),
    ),
    Definition(name="reviewed", runner=RunnerKind.PYTHON, requires_review=True),
    # An agent, so that a rate limit of its model holds the queue.
    Definition(
        name="elsewhere",
        runner=RunnerKind.AGENT,
        options={"prompt": "Do it.", "budget": {"usd": TASK_BUDGET.usd}},
        timeout=timedelta(seconds=40),
        queue="other",
    ),
)
MAX_JOBS = 5
MAX_TASKS = 7
_MAX_COMMANDS = 10
_MAX_ADDITIONS = 4
_MAX_MORE_COMMANDS = 5
_MAX_PAUSES = 3
_MAX_ALLOWANCES = 3


@dataclass(frozen=True, slots=True)
class Submit:
    """Somebody submits a job; with ``twice``, as with all acts, two do at once."""

    at: float
    request_id: str
    document: dict[str, Any]
    twice: bool = False


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """Somebody wants something of a job.

    ``cancel`` it, or one of its tasks (``cancel task``); ``resume`` what has ended without a
    result; ``replay`` what is dead; ``review`` what waits for that; ``allow`` more to be spent on
    it, or on one of its tasks.
    """

    at: float
    kind: str
    request_id: str
    seed: str
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Add:
    """Somebody adds tasks to a job."""

    at: float
    request_id: str
    addition_id: str
    document: dict[str, Any]
    twice: bool = False


@dataclass(frozen=True, slots=True)
class QueueSwitch:
    """Somebody pauses a queue, or resumes it."""

    at: float
    queue: str
    pause: bool
    twice: bool = False


Action = Submit | Add | OperatorCommand | QueueSwitch


def draw_actions(random_for: Callable[[str], Random], length: float) -> list[Action]:
    """What people do in a run that lasts so long, in no order.

    Args:
        chance: Numbers of its own for each purpose: one more kind of act leaves the others as
            they are.
    """
    rng, more = random_for("people"), random_for("more people")
    submits = [_submission(rng, length, number) for number in range(1 + rng.randrange(MAX_JOBS))]
    requests = [submit.request_id for submit in submits]
    additions = [
        _addition(rng, length, f"addition-{number}", rng.choice(submits))
        for number in range(rng.randrange(_MAX_ADDITIONS))
    ]
    kinds = ("cancel", "resume", "resume", "resume", "replay", "review", "review")
    wishes = [
        _command(rng, length, kinds, requests, f"wish {number}")
        for number in range(rng.randrange(_MAX_COMMANDS))
    ]
    wishes += [
        _command(more, length, ("cancel task", "review"), requests, f"more {number}")
        for number in range(more.randrange(_MAX_MORE_COMMANDS))
    ]
    pauses = [_pause(more, length) for _ in range(more.randrange(_MAX_PAUSES))]
    bank = random_for("budgets")
    for submit in submits:
        if bank.random() < 0.4:
            submit.document["budget"] = {"usd": bank.choice((1.0, 2.0, 4.0))}
    wishes += [
        _command(bank, length, ("allow",), requests, f"allow {number}")
        for number in range(bank.randrange(_MAX_ALLOWANCES))
    ]
    return [*submits, *additions, *wishes, *chain.from_iterable(pauses)]


def _submission(rng: Random, length: float, number: int) -> Submit:
    return Submit(
        at=rng.random() * length * 0.6,
        request_id=f"request-{number}",
        document={"tasks": _tasks(rng)},
        twice=rng.random() < 0.2,
    )


def _addition(rng: Random, length: float, addition_id: str, submit: Submit) -> Add:
    there = [task["taskId"] for task in submit.document["tasks"]]
    return Add(
        at=submit.at + rng.random() * length * 0.6,
        request_id=submit.request_id,
        addition_id=addition_id,
        document={"tasks": _tasks(rng, name=f"{addition_id}-t", existing=there)},
        twice=rng.random() < 0.3,
    )


def _command(
    rng: Random, length: float, kinds: Sequence[str], requests: Sequence[str], seed: str
) -> OperatorCommand:
    return OperatorCommand(
        at=rng.random() * length * 1.2,
        kind=rng.choice(kinds),
        request_id=rng.choice(requests),
        seed=seed,
        twice=rng.random() < 0.3,
    )


def _pause(rng: Random, length: float) -> list[QueueSwitch]:
    """A pause, and its end; whoever forgets that leaves it to those who see to it in the end."""
    begin, queue = rng.random() * length, rng.choice(QUEUES)
    end = begin + rng.random() * length * 0.5
    switches = [QueueSwitch(begin, queue, pause=True, twice=rng.random() < 0.3)]
    if rng.random() < 0.8:
        switches.append(QueueSwitch(end, queue, pause=False, twice=rng.random() < 0.3))
    return switches


def _tasks(rng: Random, *, name: str = "t", existing: Sequence[str] = ()) -> list[dict[str, Any]]:
    size = rng.choice((1, 1, 2, 3, 4, MAX_TASKS))
    tasks: list[dict[str, Any]] = []
    for number in range(size):
        before = [*existing, *(task["taskId"] for task in tasks)]
        parents = [key for key in before if rng.random() < 0.35]
        task: dict[str, Any] = {
            "taskId": f"{name}{number}",
            "name": rng.choice(("plain", "plain", "reviewed", *(one.name for one in DEFINITIONS))),
            "input": rng.choices(("work", "fails", "impossible"), (20, 4, 1), k=1)[0],
        }
        if parents:
            task["dependsOn"] = parents
        if rng.random() < 0.2:
            task["delay"] = rng.randrange(1, 40)
        if rng.random() < 0.3:
            task["priority"] = rng.choice(("high", "normal", "low"))
        if rng.random() < 0.2:
            task["maxAttempts"] = rng.choice((1, 2, 5))
        tasks.append(task)
    return tasks


class ActionKind(StrEnum):
    """A kind of act that was carried out; the value says what it is."""

    SUBMIT = "a job is submitted"
    ADD_TASKS = "tasks are added"
    CANCEL = "a job is cancelled"
    CANCEL_TASK = "a task is cancelled"
    RESUME = "tasks are resumed"
    REPLAY = "dead letters are replayed"
    APPROVE = "a result is approved"
    REQUEST_REVISION = "a result is sent back"
    PAUSE_QUEUE = "a queue is paused"
    RESUME_QUEUE = "a pause is ended"
    HOLD_QUEUE = "a queue is held"
    ADD_BUDGET = "more is allowed to be spent"
    ALERT = "a channel is told of a problem"
    ALERT_RESOLVED = "a channel is told that a problem is over"
