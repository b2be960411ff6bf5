"""What people do in a run: submit, add, cancel, resume, replay, review, put nonsense on the queue.

Everything is drawn before the run begins, as a list, so that a failing run can be tried again with
less of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from longshore.core import commands as c
from longshore.core.backoff import RetryPolicy
from longshore.core.definition import Definition, RunnerKind
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.messages import body_for
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, CommandRefused, Conflict, NotFound
from longshore.ports.queue import Outgoing
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.processes import Process
from longshore.testing.simulation.world import TENANT, World

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
    ),
    Definition(name="reviewed", runner=RunnerKind.PYTHON, requires_review=True),
    Definition(name="elsewhere", runner=RunnerKind.PYTHON, queue="other"),
)
_MOST_JOBS = 5
_MOST_TASKS = 7
_MOST_WISHES = 10
_MOST_ADDITIONS = 4
_CLIENT_TRIES = 8
_WORN_OUT = "worn-out"


@dataclass(frozen=True, slots=True)
class Submit:
    """Somebody submits a job; with ``twice``, as with wishes, two do at once."""

    at: float
    request_id: str
    document: dict[str, Any]
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody wants something of a job: ``cancel``, ``resume``, ``replay`` or ``review``."""

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


Act = Submit | Add | Wish


def drawn(rng: Random, length: float) -> list[Act]:
    """What people do in a run that lasts so long, in no order."""
    acts: list[Any] = []
    requests = []
    for number in range(1 + rng.randrange(_MOST_JOBS)):
        request_id = f"request-{number}"
        requests.append(request_id)
        acts.append(
            Submit(
                at=rng.random() * length * 0.6,
                request_id=request_id,
                document={"tasks": _tasks(rng)},
                twice=rng.random() < 0.2,
            )
        )
    acts += [
        _addition(rng, length, f"addition-{number}", rng.choice(acts))
        for number in range(rng.randrange(_MOST_ADDITIONS))
    ]
    kinds = ("cancel", "resume", "resume", "resume", "replay", "review", "review")
    acts += [
        Wish(
            at=rng.random() * length * 1.2,
            kind=rng.choice(kinds),
            request_id=rng.choice(requests),
            seed=f"wish {number}",
            twice=rng.random() < 0.3,
        )
        for number in range(rng.randrange(_MOST_WISHES))
    ]
    return acts


def _addition(rng: Random, length: float, addition_id: str, to: Submit) -> Add:
    there = [task["taskId"] for task in to.document["tasks"]]
    return Add(
        at=to.at + rng.random() * length * 0.6,
        request_id=to.request_id,
        addition_id=addition_id,
        document={"tasks": _tasks(rng, name=f"{addition_id}-t", there=there)},
        twice=rng.random() < 0.3,
    )


def _tasks(rng: Random, *, name: str = "t", there: Sequence[str] = ()) -> list[dict[str, Any]]:
    size = rng.choice((1, 1, 2, 3, 4, _MOST_TASKS))
    tasks: list[dict[str, Any]] = []
    for number in range(size):
        before = [*there, *(task["taskId"] for task in tasks)]
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


