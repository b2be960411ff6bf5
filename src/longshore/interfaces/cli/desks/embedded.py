"""The desk of this machine: the services themselves, on the data folder."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from longshore.core.blob_keys import attempt_file
from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadFilter
from longshore.core.definition import BUILTIN
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event
from longshore.core.graph import Graph
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.keys import Scope
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.errors import CommandRefused, NotFound
from longshore.interfaces import views
from longshore.interfaces.cli import naming
from longshore.interfaces.cli.desks.desk import Document, Submitted
from longshore.interfaces.cli.naming import Named
from longshore.interfaces.cli.session import Session
from longshore.interfaces.definition_documents import definition_document, read_definition
from longshore.interfaces.job_files import accept_file
from longshore.services import following
from longshore.services.crew import Crew
from longshore.services.following import LOOK_EVERY, Piece
from longshore.services.histories import EntityHistory, JobHistory
from longshore.services.post_mortem import examine

_AGAIN = (TaskState.FAILED, TaskState.CANCELLED)
_PAGE = 500


class EmbeddedDesk:
    """Asks the services of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._backend = session.backend
        self._tenant = session.settings.tenant

    def now(self) -> datetime:
        return self._backend.clock.now()

    async def find(self, text: str) -> Named:
        async def ids(prefix: str) -> list[str]:
            ledger = self._backend.ledger
            return await ledger.find(self._tenant, prefix, limit=naming.MOST_IDS)

        return await naming.find(ids, f"of tenant {self._tenant!r}", text)

    # Looking ------------------------------------------------------------------------------------

    async def jobs(self, *, state: JobState | None, limit: int, cursor: str | None) -> Document:
        page = await self._backend.ledger.list_jobs(
            self._tenant, state=state, limit=limit, cursor=cursor
        )
        documents = [await self._listed(job) for job in page.items]
        return {"jobs": documents, "cursor": page.cursor}

    async def _listed(self, job: JobRow) -> Document:
        tasks: Sequence[TaskRow] = ()
        if job.total == 1 and job.state.terminal:
            ledger = self._backend.ledger
            tasks = (await ledger.list_tasks(self._tenant, job_id=job.id, limit=1)).items
        return views.job_document(job, exit_code=views.job_exit_code(job, tasks))

    async def job(self, job_id: str) -> Document:
        job = await self._job(job_id)
        rows = await self._all_tasks(job_id)
        document = views.job_document(job, exit_code=views.job_exit_code(job, rows))
        document["states"] = views.counts_of({row.spec.key: row.state for row in rows})
        document["tasks"] = [await self._with_last_event(row) for row in rows]
        return document

    async def _job(self, job_id: str) -> JobRow:
        job = await self._backend.ledger.job(job_id)
        if job is None or job.spec.tenant != self._tenant:
            raise NotFound("job", job_id)
        return job

    async def _all_tasks(self, job_id: str) -> list[TaskRow]:
        found: list[TaskRow] = []
        cursor: str | None = None
        while True:
            page = await self._backend.ledger.list_tasks(
                self._tenant, job_id=job_id, limit=_PAGE, cursor=cursor
            )
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    async def _with_last_event(self, row: TaskRow) -> Document:
        event = await self._backend.events.latest(self._tenant, f"TASK#{row.id}")
        return views.task_document(row, last_event=event)

    async def tasks(
        self, *, job_id: str | None, state: TaskState | None, limit: int, cursor: str | None
    ) -> Document:
        page = await self._backend.ledger.list_tasks(
            self._tenant, job_id=job_id, state=state, limit=limit, cursor=cursor
        )
        return {"tasks": [views.task_document(row) for row in page.items], "cursor": page.cursor}

    async def task(self, task_id: str) -> Document:
        row = await self._backend.ledger.task(task_id)
        if row is None or row.spec.tenant != self._tenant:
            raise NotFound("task", task_id)
        return views.task_document(row)

    async def keys(self, job_id: str) -> list[str]:
        return list(await self._backend.ledger.task_states(job_id))

    async def events(self, named: Named, *, every: bool, follow: bool) -> AsyncIterator[Document]:
        source = (
            JobHistory(self._backend, self._tenant, named.job_id)
            if every
            else EntityHistory(self._backend, self._tenant, named.entity)
        )
        while True:
            # Looked at before the events are read: what is read after the end is all there is.
            ended = await self._has_ended(named)
            async for event in source.more():
                yield await self._wire(event)
            if ended or not follow:
                return
            await self._backend.clock.sleep(LOOK_EVERY)

    async def _has_ended(self, named: Named) -> bool:
        ledger = self._backend.ledger
        if named.task_id is not None:
            task = await ledger.task(named.task_id)
            return task is None or task.state.terminal
        job = await ledger.job(named.job_id)
        return job is None or job.state.terminal

    async def _wire(self, event: Event) -> Document:
        settings = self.session.settings
        days = settings.limits.events_ttl_days
        wire = to_wire(
            event,
            environment=settings.environment,
            ttl_at=event.at + timedelta(days=days) if days else None,
        )
        wire["properties"] = await self.session.documents.whole(wire["properties"])
        return wire

    async def output(
        self, named: Named, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[Piece]:
        if named.task_id is None:
            source = following.of_job(self._backend, named.job_id, follow=follow, attempt=attempt)
        else:
            row = await following.row_of(self._backend, named.task_id)
            source = following.of_task(self._backend, row, follow=follow, attempt=attempt)
        async for piece in source:
            yield piece

    async def artifact(self, task_id: str, attempt: int, name: str) -> bytes:
        await self.task(task_id)  # another tenant's is not found
        return await self._backend.blobs.get(attempt_file(task_id, attempt, name))

    async def why(self, named: Named) -> Document:
        paused = await self.session.pausing.paused()
        reasons = await self.session.explaining.explain(
            self._tenant, named.task_id or named.job_id, paused=paused
        )
        return {"reasons": [views.reason_document(reason) for reason in reasons]}

    async def health(self, task_id: str) -> Document:
        found = await self.session.health_check.check_one(self._tenant, task_id)
        row = await self._backend.ledger.task(task_id)
        if row is None:
            raise NotFound("task", task_id)
        return views.task_health_document(row, found)

    async def check_health(self) -> Document:
        report = await self.session.health_check.check(self._tenant)
        return views.health_check_document(report.event(), report.at)

    # Wishes -------------------------------------------------------------------------------------

    async def submit(self, document: Any, request_id: str) -> Submitted:
        accepted = await accept_file(
            document,
            tenant=self._tenant,
            request_id=request_id,
            producer=self.session.producer,
            definitions=self._backend.definitions,
            task_limit=self.session.settings.limits.max_tasks_per_job,
        )
        job = accepted.job
        graph = Graph.from_json(await self.session.documents.load(job.graph))
        pairs = zip(graph.keys, graph.parents, strict=True)
        answer = {
            "jobId": job.id,
            "status": job.state.value,
            "totalTasks": job.total,
            "rootTasks": [key for key, parents in pairs if not parents],
            "createdAt": views.moment(job.spec.created_at),
            "requestId": job.spec.request_id,
            "created": accepted.created,
        }
        return Submitted(answer, accepted.created)

    async def add(self, job_id: str, document: Any, request_id: str) -> Document:
        added = await self.session.adding.add(self._tenant, job_id, request_id, document)
        return {
            "jobId": job_id,
            "totalTasks": added.job.total,
            "addedTasks": list(added.keys),
            "created": added.created,
        }

    async def cancel(self, named: Named, *, reason: str | None) -> Document:
        by, cancelling = by_whom(), self.session.cancelling
        if named.task_id is not None:
            row = await cancelling.cancel_task(self._tenant, named.task_id, by=by, reason=reason)
            return views.task_document(row)
        await cancelling.cancel(named.job_id, by=by, reason=reason, tenant=self._tenant)
        return views.job_document(await self._job(named.job_id), exit_code=None)

    async def resume(self, named: Named) -> Document:
        ids = [named.task_id] if named.task_id else []
        if named.task_id is None:
            states = await self._backend.ledger.task_states(named.job_id)
            ids = [task_id_of(named.job_id, key) for key, one in states.items() if one in _AGAIN]
        if not ids:
            raise CommandRefused(named.job_id, "nothing of it has failed or was cancelled")
        resumed = await self.session.resuming.resume(
            named.job_id, ids, by=by_whom(), tenant=self._tenant
        )
        if not resumed.tasks:
            raise CommandRefused(ids[0], resumed.refused[ids[0]])
        return {
            "jobId": named.job_id,
            "round": resumed.round,
            "tasks": [split_task_id(one)[1] for one in resumed.tasks],
            "refused": {split_task_id(one)[1]: why for one, why in resumed.refused.items()},
        }

    async def approve(self, task_id: str) -> Document:
        row = await self.session.reviewing.approve(self._tenant, task_id, by=by_whom())
        return views.task_document(row)

    async def revise(self, task_id: str, feedback: str) -> Document:
        row = await self.session.reviewing.request_revision(
            self._tenant, task_id, by=by_whom(), feedback=feedback
        )
        return {**views.task_document(row), "revision": row.revision}

    async def budget(self, named: Named | None) -> Document:
        budgeting = self.session.budgeting
        if named is None:
            return views.standing_document(await budgeting.of_day(self._tenant))
        if named.task_id is None:
            return views.standing_document(await budgeting.of_job(self._tenant, named.job_id))
        return views.standing_document(await budgeting.of_task(self._tenant, named.task_id))

    async def add_budget(self, named: Named | None, more: Budget, *, request_id: str) -> Document:
        budgeting, by = self.session.budgeting, by_whom()
        if named is None:
            await budgeting.add_to_day(self._tenant, more, by=by, request_id=request_id)
        elif named.task_id is None:
            await budgeting.add_to_job(
                self._tenant, named.job_id, more, by=by, request_id=request_id
            )
        else:
            await budgeting.add_to_task(
                self._tenant, named.task_id, more, by=by, request_id=request_id
            )
        return await self.budget(named)

    def crew(self, queues: tuple[str, ...]) -> Crew | None:
        # Others may be set up for what this process is not, such as an agent's credentials.
        return None if self.who_works(queues) is None else self.session.crew(queues)

    # Dead letters -------------------------------------------------------------------------------

    async def dead_page(self, wanted: DeadFilter, *, limit: int, cursor: str | None) -> Document:
        found = await self.session.dead_letters.page(
            self._tenant, wanted, limit=limit, cursor=cursor
        )
        letters = [views.dead_letter_document(letter) for letter in found.items]
        return {"deadLetters": letters, "count": found.total, "cursor": found.cursor}

    async def dead_matching(self, wanted: DeadFilter) -> AsyncIterator[Document]:
        async for letter in self.session.dead_letters.matching(self._tenant, wanted):
            yield views.dead_letter_document(letter)

    async def dead(self, letter_id: str) -> Document:
        letter = await self.session.dead_letters.find(self._tenant, letter_id)
        return views.post_mortem_document(await examine(self._backend, letter))

    async def replay(self, task_ids: Sequence[str]) -> Document:
        replayed = await self.session.dead_letters.replay(self._tenant, task_ids, by=by_whom())
        rounds, moved_on = replayed.rounds.items(), replayed.moved_on.items()
        return {
            "replayed": [{"requestId": one, "round": number} for one, number in rounds],
            "movedOn": [{"requestId": one, "reason": why} for one, why in moved_on],
        }

    async def discard(self, letter_id: str) -> None:
        await self.session.dead_letters.discard(self._tenant, letter_id, by=by_whom())

    def who_works(self, queues: Sequence[str]) -> str | None:
        served = {one for serves in self.session.presence.present().values() for one in serves}
        missing = [queue for queue in queues if queue not in served]
        if not missing and (queues or served):
            return None
        named = "".join(f" --queue {queue}" for queue in missing)
        by_default = set(missing) <= set(self.session.settings.worker.queues)
        return f"longshore worker --burst{'' if by_default else named}"

    # The house ----------------------------------------------------------------------------------

    async def paused(self) -> list[Document]:
        return [views.paused_document(queue) for queue in await self.session.pausing.paused()]

    async def pause(self, queue: str, *, reason: str | None) -> Document:
        paused = await self.session.pausing.pause(queue, by=by_whom(), reason=reason)
        return views.paused_document(paused)

    async def unpause(self, queue: str) -> Document | None:
        before = await self.session.pausing.resume(queue, by=by_whom())
        return views.paused_document(before) if before else None

    async def definitions(self) -> list[Document]:
        return [
            definition_document(one) for one in await self._backend.definitions.list(self._tenant)
        ]

    async def definition(self, name: str, version: int | None) -> Document:
        found = await self._backend.definitions.get(self._tenant, name, version=version)
        if found is None and version is None:
            found = BUILTIN.get(name)
        if found is None:
            raise NotFound("definition", name)
        return definition_document(found)

    async def define(self, document: Mapping[str, Any]) -> Document:
        definition = read_definition(document)
        return definition_document(await self._backend.definitions.put(self._tenant, definition))

    async def undefine(self, name: str) -> None:
        if not await self._backend.definitions.delete(self._tenant, name):
            raise NotFound("definition", name)

    async def access_keys(self) -> list[Document]:
        return [
            views.key_document(record) for record in await self.session.access.list(self._tenant)
        ]

    async def new_key(self, name: str, scopes: Sequence[str]) -> Document:
        record, text = await self.session.access.create(
            self._tenant, name=name, scopes={Scope(one) for one in scopes}, by=by_whom()
        )
        return {**views.key_document(record), "key": text}

    async def revoke_key(self, key_id: str) -> Document:
        return views.key_document(
            await self.session.access.revoke(self._tenant, key_id, by=by_whom())
        )


def by_whom() -> str:
    """Whoever sits here, for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"
