"""What people and programs ask for beside a submit: more tasks, other ends, decisions, keys."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from longshore.core.definition import Definition, RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.core.keys import Scope
from longshore.core.rate import Rate
from longshore.core.states import TaskState
from longshore.errors import NotFound, OutcomeUnknown
from longshore.services.access import Access
from longshore.services.explaining import Explaining
from longshore.services.reviewing import Reviewing
from longshore.testing.runner import Script, fails, succeeds
from tests.errors_everywhere.play import LARGE, LEASE, Play
from tests.errors_everywhere.wire import Happening
from tests.unit.services.stage import APP, TENANT, a_task, job_id, task_id

_REVIEWED = Definition(name="reviewed", runner=RunnerKind.PYTHON, requires_review=True)
_ENDLESS = Script(ending=None)


async def changes_prepared(play: Play) -> None:
    """A kind of task whose results people look at."""
    await play.raw.definitions.put(TENANT, _REVIEWED)


async def changes(play: Play) -> None:
    """Jobs grow, single tasks are cancelled, results are judged, answers are lost."""
    await _grow(play)
    await _cancel_tasks(play)
    await _review(play)
    await _resume_without_an_answer(play)
    await play.until_job("growing", "stopped", "reviewed", "unheard", "contested")


async def _grow(play: Play) -> None:
    """More tasks for a job that cannot end meanwhile; the same request twice."""
    await play.submitted("growing", a_task("early"), a_task("open", delay=30))
    await play.until_task("growing", "early", TaskState.COMPLETED)
    more = [a_task("late", "early", name="stored", input=LARGE), a_task("last", "late", "open")]

    async def add() -> tuple[str, ...]:
        added = await play.ours.adding.add(
            TENANT, job_id("growing"), "addition", {"tasks": list(more)}
        )
        return added.keys

    for _ in range(2):
        assert await play.is_answered(add) == ("late", "last")


async def _cancel_tasks(play: Play) -> None:
    """One that nobody runs and one that runs are cancelled; what waits can be explained."""
    play.children.plays("endless", _ENDLESS)
    await play.submitted(
        "stopped",
        a_task("asleep", delay=60),
        a_task("endless"),
        a_task("behind", "asleep"),
    )
    await play.until_child("stopped", "endless")
    await _explain(play, job_id("stopped"), task_id("behind", "stopped"))
    for key in ("asleep", "endless"):
        id_ = task_id(key, "stopped")
        if (await play.stands("stopped", key)).terminal:
            continue  # the one task that the error has cost
        for _ in range(2):
            row = await play.is_answered(
                lambda id_=id_: play.ours.cancelling.cancel_task(TENANT, id_, by="ann")
            )
            assert row.cancel is not None
            assert row.cancel.by == "ann"
    await play.until_task("stopped", "endless")
    await play.until_job("stopped")
    await _explain(play, job_id("stopped"), task_id("endless", "stopped"))


async def _explain(play: Play, *ids: str) -> None:
    ours, others = (
        Explaining(
            backend=stage.backend, documents=stage.documents, presence=stage.presence, lease=LEASE
        )
        for stage in (play.ours, play.others)
    )
    for id_ in ids:
        told = await play.is_answered(lambda id_=id_: ours.explain(TENANT, id_))
        known = await others.explain(TENANT, id_)
        assert [reason.code for reason in told] == [reason.code for reason in known]


async def _review(play: Play) -> None:
    """A result is sent back and the next one is approved, each by somebody who asks twice."""
    play.children.plays("essay", Script(ending=succeeds("first")), Script(ending=succeeds("best")))
    ours = play.ours
    reviewing = Reviewing(
        backend=ours.backend, transitions=ours.transitions, dispatcher=ours.dispatcher
    )
    await play.submitted("reviewed", a_task("essay", name="reviewed"), a_task("print", "essay"))
    id_ = task_id("essay", "reviewed")

    async def seen() -> int | None:
        await play.until_task("reviewed", "essay", TaskState.IN_REVIEW)
        row = await play.others.task("essay", "reviewed")
        return row.attempt if row.state is TaskState.IN_REVIEW else None

    if (first := await seen()) is None:
        return  # the one task that the error has cost
    for _ in range(2):
        row = await play.is_answered(
            lambda: reviewing.request_revision(
                TENANT, id_, by="ann", feedback="shorter", attempt=first
            )
        )
        assert row.feedback == "shorter"
    if (second := await seen()) is None:
        return
    assert second > first
    for _ in range(2):
        row = await play.is_answered(
            lambda: reviewing.approve(TENANT, id_, by="ann", attempt=second)
        )
        assert row.state is TaskState.COMPLETED


async def _resume_without_an_answer(play: Play) -> None:
    """The answer to a resume is lost: it had been carried out, or somebody else was faster."""
    wire, others = play.wire, play.others

    async def resumed_by_bob(request: str, key: str) -> None:
        await others.resuming.resume(job_id(request), [task_id(key, request)], by="bob")

    for request, when, of_bob in (
        ("unheard", wire.meanwhile, "second"),
        ("contested", wire.first, "first"),
    ):
        keys = ("first", "second") if of_bob == "second" else ("first",)
        for key in keys:
            broken = Script(ending=fails(ErrorCategory.VALIDATION))
            play.children.plays(key, broken, Script())
        await play.submitted(request, *map(a_task, keys))
        await play.until_job(request)
        happens = partial(resumed_by_bob, request, of_bob)
        if await play.stands(request, "first") is not TaskState.FAILED:
            await happens()  # the error gave the other another chance
            continue
        when["ledger.commit"] = _lost_with_the_resume(play, request, happens)
        wanted = [task_id("first", request)]
        await play.insists(
            lambda request=request, wanted=wanted: play.ours.resuming.resume(
                job_id(request), wanted, by="ann"
            )
        )
        when.clear()
        await play.until_job(request)


def _lost_with_the_resume(
    play: Play, request: str, happens: Callable[[], Awaitable[None]]
) -> Happening:
    async def lose(*changes: Any) -> None:
        row = changes[0].row
        if row.id == job_id(request) and row.round > 1:
            play.wire.first.clear()
            play.wire.meanwhile.clear()
            await happens()
            message = "no answer came"
            raise OutcomeUnknown(message)

    return lose


class _Late:
    """Knows no key at first."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys
        self._asked = False

    async def find(self, digest: str) -> Any:
        if not self._asked:
            self._asked = True
            return None
        return await self._keys.find(digest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)


