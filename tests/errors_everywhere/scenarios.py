"""The scenarios of the runs: together they make every call of a service to a port."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.events.types import Usage
from longshore.core.jobs import job as jobs
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.queues import message_body
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.output import Stream
from longshore.ports.runner import (
    ConversationReport,
    ProgressReport,
    StepReport,
    SummaryReport,
    UsageReport,
)
from longshore.ports.task_queue import OutgoingMessage
from longshore.services.dead_letters import read_post_mortem
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.services.worker.group import wait_until_idle
from longshore.testing.fake_runner import Script, fails, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from tests.errors_everywhere.budgets import budgets, prepare_budgets
from tests.errors_everywhere.definition_folder import folder
from tests.errors_everywhere.functions import functions
from tests.errors_everywhere.harness import LARGE, ErrorHarness
from tests.errors_everywhere.monitoring import health, readers
from tests.errors_everywhere.operations import operations
from tests.errors_everywhere.operator_requests import changes, keys, prepare_changes
from tests.unit.services.dead_messages import lose_messages
from tests.unit.services.harness import NO_WAIT, TENANT, ServiceHarness, job_id, make_task, task_id
from tests.unit.services.port_wrappers import Crash

SECOND = timedelta(seconds=1)
ENDLESS = Script(ending=None)
LONG_KEYS = [f"{'k' * 60}-{number}" for number in range(14)]
_RECEIVES = 21
_MANY = 1_000
_FAILED_APPENDS = 3 * 6  # all tries of a flush, and of the two at the end
_BIG_FILE = "y" * 300_000
_PAID = Usage(turns=1, cost_usd=0.25)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was before, and what people do while a worker is at work."""

    name: str
    prepare: Callable[[ErrorHarness], Awaitable[None]]
    run: Callable[[ErrorHarness], Awaitable[None]]
    leading: bool = True


async def _nothing(_: ErrorHarness) -> None:
    pass


async def attempts(harness: ErrorHarness) -> None:
    """Work of every kind: printing, steps, files, large documents, failures, lateness."""
    scripts = harness.children
    scripts.set_scripts(
        "rich",
        Script(
            reports=[
                prints("one\n"),
                StepReport("first", LARGE),
                ProgressReport(1, 2, "half"),
                timedelta(seconds=6),
                StepReport("second", 2),
                prints("two\n", Stream.STDERR),
                UsageReport(Usage(input_tokens=7)),
                SummaryReport("all is well"),
            ],
            ending=succeeds({"large": LARGE}),
            files={"artifacts/small": "s", "artifacts/big": _BIG_FILE, "traces/t": "t"},
        ),
    )
    scripts.set_scripts("again", Script(ending=fails()), Script(reports=[SECOND]))
    scripts.set_scripts("resting", Script(ending=fails(retry_after=timedelta(seconds=2))), Script())
    scripts.set_scripts(
        "stepping",
        Script(reports=[StepReport("a", 1)], ending=fails()),
        Script(reports=[prints("x")]),
    )
    message = ConversationReport("session-1", [{"uuid": "1", "type": "user"}])
    scripts.set_scripts(
        "talks",
        Script(reports=[message, UsageReport(_PAID)], ending=fails()),
        Script(reports=[message]),
    )
    limited = fails(ErrorCategory.RATE_LIMIT, retry_after=SECOND)
    scripts.set_scripts("limited", Script(ending=limited), Script())
    scripts.set_scripts("late", ENDLESS, Script())
    scripts.set_scripts("parent", Script(ending=succeeds(LARGE)))
    scripts.set_scripts("lossy", Script(reports=[prints("lost"), timedelta(seconds=4)]))
    _lose_output_of(harness, task_id("lossy", "lossy"))
    await harness.submit("lossy", make_task("lossy"))
    await harness.submit("rich", make_task("rich", name="stored", input=LARGE))
    await harness.submit(
        "dag",
        make_task("parent"),
        make_task("left", "parent"),
        make_task("right", "parent"),
        make_task("last", "left", "right"),
    )
    await harness.submit("again", make_task("again"), make_task("resting"), make_task("stepping"))
    agents = [make_task(key, name="talkative") for key in ("talks", "limited")]
    await harness.submit("talks", *agents)
    await harness.submit("late", make_task("late", name="short-timeout"))
    await harness.wait_for_jobs("lossy", "rich", "dag", "again", "talks", "late")


