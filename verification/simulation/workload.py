"""The actions of clients in a run, drawn before it starts.

They are a list, so that a failing run can be repeated with fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import chain
from random import Random
from typing import Any

from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.health import HealthThresholds
from longshore.core.tasks.backoff import RetryPolicy
from verification.simulation.spending import TASK_BUDGET

QUEUES = ("default", "other")
DEFINITIONS = (
    Definition(name="plain", runner=RunnerKind.PYTHON, isolation=Isolation.POOL),
    Definition(name="hasty", runner=RunnerKind.PYTHON, timeout=timedelta(seconds=4)),
    Definition(
        name="again",
        runner=RunnerKind.PYTHON,
        isolation=Isolation.POOL,
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
        retry=RetryPolicy(rate_limit_wait=timedelta(seconds=20)),
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
_MAX_CANCELLED_RESUMES = 3


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit a job; with ``twice``, as for all actions, two clients do it concurrently."""

    at: float
    request_id: str
    document: dict[str, Any]
    twice: bool = False


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command for a job.

    ``cancel`` the job or a task (``cancel task``); ``resume`` tasks that ended without a result;
    ``replay`` dead letters; ``review`` tasks in review; ``allow`` raises a budget.
    """

    at: float
    kind: str
    request_id: str
    seed: str
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Add:
    at: float
    request_id: str
    addition_id: str
    document: dict[str, Any]
    twice: bool = False


@dataclass(frozen=True, slots=True)
class QueueSwitch:
    at: float
    queue: str
    pause: bool
    twice: bool = False


Action = Submit | Add | OperatorCommand | QueueSwitch


def draw_actions(
    random_for: Callable[[str], Random], length: float, *, with_bursts: bool, repeats_late: bool
) -> list[Action]:
    """Draw the actions of a run, in no order.

    Args:
        random_for: A random generator for each purpose, so that a new kind of action does not
            change the others.
        length: The length of the run in seconds.
        with_bursts: Whether there are jobs of many short tasks.
        repeats_late: Whether clients repeat some submits when their jobs may be removed.
    """
    rng, extra_rng = random_for("people"), random_for("more people")
    submits = [_submission(rng, length, number) for number in range(1 + rng.randrange(MAX_JOBS))]
    requests = [submit.request_id for submit in submits]
    additions = [
        _addition(rng, length, f"addition-{number}", rng.choice(submits))
        for number in range(rng.randrange(_MAX_ADDITIONS))
    ]
    kinds = ("cancel", "resume", "resume", "resume", "replay", "review", "review")
    commands = [
        _command(rng, length, kinds, requests, f"command {number}")
        for number in range(rng.randrange(_MAX_COMMANDS))
    ]
    commands += [
        _command(extra_rng, length, ("cancel task", "review"), requests, f"more {number}")
        for number in range(extra_rng.randrange(_MAX_MORE_COMMANDS))
    ]
    pauses = [_pause(extra_rng, length) for _ in range(extra_rng.randrange(_MAX_PAUSES))]
    budget_rng = random_for("budgets")
    for submit in submits:
        if budget_rng.random() < 0.4:
            submit.document["budget"] = {"usd": budget_rng.choice((1.0, 2.0, 4.0))}
    commands += [
        _command(budget_rng, length, ("allow",), requests, f"allow {number}")
        for number in range(budget_rng.randrange(_MAX_ALLOWANCES))
    ]
    cancel_rng = random_for("cancelled resumes")
    for number in range(cancel_rng.randrange(_MAX_CANCELLED_RESUMES)):
        commands += _cancelled_resume(cancel_rng, length, requests, f"cancelled resume {number}")
    if repeats_late:
        late_rng = random_for("late repeats")
        submits += [replace(submit, at=length * (0.7 + late_rng.random())) for submit in submits]
    bursts = [_burst(random_for("bursts"), length)] if with_bursts else []
    return [*submits, *additions, *commands, *chain.from_iterable(pauses), *bursts]


def _submission(rng: Random, length: float, number: int) -> Submit:
    return Submit(
        at=rng.random() * length * 0.6,
        request_id=f"request-{number}",
        document={"tasks": _tasks(rng)},
        twice=rng.random() < 0.2,
    )


def _burst(rng: Random, length: float) -> Submit:
    size = rng.choice((0, 10, 20, 40))
    tasks = [{"taskId": f"t{number}", "name": "plain", "input": "work"} for number in range(size)]
    at = rng.random() * length * 0.6
    return Submit(at=at, request_id="burst", document={"tasks": tasks or _tasks(rng)})


def _addition(rng: Random, length: float, addition_id: str, submit: Submit) -> Add:
    existing = [task["taskId"] for task in submit.document["tasks"]]
    return Add(
        at=submit.at + rng.random() * length * 0.6,
        request_id=submit.request_id,
        addition_id=addition_id,
        document={"tasks": _tasks(rng, name=f"{addition_id}-t", existing=existing)},
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


def _cancelled_resume(
    rng: Random, length: float, requests: Sequence[str], seed: str
) -> list[OperatorCommand]:
    """A resume, and a cancellation of the same job that comes while it is in progress."""
    resume = replace(_command(rng, length, ("resume",), requests, seed), twice=False)
    return [resume, replace(resume, kind="cancel", at=resume.at + rng.random() * 0.5)]


def _pause(rng: Random, length: float) -> list[QueueSwitch]:
    """A pause and its end. Some pauses have no end: the run resumes these queues at last."""
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
            "name": rng.choice(
                ("plain", "plain", "reviewed", *(definition.name for definition in DEFINITIONS))
            ),
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
    """A kind of action that succeeded; the value describes it."""

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
    ADD_BUDGET = "a budget is raised"
    ALERT = "a channel is alerted"
    ALERT_RESOLVED = "a channel is informed that an alert is resolved"