async def keys(play: Play) -> None:
    """Keys are made, brought along, asked about and revoked while there is work."""
    drawn = count(1)
    access = Access(
        backend=play.ours.backend,
        app=APP,
        rate=Rate(per_second=100, burst=100),
        draw=lambda size: next(drawn).to_bytes(size),
    )
    await play.submitted("beside", a_task("beside"))
    # Asked again, this may make a second key; that of the answer is the one that works.
    record, text = await play.is_answered(
        lambda: access.create(TENANT, name="made", scopes=(Scope.SUBMIT,), by="ann")
    )
    await play.insists(lambda: access.keep("brought", TENANT, name="b", scopes=(Scope.READ,)))
    for _ in range(2):
        await play.is_answered(lambda: access.ensure("ensured", TENANT, name="ensured"))
    # Somebody else made the same key known between the question and the answer.
    late = Access(
        backend=replace(play.ours.backend, keys=_Late(play.ours.backend.keys)),
        app=APP,
        rate=Rate(per_second=100, burst=100),
        draw=lambda size: next(drawn).to_bytes(size),
    )
    await play.is_answered(lambda: late.ensure("ensured", TENANT, name="ensured"))
    for known in (text, "brought", "ensured"):
        found = await play.is_answered(lambda known=known: access.who(known))
        assert found is not None
        assert found.tenant == TENANT
    listed = await play.is_answered(lambda: access.list(TENANT))
    assert record in listed
    assert listed == await play.raw.keys.list(TENANT)
    for _ in range(2):
        revoked = await play.is_answered(lambda: access.revoke(TENANT, record.id, by="ann"))
        assert revoked.revoked_at is not None
    assert await play.is_answered(lambda: access.who(text)) is None
    try:
        await play.is_answered(lambda: access.revoke(TENANT, "key-none", by="ann"))
    except NotFound:
        pass
    else:
        message = "a key that is not there was revoked"
        raise AssertionError(message)
    assert await play.is_answered(lambda: access.who("ensured")) is not None
    await play.until_job("beside")
