"""What happens in a run: scenes that together come to every call that services make of ports."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core import job as jobs
from longshore.core.changes import Change
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory
from longshore.core.messages import body_for
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.rows import JobRow
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.output import Stream
from longshore.ports.queue import Outgoing
from longshore.ports.runner import Conversed, Progressed, StepDone, Summarised, Used
from longshore.services.crew import until_nothing_is_left
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.services.pausing import Pausing
from longshore.services.post_mortem import examine
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, fails, prints, succeeds
from tests.errors_everywhere.asking import changes, changes_prepared, keys
from tests.errors_everywhere.budgets import budgets, budgets_prepared
from tests.errors_everywhere.folder import folder
from tests.errors_everywhere.functions import functions
from tests.errors_everywhere.play import LARGE, Play
from tests.errors_everywhere.watching import health, readers
from tests.unit.services.dead import lose_messages
from tests.unit.services.ports import Crash
from tests.unit.services.stage import NO_WAIT, TENANT, Stage, a_task, job_id, task_id

SECOND = timedelta(seconds=1)
ENDLESS = Script(ending=None)
LONG_KEYS = [f"{'k' * 60}-{number}" for number in range(14)]
_RECEIVES = 21
_MANY = 1_000
_TURNED_AWAY = 3 * 6  # all tries of a flush, and of the two at the end
_BIG_FILE = "y" * 300_000
_PAID = Usage(turns=1, cost_usd=0.25)


@dataclass(frozen=True, slots=True)
class Scene:
    """What was before, and what people do while a worker is at work."""

    name: str
    prepare: Callable[[Play], Awaitable[None]]
    act: Callable[[Play], Awaitable[None]]
    leading: bool = True


async def _nothing(_: Play) -> None:
    pass


async def attempts(play: Play) -> None:
    """Work of every kind: printing, steps, files, large documents, failures, lateness."""
    scripts = play.children
    scripts.plays(
        "rich",
        Script(
            says=[
                prints("one\n"),
                StepDone("first", LARGE),
                Progressed(1, 2, "half"),
                timedelta(seconds=6),
                StepDone("second", 2),
                prints("two\n", Stream.STDERR),
                Used(Usage(input_tokens=7)),
                Summarised("all is well"),
            ],
            ending=succeeds({"large": LARGE}),
            leaves={"artifacts/small": "s", "artifacts/big": _BIG_FILE, "traces/t": "t"},
        ),
    )
    scripts.plays("again", Script(ending=fails()), Script(says=[SECOND]))
    scripts.plays("resting", Script(ending=fails(retry_after=timedelta(seconds=2))), Script())
    scripts.plays(
        "stepping", Script(says=[StepDone("a", 1)], ending=fails()), Script(says=[prints("x")])
    )
    said = Conversed("session-1", [{"uuid": "1", "type": "user"}])
    scripts.plays("talks", Script(says=[said, Used(_PAID)], ending=fails()), Script(says=[said]))
    limited = fails(ErrorCategory.RATE_LIMIT, retry_after=SECOND)
    scripts.plays("limited", Script(ending=limited), Script())
    scripts.plays("late", ENDLESS, Script())
    scripts.plays("parent", Script(ending=succeeds(LARGE)))
    scripts.plays("lossy", Script(says=[prints("lost"), timedelta(seconds=4)]))
    _lose_output_of(play, task_id("lossy", "lossy"))
    await play.submitted("lossy", a_task("lossy"))
    await play.submitted("rich", a_task("rich", name="stored", input=LARGE))
    await play.submitted(
        "dag",
        a_task("parent"),
        a_task("left", "parent"),
        a_task("right", "parent"),
        a_task("last", "left", "right"),
    )
    await play.submitted("again", a_task("again"), a_task("resting"), a_task("stepping"))
    agents = [a_task(key, name="talkative") for key in ("talks", "limited")]
    await play.submitted("talks", *agents)
    await play.submitted("late", a_task("late", name="hasty"))
    await play.until_job("lossy", "rich", "dag", "again", "talks", "late")


def _lose_output_of(play: Play, lossy: str) -> None:
    """The log does not take what this task prints, until all is over but the outcome."""
    left = _TURNED_AWAY

    async def turn_away(printed_by: str, *_: object) -> None:
        nonlocal left
        if printed_by == lossy and left:
            left -= 1
            message = "the log is out of reach"
            raise BackendUnavailable(message)

    play.wire.first["output.append"] = turn_away


async def _worn_out(play: Play) -> None:
    """Messages that were received too often by workers who died of them."""
    queue = play.raw.queue
    await queue.send([Outgoing(queue="other", body="nonsense")])
    for _ in range(_RECEIVES):
        await queue.receive(["other"], limit=100, hidden_for=SECOND, wait=NO_WAIT)
        await asyncio.sleep(1.0)


async def people(play: Play) -> None:
    """What people ask for: twice the same, cancelled, resumed, looked at, thrown away."""
    scripts, raw = play.children, play.raw
    scripts.plays("endless", ENDLESS)
    scripts.plays("broken", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    scripts.plays("dead", Script(says=[prints("why")], ending=fails(ErrorCategory.VALIDATION)))
    scripts.plays(LONG_KEYS[0], Script(ending=fails(ErrorCategory.VALIDATION)), Script())

    async def when_looked_up(*_: object) -> None:
        play.wire.meanwhile.clear()
        await play.others.submit(a_task("twice"), request_id="twice")

    pausing = Pausing(play.ours.backend)
    await play.insists(lambda: pausing.pause("default", by="ann", reason="a flood"))
    await play.insists(pausing.paused)
    await play.insists(lambda: pausing.resume("default", by="ann"))
    play.wire.meanwhile["definitions.get"] = when_looked_up
    await play.submitted("twice", a_task("twice"))
    await play.submitted("twice", a_task("twice"))

    await play.submitted("cancelled", a_task("endless"), a_task("behind", "endless"))
    await play.until_task("cancelled", "endless", TaskState.PROCESSING)
    await play.insists(lambda: play.ours.cancelling.cancel(job_id("cancelled"), by="ann"))
    many = [a_task(key, *LONG_KEYS[:number][:1]) for number, key in enumerate(LONG_KEYS)]
    await play.submitted("many", *many)
    await play.submitted("asleep", a_task("asleep", delay=30), a_task("next", "asleep"))
    await play.insists(lambda: play.ours.cancelling.cancel(job_id("asleep"), by="ann"))

    await play.submitted("broken", a_task("broken"), a_task("after", "broken"))
    await play.submitted("dead", a_task("dead"), a_task("dead-too"))
    await play.until_job("cancelled", "asleep", "broken", "dead", "many")
    broken = [task_id("broken", "broken")]
    await play.insists(lambda: play.ours.resuming.resume(job_id("broken"), broken, by="ann"))
    root = [task_id(LONG_KEYS[0], "many")]
    await play.insists(lambda: play.ours.resuming.resume(job_id("many"), root, by="ann"))
    await play.until_job("broken", "many")
    await _dead_letters(play)
    await play.insists(
        lambda: play.crew.during(
            until_nothing_is_left(
                play.ours.backend,
                play.ours.dispatcher,
                tenant=TENANT,
                queues=("default",),
                horizon=SECOND,
            )
        )
    )
    await play.until_job(
        *[row.spec.request_id for row in (await raw.ledger.list_jobs(TENANT)).items]
    )


async def _dead_letters(play: Play) -> None:
    letters = play.ours.dead_letters
    await play.insists(lambda: letters.page(TENANT, limit=1))
    await play.insists(lambda: letters.count(TENANT))
    found = await play.insists(lambda: letters.find(TENANT, task_id("dead", "dead")))
    assert found is not None
    await play.insists(lambda: examine(play.ours.backend, found))
    for message in await play.raw.queue.dead_letters("other", limit=_MANY):
        letter = f"msg-{message.id}"
        await play.insists(lambda letter=letter: letters.find(TENANT, letter))
        await play.insists(lambda letter=letter: letters.discard(TENANT, letter, by="ann"))
    await play.insists(lambda: letters.replay_matching(TENANT, by="ann"))


async def _left_behind(play: Play) -> None:
    """What workers leave that died at the worst of moments."""
    others, raw = play.others, play.raw
    await _half_done(play)
    for request, worker in (("ghost", "ghost"), ("mute", "mute"), ("silent", "silent")):
        await others.submit(a_task(request), request_id=request)
        if request != "silent":
            await lose_messages(others)
        await others.claim(task_id(request, request), worker)
    play.machine.dies("ghost")
    await others.submit(a_task("unrung"), request_id="unrung")
    await others.submit(a_task("ended"), a_task("later", "ended"), request_id="unrecorded")
    await others.complete(task_id("ended", "unrecorded"))
    await _untold(play)
    await others.submit(a_task("worn", name="elsewhere"), request_id="worn")
    await lose_messages(others)
    await _worn_out(play)
    await raw.queue.send(
        [
            Outgoing(queue="default", body="nonsense"),
            Outgoing(queue="default", body=body_for("job-none_such")),
            Outgoing(queue="default", body=body_for(task_id("silent", "silent"))),
            Outgoing(queue="default", body=body_for(task_id("ended", "unrecorded"))),
        ]
    )
    delivery = await raw.bus.receive(CONSUMER, types=ENDING_EVENTS, limit=_MANY, wait=NO_WAIT)
    assert delivery is not None
    await raw.bus.acknowledge(CONSUMER, delivery.receipt)


async def _untold(play: Play) -> None:
    """Jobs that know of an end, and nobody did what follows from it."""
    others = play.others
    await others.submit(a_task("known"), a_task("waits", "known"), request_id="untold")
    await others.complete(task_id("known", "untold"))

    async def decide(job: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
        ended = jobs.EndedTask(
            number=0, key="known", round=1, state=TaskState.COMPLETED, blocks=NO_NUMBERS
        )
        command = jobs.TasksEnded(ended=(ended,), statuses={})
        return jobs.apply(job, command, now=now, change_id=change_id)

    await others.transitions.job(job_id("untold"), decide)
    await others.submit(a_task("only"), request_id="over")
    await others.complete(task_id("only", "over"))
    job = await others.job("over")
    over = replace(job, version=job.version + 1, change_id="hand", completed=NumberSet([0]))
    await play.raw.ledger.commit(Change(row=over, expected_version=job.version))


async def _half_done(play: Play) -> None:
    """Operations on many rows whose process died after the first; in one commit, all are done."""
    others = play.others
    three = (a_task("a", name="stored", input=LARGE), a_task("b", "a"), a_task("c", "b"))
    # Not to be run before somebody has had time to finish its cancellation.
    asleep = ({**three[0], "delay": 60}, *three[1:])
    await others.submit(*asleep, request_id="half-cancelled")
    await others.submit(a_task("old", delay=60), request_id="half-grown")
    grown = [three[0], a_task("b", "a", "old"), three[2]]
    await others.submit(*three, request_id="half-resumed")
    await others.fail(task_id("a", "half-resumed"))
    await others.dispatch()
    dying = Stage(
        replace(play.raw, ledger=Flaky(play.raw.ledger, "commit", Crash(), None, skip=1)),
        presence=play.machine,
        retry=others.producer._creation.retry,
    )
    for act in (
        lambda stage: stage.submit(*three, request_id="half-created"),
        lambda stage: stage.adding.add(TENANT, job_id("half-grown"), "more", {"tasks": grown}),
        lambda stage: stage.cancelling.cancel(job_id("half-cancelled"), by="ann"),
        lambda stage: stage.resuming.resume(
            job_id("half-resumed"), [task_id("a", "half-resumed")], by="ann"
        ),
    ):
        ledger = Flaky(play.raw.ledger, "commit", Crash(), None, skip=1)
        with suppress(Crash):
            await act(dying.with_ports(ledger=ledger))


async def sweeping(play: Play) -> None:
    """Everything that was left behind is taken up, and new work is done beside it."""
    await play.submitted("beside", a_task("beside"))
    await play.until_rest()


async def stopping(play: Play) -> None:
    """Workers are told to stop at every moment; the next one goes on."""
    scripts, wire = play.children, play.wire
    scripts.plays("drained", ENDLESS, Script())
    _cannot_be_loaded(play)
    scripts.plays("hurried", ENDLESS, Script())
    await play.submitted("drained", a_task("drained"))
    await play.until_child("drained", "drained")
    await play.end_shift()

    async def when_received(*_: object) -> None:
        play.stop()

    async def when_looked_at(looked_at: str) -> None:
        if looked_at == task_id("looked-at", "looked-at"):
            play.stop()

    for request, method, happening in (
        ("received", "queue.receive", when_received),
        ("looked-at", "ledger.task", when_looked_at),
    ):
        await play.others.submit(a_task(request), request_id=request)
        wire.meanwhile[method] = happening
        await play.begin_shift()
        wire.meanwhile.clear()

    play.begin_shift()
    await play.submitted("hurried", a_task("hurried"))
    await play.until_child("hurried", "hurried")
    await play.insists(lambda: _now(lambda: play.stop(at_once=True)))
    await play.shift
    play.begin_shift()
    await play.insists(lambda: _now(play.crew.kill_children))
    await _cancelled_at_its_claim(play)
    await play.until_job("drained", "received", "looked-at", "hurried", "unlucky")


def _cannot_be_loaded(play: Play) -> None:
    """The first worker is told to load what nobody can load."""
    error = UsageError("no module named 'nothing'")
    play.meant.append(error)

    async def refuse() -> None:
        play.wire.first.clear()
        raise error

    play.wire.first["runner.open"] = refuse


async def _now(act: Callable[[], None]) -> None:
    act()


async def _cancelled_at_its_claim(play: Play) -> None:
    """Cancelled when its claim is committed, and the worker does not know yet that it has it."""
    play.children.plays("unlucky", ENDLESS)

    async def when_claimed(*changes: Any) -> None:
        row = changes[0].row
        if row.id == task_id("unlucky", "unlucky") and row.state is TaskState.PROCESSING:
            play.wire.meanwhile.clear()
            await play.others.cancelling.cancel(job_id("unlucky"), by="ann")
            for _ in range(20):
                await asyncio.sleep(0)

    play.wire.meanwhile["ledger.commit"] = when_claimed
    await play.submitted("unlucky", a_task("unlucky"))


async def standing_in(play: Play) -> None:
    """Somebody else of the machine leads, and does nothing."""
    await play.submitted("pair", a_task("one"), a_task("two", "one"))
    await play.until_job("pair")


SCENES = (
    Scene("attempts", _nothing, attempts),
    Scene("people", _worn_out, people),
    Scene("sweeping", _left_behind, sweeping),
    Scene("stopping", _nothing, stopping),
    Scene("standing in", _nothing, standing_in, leading=False),
    Scene("changes", changes_prepared, changes),
    Scene("keys", _nothing, keys),
    Scene("budgets", budgets_prepared, budgets),
    Scene("readers", _nothing, readers),
    Scene("health", _nothing, health),
    Scene("folder", _nothing, folder),
    Scene("functions", _nothing, functions),
)