def _lose_output_of(harness: ErrorHarness, lossy: str) -> None:
    """The log does not take what this task prints, until all is over but the outcome."""
    left = _FAILED_APPENDS

    async def turn_away(printed_by: str, *_: object) -> None:
        nonlocal left
        if printed_by == lossy and left:
            left -= 1
            message = "the log is out of reach"
            raise BackendUnavailable(message)

    harness.injector.before_call["output.append"] = turn_away


async def _exhaust_receives(harness: ErrorHarness) -> None:
    """Messages that were received too often by workers who died of them."""
    queue = harness.raw.queue
    await queue.send([OutgoingMessage(queue="other", body="nonsense")])
    for _ in range(_RECEIVES):
        await queue.receive(["other"], limit=100, hidden_for=SECOND, wait=NO_WAIT)
        await asyncio.sleep(1.0)


async def operators(harness: ErrorHarness) -> None:
    """What people ask for: twice the same, cancelled, resumed, looked at, thrown away."""
    scripts, raw = harness.children, harness.raw
    scripts.set_scripts("endless", ENDLESS)
    scripts.set_scripts("broken", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    scripts.set_scripts(
        "dead", Script(reports=[prints("why")], ending=fails(ErrorCategory.VALIDATION))
    )
    scripts.set_scripts(LONG_KEYS[0], Script(ending=fails(ErrorCategory.VALIDATION)), Script())

    async def when_looked_up(*_: object) -> None:
        harness.injector.after_call.clear()
        await harness.clean.submit(make_task("twice"), request_id="twice")

    pausing = harness.faulty.operator_commands
    await harness.call_with_retry(
        lambda: pausing.pause_queue("default", by="ann", reason="a flood")
    )
    await harness.call_with_retry(lambda: pausing.resume_queue("default", by="ann"))
    harness.injector.after_call["definitions.get"] = when_looked_up
    await harness.submit("twice", make_task("twice"))
    await harness.submit("twice", make_task("twice"))

    await harness.submit("cancelled", make_task("endless"), make_task("behind", "endless"))
    await harness.wait_for_task("cancelled", "endless", TaskState.PROCESSING)
    await harness.call_with_retry(
        lambda: harness.faulty.operator_commands.cancel_job(job_id("cancelled"), by="ann")
    )
    many = [make_task(key, *LONG_KEYS[:number][:1]) for number, key in enumerate(LONG_KEYS)]
    await harness.submit("many", *many)
    await harness.submit("asleep", make_task("asleep", delay=30), make_task("next", "asleep"))
    await harness.call_with_retry(
        lambda: harness.faulty.operator_commands.cancel_job(job_id("asleep"), by="ann")
    )

    await harness.submit("broken", make_task("broken"), make_task("after", "broken"))
    await harness.submit("dead", make_task("dead"), make_task("dead-too"))
    await harness.wait_for_jobs("cancelled", "asleep", "broken", "dead", "many")
    broken = [task_id("broken", "broken")]
    await harness.call_with_retry(
        lambda: harness.faulty.operator_commands.resume(job_id("broken"), broken, by="ann")
    )
    root = [task_id(LONG_KEYS[0], "many")]
    await harness.call_with_retry(
        lambda: harness.faulty.operator_commands.resume(job_id("many"), root, by="ann")
    )
    await harness.wait_for_jobs("broken", "many")
    await _dead_letters(harness)
    await harness.call_with_retry(
        lambda: harness.group.run_alongside(
            wait_until_idle(
                harness.faulty.backend,
                harness.faulty.source,
                harness.faulty.dispatcher,
                tenant=TENANT,
                queues=("default",),
                horizon=SECOND,
            )
        )
    )
    await harness.wait_for_jobs(
        *[row.spec.request_id for row in (await raw.ledger.list_jobs(TENANT)).items]
    )


async def _dead_letters(harness: ErrorHarness) -> None:
    letters = harness.faulty.dead_letters
    await harness.call_with_retry(lambda: letters.list_page(TENANT, limit=1))
    await harness.call_with_retry(lambda: letters.count(TENANT))
    result = await harness.call_with_retry(lambda: letters.get(TENANT, task_id("dead", "dead")))
    assert result is not None
    await harness.call_with_retry(lambda: read_post_mortem(harness.faulty.backend, result))
    for message in await harness.raw.queue.dead_letters("other", limit=_MANY):
        letter_id = f"msg-{message.id}"
        letter = await harness.call_with_retry(lambda id_=letter_id: letters.get(TENANT, id_))
        assert letter is not None
        await harness.call_with_retry(
            lambda letter=letter: letters.discard(TENANT, letter, by="ann")
        )
    await harness.call_with_retry(lambda: letters.replay(TENANT, DeadLetterFilter(), by="ann"))


async def _prepare_leftovers(harness: ErrorHarness) -> None:
    """What workers leave that died at the worst of moments."""
    others, raw = harness.clean, harness.raw
    await _prepare_removed_job(harness)
    await _prepare_half_done(harness)
    for request, worker in (("ghost", "ghost"), ("mute", "mute"), ("silent", "silent")):
        await others.submit(make_task(request), request_id=request)
        if request != "silent":
            await lose_messages(others)
        await others.claim(task_id(request, request), worker)
    harness.worker_registry.kill("ghost")
    harness.worker_registry.begun["ghost"] = set()  # its tasks are looked up
    await others.submit(make_task("unqueued"), request_id="unqueued")
    await others.submit(make_task("ended"), make_task("later", "ended"), request_id="unrecorded")
    await others.complete(task_id("ended", "unrecorded"))
    await _prepare_unreported(harness)
    await others.submit(make_task("worn", name="elsewhere"), request_id="worn")
    await lose_messages(others)
    await _exhaust_receives(harness)
    await raw.queue.send(
        [
            OutgoingMessage(queue="default", body="nonsense"),
            OutgoingMessage(queue="default", body=message_body("job-none_such")),
            OutgoingMessage(queue="default", body=message_body(task_id("gone", "gone"))),
            OutgoingMessage(queue="default", body=message_body(task_id("silent", "silent"))),
            OutgoingMessage(queue="default", body=message_body(task_id("ended", "unrecorded"))),
        ]
    )
    delivery = await raw.bus.receive(CONSUMER, types=ENDING_EVENTS, limit=_MANY, wait=NO_WAIT)
    assert delivery is not None
    await raw.bus.acknowledge(CONSUMER, delivery.receipt)


async def _prepare_removed_job(harness: ErrorHarness) -> None:
    await harness.clean.submit(make_task("gone"), request_id="gone")
    await harness.clean.complete(task_id("gone", "gone"))
    await harness.clean.dispatch()
    later = harness.raw.clock.now() + timedelta(days=1)
    removed = await harness.raw.require_retention().remove_jobs(
        [job_id("gone")], ended_by=later, remember_until=later
    )
    assert removed == [job_id("gone")]


async def _prepare_unreported(harness: ErrorHarness) -> None:
    """Jobs that recorded the end of a task whose consequences were not carried out."""
    others = harness.clean
    await others.submit(make_task("known"), make_task("waits", "known"), request_id="unreported")
    await others.complete(task_id("known", "unreported"))

    ended = jobs.EndedTask(
        number=0, key="known", round=1, state=TaskState.COMPLETED, blocks=NO_NUMBERS
    )
    command = jobs.TasksEnded(tasks=(ended,), statuses={})
    await others.transitions.apply_to_job(job_id("unreported"), command)
    await others.submit(make_task("only"), request_id="over")
    await others.complete(task_id("only", "over"))
    job = await others.job("over")
    over = replace(job, version=job.version + 1, change_id="hand", completed=NumberSet([0]))
    await harness.raw.ledger.commit(Change(row=over, expected_version=job.version))


async def _prepare_half_done(harness: ErrorHarness) -> None:
    """Operations on many rows whose process died after the first; in one commit, all are done."""
    others = harness.clean
    three = (make_task("a", name="stored", input=LARGE), make_task("b", "a"), make_task("c", "b"))
    # Not to be run before a service has had time to finish its cancellation.
    asleep = ({**three[0], "delay": 60}, *three[1:])
    await others.submit(*asleep, request_id="half-cancelled")
    await others.submit(make_task("old", delay=60), request_id="half-grown")
    grown = [three[0], make_task("b", "a", "old"), three[2]]
    await others.submit(*three, request_id="half-resumed")
    await others.fail(task_id("a", "half-resumed"))
    await others.dispatch()
    dying = ServiceHarness(
        replace(harness.raw, ledger=FlakyPort(harness.raw.ledger, "commit", Crash(), None, skip=1)),
        worker_registry=harness.worker_registry,
        retry=others.producer.retry,
    )
    for act in (
        lambda services: services.submit(*three, request_id="half-created"),
        lambda services: services.producer.add_tasks(
            TENANT, job_id("half-grown"), "more", {"tasks": grown}
        ),
        lambda services: services.operator_commands.cancel_job(job_id("half-cancelled"), by="ann"),
        lambda services: services.operator_commands.resume(
            job_id("half-resumed"), [task_id("a", "half-resumed")], by="ann"
        ),
    ):
        ledger = FlakyPort(harness.raw.ledger, "commit", Crash(), None, skip=1)
        with suppress(Crash):
            await act(dying.with_ports(ledger=ledger))


async def sweeping(harness: ErrorHarness) -> None:
    """Everything that was left behind is taken up, and new work is done beside it."""
    await harness.submit("beside", make_task("beside"))
    await harness.wait_until_idle()


async def stopping(harness: ErrorHarness) -> None:
    """Workers are stopped at every moment; the next worker continues."""
    scripts, injector = harness.children, harness.injector
    scripts.set_scripts("drained", ENDLESS, Script())
    _fail_runner_open(harness)
    scripts.set_scripts("hurried", ENDLESS, Script())
    await harness.submit("drained", make_task("drained"))
    await harness.wait_for_child("drained", "drained")
    await harness.stop_worker()

    async def when_received(*_: object) -> None:
        harness.request_stop()

    async def when_looked_at(looked_at: str) -> None:
        if looked_at == task_id("looked-at", "looked-at"):
            harness.request_stop()

    for request, method, hook in (
        ("received", "queue.receive", when_received),
        ("looked-at", "ledger.get_task", when_looked_at),
    ):
        await harness.clean.submit(make_task(request), request_id=request)
        injector.after_call[method] = hook
        await harness.start_worker()
        injector.after_call.clear()

    harness.start_worker()
    await harness.submit("hurried", make_task("hurried"))
    await harness.wait_for_child("hurried", "hurried")
    await harness.call_with_retry(lambda: _now(lambda: harness.request_stop(now=True)))
    await harness.worker_task
    harness.start_worker()
    await harness.call_with_retry(lambda: _now(harness.group.kill_children))
    await _cancel_at_claim(harness)
    await harness.wait_for_jobs("drained", "received", "looked-at", "hurried", "unlucky")


def _fail_runner_open(harness: ErrorHarness) -> None:
    """The first worker has to load a module that does not exist."""
    error = UsageError("no module named 'nothing'")
    harness.expected_errors.append(error)

    async def refuse() -> None:
        harness.injector.before_call.clear()
        raise error

    harness.injector.before_call["runner.open"] = refuse


async def _now(act: Callable[[], None]) -> None:
    act()


async def _cancel_at_claim(harness: ErrorHarness) -> None:
    """Cancelled when its claim is committed, and the worker does not know yet that it has it."""
    harness.children.set_scripts("unlucky", ENDLESS)

    async def when_claimed(*changes: Any) -> None:
        row = changes[0].row
        if row.id == task_id("unlucky", "unlucky") and row.state is TaskState.PROCESSING:
            harness.injector.after_call.clear()
            await harness.clean.operator_commands.cancel_job(job_id("unlucky"), by="ann")
            for _ in range(20):
                await asyncio.sleep(0)

    harness.injector.after_call["ledger.commit"] = when_claimed
    await harness.submit("unlucky", make_task("unlucky"))


async def standby(harness: ErrorHarness) -> None:
    """Another process of the machine leads, and does nothing."""
    await harness.submit("pair", make_task("one"), make_task("two", "one"))
    await harness.wait_for_jobs("pair")


SCENARIOS = (
    Scenario("attempts", _nothing, attempts),
    Scenario("operators", _exhaust_receives, operators),
    Scenario("sweeping", _prepare_leftovers, sweeping),
    Scenario("stopping", _nothing, stopping),
    Scenario("standby", _nothing, standby, leading=False),
    Scenario("changes", prepare_changes, changes),
    Scenario("keys", _nothing, keys),
    Scenario("budgets", prepare_budgets, budgets),
    Scenario("readers", _nothing, readers),
    Scenario("operations", _nothing, operations),
    Scenario("health", _nothing, health),
    Scenario("folder", _nothing, folder),
    Scenario("functions", _nothing, functions),
)