class People:
    """Carry out what was drawn, each act from a process of its own that may die of it."""

    def __init__(self, world: World, process: Callable[[str], Process]) -> None:
        self.accepted: dict[str, dict[str, Any]] = {}  # by request id: what was answered to
        self.refused: dict[tuple[str, str], str] = {}  # by client, and job or task: why
        # By request id: what was to be added, and whether anybody was told that it is.
        self.added: dict[tuple[str, str], tuple[dict[str, Any], bool]] = {}
        self._calls: Counter[str] = Counter()  # by request id: how often it was submitted
        self._world = world
        self._process = process

    async def begin(self) -> None:
        """Store the definitions, before anything can go wrong."""
        for definition in DEFINITIONS:
            await self._world.backend.definitions.put(TENANT, definition)

    def all_of(self, acts: Sequence[Act]) -> list[asyncio.Task[None]]:
        """Begin all of it, each at its time; the tasks are done when it is."""
        return [
            self._world.begin(self._act(act, f"client-{number}.{copy}"))
            for number, act in enumerate(acts)
            for copy in range(2 if act.twice else 1)
        ]

    async def _act(self, act: Act, name: str) -> None:
        await asyncio.sleep(act.at)
        doing = self._doing(act)
        for number in range(_CLIENT_TRIES):
            process = self._process(f"{name}.{number}")
            answered = self._world.begin(self._safely(doing, process))
            await process.over.wait()
            if not process.dead and await answered:
                return
            await asyncio.sleep(2.0)

    async def _safely(self, doing: Callable[[Process], Awaitable[None]], process: Process) -> bool:
        """Whether it was answered, be it with a refusal."""
        try:
            await doing(process)
        except BackendUnavailable as error:
            self._world.note(process.name, "no answer", str(error))
            return False
        except (Conflict, NotFound) as error:
            self._world.note(process.name, "refused", str(error))
            if isinstance(error, CommandRefused):
                self.refused[process.name, error.row_id] = error.reason
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody was meant to see it
            if not process.dead:
                self._world.breach(0, process.name, f"a client was answered with {error!r}")
        finally:
            if not process.dead:
                process.end()
        return True

    def _doing(self, act: Act) -> Callable[[Process], Awaitable[None]]:
        match act:
            case Submit():
                return self._submit(act)
            case Add():
                return self._add(act)
            case Wish():
                return self._wish(act)

    def _submit(self, act: Submit) -> Callable[[Process], Awaitable[None]]:
        async def submit(process: Process) -> None:
            self._calls[act.request_id] += 1
            accepted = await process.services.producer.submit(TENANT, act.request_id, act.document)
            self._world.note(process.name, "submitted", act.request_id)
            if accepted.job.id != job_id_of(TENANT, act.request_id):
                self._world.breach(9, act.request_id, f"became job {accepted.job.id}")
            alone = self._calls[act.request_id] == 1 and accepted.job.version == 1
            if alone and not accepted.created:
                self._world.breach(9, act.request_id, "was new, and yet is said to be known")
            self.accepted[act.request_id] = act.document

        return submit

    def _add(self, act: Add) -> Callable[[Process], Awaitable[None]]:
        job_id, which = job_id_of(TENANT, act.request_id), (act.request_id, act.addition_id)
        self.added.setdefault(which, (act.document, False))

        async def add(process: Process) -> None:
            adding = process.services.adding
            added = await adding.add(TENANT, job_id, act.addition_id, act.document)
            self._world.note(process.name, "added", act.addition_id)
            wanted = tuple(task["taskId"] for task in act.document["tasks"])
            if added.keys != wanted:
                self._world.breach(9, job_id, f"{act.addition_id} has added {added.keys}")
            self.added[which] = (act.document, True)

        return add

    def _wish(self, act: Wish) -> Callable[[Process], Awaitable[None]]:
        job_id = job_id_of(TENANT, act.request_id)

        async def wish(process: Process) -> None:
            rng = self._world.chance(act.seed)
            self._world.note(process.name, act.kind, act.request_id)
            match act.kind:
                case "cancel":
                    await process.services.cancelling.cancel(job_id, by=process.name)
                case "replay":
                    await process.services.dead_letters.replay_matching(TENANT, by=process.name)
                case "resume":
                    await self._resume(process, job_id)
                case _:
                    await _review(process, job_id, rng)

        return wish

    async def _resume(self, process: Process, job_id: str) -> None:
        ended = await _states(process, job_id, TaskState.FAILED, TaskState.CANCELLED)
        if ended:
            resumed = await process.services.resuming.resume(job_id, ended, by=process.name)
            if not resumed.tasks:
                self.refused[process.name, job_id] = "; ".join(resumed.refused.values())

    def poison(self, rng: Random) -> None:
        """Put something on the queue that makes no sense."""
        unknown = task_id_of(job_id_of(TENANT, "nobody"), "nothing")
        body = rng.choice(("nonsense", "{}", json.dumps({"requestId": unknown})))
        self._world.faults.count(Fault.POISON)
        self._world.note("somebody", "poison", body)
        message = Outgoing(queue=rng.choice(QUEUES), body=body)
        self._world.begin(self._world.backend.queue.send([message]))

    def wear_out(self, rng: Random) -> None:
        """Let a message of a task become a dead letter, whatever the task is doing."""
        self._world.begin(self._wear_out(rng))

    async def _wear_out(self, rng: Random) -> None:
        page = await self._world.backend.ledger.list_tasks(TENANT, limit=_MOST_JOBS * _MOST_TASKS)
        open_ = [row for row in page.items if not row.state.terminal]
        if not open_:
            return
        task_id = rng.choice(open_).id
        self._world.faults.count(Fault.WORN_OUT)
        self._world.note("somebody", "message worn out", task_id)
        # On a queue of its own, so that nobody else's messages wear out with it.
        queue, at_once = self._world.backend.queue, timedelta(0)
        await queue.send([Outgoing(queue=_WORN_OUT, body=body_for(task_id))])
        for _ in range(RECEIVE_LIMIT + 1):
            await queue.receive([_WORN_OUT], limit=1, hidden_for=at_once, wait=at_once)


async def _states(process: Process, job_id: str, *states: TaskState) -> list[str]:
    found = await process.services.backend.ledger.task_states(job_id)
    return [task_id_of(job_id, key) for key, state in found.items() if state in states]


async def _review(process: Process, job_id: str, rng: Random) -> None:
    for task_id in await _states(process, job_id, TaskState.IN_REVIEW):
        approves = rng.random() < 0.6
        feedback = f"once more, please ({process.name})"
        command: c.Command = (
            c.Approve(by=process.name)
            if approves
            else c.RequestRevision(feedback=feedback, by=process.name)
        )
        await process.services.transitions.task(task_id, command)
