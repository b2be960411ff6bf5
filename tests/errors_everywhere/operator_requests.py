"""What people and programs ask for beside a submit: more tasks, other ends, decisions, keys."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from longshore.core.api_keys import ApiScope, Rate
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.errors import NotFound, OutcomeUnknown
from longshore.services.api_keys import ApiKeys
from longshore.services.explain import Explainer
from longshore.testing.fake_runner import Script, fails, succeeds
from tests.errors_everywhere.harness import LARGE, LEASE, ErrorHarness
from tests.errors_everywhere.injection import Hook
from tests.unit.services.harness import APP, TENANT, job_id, make_task, task_id

_REVIEWED = Definition(name="reviewed", runner=RunnerKind.PYTHON, requires_review=True)
_ENDLESS = Script(ending=None)


async def prepare_changes(harness: ErrorHarness) -> None:
    """A kind of task whose results people look at."""
    await harness.raw.definitions.put(TENANT, _REVIEWED)


async def changes(harness: ErrorHarness) -> None:
    """Jobs grow, single tasks are cancelled, results are judged, answers are lost."""
    await _grow(harness)
    await _cancel_tasks(harness)
    await _review(harness)
    await _resume_without_an_answer(harness)
    await harness.wait_for_jobs("growing", "stopped", "reviewed", "unanswered", "contested")


async def _grow(harness: ErrorHarness) -> None:
    """More tasks for a job that cannot end meanwhile; the same request twice."""
    await harness.submit("growing", make_task("early"), make_task("open", delay=30))
    await harness.wait_for_task("growing", "early", TaskState.COMPLETED)
    more = [
        make_task("late", "early", name="stored", input=LARGE),
        make_task("last", "late", "open"),
    ]

    async def add() -> tuple[str, ...]:
        added = await harness.faulty.producer.add_tasks(
            TENANT, job_id("growing"), "addition", {"tasks": list(more)}
        )
        return added.keys

    for _ in range(2):
        assert await harness.call_until_answered(add) == ("late", "last")


async def _cancel_tasks(harness: ErrorHarness) -> None:
    """A task that runs and one that does not are cancelled; a waiting task can be explained."""
    harness.children.set_scripts("endless", _ENDLESS)
    await harness.submit(
        "stopped",
        make_task("asleep", delay=60),
        make_task("endless"),
        make_task("behind", "asleep"),
    )
    await harness.wait_for_child("stopped", "endless")
    await _explain(harness, job_id("stopped"), task_id("behind", "stopped"))
    for key in ("asleep", "endless"):
        id_ = task_id(key, "stopped")
        if (await harness.state_of("stopped", key)).terminal:
            continue  # the one task that the error has cost
        for _ in range(2):
            row = await harness.call_until_answered(
                lambda id_=id_: harness.faulty.operator_commands.cancel_task(TENANT, id_, by="ann")
            )
            assert row.cancel is not None
            assert row.cancel.by == "ann"
    await harness.wait_for_task("stopped", "endless")
    await harness.wait_for_jobs("stopped")
    await _explain(harness, job_id("stopped"), task_id("endless", "stopped"))


async def _explain(harness: ErrorHarness, *ids: str) -> None:
    ours, others = (
        Explainer(
            backend=services.backend,
            documents=services.documents,
            worker_registry=services.worker_registry,
            lease=LEASE,
        )
        for services in (harness.faulty, harness.clean)
    )
    for id_ in ids:
        notices = await harness.call_until_answered(lambda id_=id_: ours.why(TENANT, id_))
        existing = await others.why(TENANT, id_)
        assert [reason.code for reason in notices] == [reason.code for reason in existing]


async def _review(harness: ErrorHarness) -> None:
    """A result is sent back and the next one is approved, each by a reviewer who asks twice."""
    harness.children.set_scripts(
        "essay", Script(ending=succeeds("first")), Script(ending=succeeds("best"))
    )
    ours = harness.faulty
    reviewing = ours.operator_commands
    await harness.submit(
        "reviewed", make_task("essay", name="reviewed"), make_task("print", "essay")
    )
    id_ = task_id("essay", "reviewed")

    async def seen() -> int | None:
        await harness.wait_for_task("reviewed", "essay", TaskState.IN_REVIEW)
        row = await harness.clean.task("essay", "reviewed")
        return row.attempt if row.state is TaskState.IN_REVIEW else None

    if (first := await seen()) is None:
        return  # the one task that the error has cost
    for _ in range(2):
        row = await harness.call_until_answered(
            lambda: reviewing.revise(TENANT, id_, by="ann", feedback="shorter", attempt=first)
        )
        assert row.feedback == "shorter"
    if (second := await seen()) is None:
        return
    assert second > first
    for _ in range(2):
        row = await harness.call_until_answered(
            lambda: reviewing.approve(TENANT, id_, by="ann", attempt=second)
        )
        assert row.state is TaskState.COMPLETED


async def _resume_without_an_answer(harness: ErrorHarness) -> None:
    """The answer to a resume is lost: it had been carried out, or another caller was faster."""
    injector, others = harness.injector, harness.clean

    async def resumed_by_bob(request: str, key: str) -> None:
        await others.operator_commands.resume(job_id(request), [task_id(key, request)], by="bob")

    for request, when, of_bob in (
        ("unanswered", injector.after_call, "second"),
        ("contested", injector.before_call, "first"),
    ):
        keys = ("first", "second") if of_bob == "second" else ("first",)
        for key in keys:
            broken = Script(ending=fails(ErrorCategory.VALIDATION))
            harness.children.set_scripts(key, broken, Script())
        await harness.submit(request, *map(make_task, keys))
        await harness.wait_for_jobs(request)
        happens = partial(resumed_by_bob, request, of_bob)
        if await harness.state_of(request, "first") is not TaskState.FAILED:
            await happens()  # the error gave the other another chance
            continue
        when["ledger.commit"] = _lose_resume_answer(harness, request, happens)
        options = [task_id("first", request)]
        await harness.call_with_retry(
            lambda request=request, options=options: harness.faulty.operator_commands.resume(
                job_id(request), options, by="ann"
            )
        )
        when.clear()
        await harness.wait_for_jobs(request)


def _lose_resume_answer(
    harness: ErrorHarness, request: str, action: Callable[[], Awaitable[None]]
) -> Hook:
    async def lose(*changes: Any) -> None:
        row = changes[0].row
        if row.id == job_id(request) and row.round > 1:
            harness.injector.before_call.clear()
            harness.injector.after_call.clear()
            await action()
            message = "no answer came"
            raise OutcomeUnknown(message)

    return lose


class _LateKeys:
    """Knows no key at first."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys
        self._was_called = False

    async def find(self, digest: str) -> Any:
        if not self._was_called:
            self._was_called = True
            return None
        return await self._keys.find(digest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)


async def keys(harness: ErrorHarness) -> None:
    """Keys are made, brought along, asked about and revoked while there is work."""
    drawn = count(1)
    access = ApiKeys(
        backend=harness.faulty.backend,
        app=APP,
        rate=Rate(per_second=100, burst=100),
        random_bytes=lambda size: next(drawn).to_bytes(size),
    )
    await harness.submit("beside", make_task("beside"))
    # Asked again, this may make a second key; that of the answer is the one that works.
    record, text = await harness.call_until_answered(
        lambda: access.create(TENANT, name="made", scopes=(ApiScope.SUBMIT,), by="ann")
    )
    for _ in range(2):
        await harness.call_until_answered(lambda: access.ensure("ensured", TENANT, name="ensured"))
    await harness.call_until_answered(access.shared_workers_warning)
    # Another caller stored the same key between the query and its answer.
    late = ApiKeys(
        backend=replace(harness.faulty.backend, keys=_LateKeys(harness.faulty.backend.keys)),
        app=APP,
        rate=Rate(per_second=100, burst=100),
        random_bytes=lambda size: next(drawn).to_bytes(size),
    )
    await harness.call_until_answered(lambda: late.ensure("ensured", TENANT, name="ensured"))
    for existing in (text, "ensured"):
        result = await harness.call_until_answered(
            lambda existing=existing: access.authenticate(existing)
        )
        assert result is not None
        assert result.tenant == TENANT
    listed = await harness.call_until_answered(lambda: access.list(TENANT))
    assert record in listed
    assert listed == await harness.raw.keys.list(TENANT)
    for _ in range(2):
        revoked = await harness.call_until_answered(
            lambda: access.revoke(TENANT, record.id, by="ann")
        )
        assert revoked.revoked_at is not None
    assert await harness.call_until_answered(lambda: access.authenticate(text)) is None
    try:
        await harness.call_until_answered(lambda: access.revoke(TENANT, "key-none", by="ann"))
    except NotFound:
        pass
    else:
        message = "a key that is not there was revoked"
        raise AssertionError(message)
    assert await harness.call_until_answered(lambda: access.authenticate("ensured")) is not None
    await harness.wait_for_jobs("beside")
