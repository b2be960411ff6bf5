"""The worker's exchange with its task source: commands of attempts, and claims for free slots.

What to send and when is decided by ``core.turns.TurnPlanner``; here it is carried out. A turn whose
answer is lost is repeated with its id, so that it is carried out once. Where that does not succeed
for as long as a lease lasts, its commands are answered with the error: what the turn may have
claimed has expired by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Protocol, TypeVar

from longshore.core.claims import DefinitionVersion, Room
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.turns import SendTurn, StartClaim, StopClaim, TurnPlanner
from longshore.errors import BackendUnavailable, OutcomeUnknown, WorkerGone
from longshore.ports.task_source import Answer, ClaimedTask, LeaseCommand, Turn, WorkerInstance
from longshore.services.resilience import log_and_continue
from longshore.services.worker.context import WorkerContext

logger = logging.getLogger(__name__)

_RETRY_PAUSE = timedelta(seconds=1)
_FIRST_PAUSE = timedelta(milliseconds=50)
_GATHER = timedelta(milliseconds=2)
"""How long a command may wait for others while the children have enough to do."""

ResultT = TypeVar("ResultT")


OnAnswer = Callable[[Answer], None]
Waiting = tuple[LeaseCommand, OnAnswer]
"""A command, and who waits for its answer."""


class TurnObserver(Protocol):
    """What happens to the worker by its exchange with the source."""

    def on_claimed(self, claimed: Sequence[ClaimedTask], sent_at: timedelta) -> None:
        """Tasks were claimed by a call that was sent at this moment of the clock."""
        ...

    @property
    def busy(self) -> int:
        """Slots in use."""
        ...

    def ahead(self, free: int) -> Mapping[DefinitionVersion, int]:
        """How many tasks of short definitions may be claimed beyond the free slots."""
        ...

    def may_gather(self) -> bool:
        """Whether commands may wait a moment for others."""
        ...

    async def on_gone(self) -> None:
        """Another process has ended the leases. Returns when every attempt has ended."""
        ...


class TurnLoop:
    """Sends commands and claims tasks until ``close``."""

    def __init__(
        self,
        context: WorkerContext,
        observer: TurnObserver,
        *,
        queues: Sequence[str],
        slots: int,
        poll_wait: timedelta,
    ) -> None:
        self._context = context
        self._observer = observer
        self._source = context.source
        self._clock = context.backend.clock
        self._queues = tuple(queues)
        self._poll_wait = poll_wait
        self._planner = TurnPlanner(
            slots=slots, claims_with_commands=self._source.claims_with_commands
        )
        self._turn_numbers = count(1)
        self._worker: WorkerInstance | None = None
        self._waiting: list[Waiting] = []
        # A dict for its order: a simulation must cancel them in the same order each time.
        self._calls: dict[asyncio.Task[None], None] = {}
        self._claim: asyncio.Task[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._first_waits_since = timedelta(0)
        self._stopped = False  # claims end
        self._closed = False  # everything ends
        self._gone: WorkerInstance | None = None  # whose leases were ended

    @property
    def worker(self) -> WorkerInstance | None:
        """The current instance of the worker; None before it has joined."""
        return self._worker

    async def join(self) -> None:
        """Join the source as a new instance, as soon as that is possible; then claims begin."""
        while not self._stopped:
            with log_and_continue(logger, "join.failed", unavailable="join.unavailable"):
                worker = WorkerInstance(
                    worker_id=self._context.worker_id,
                    queues=self._queues,
                    process_id=self._context.process_id,
                    lease_duration=self._context.lease.duration,
                )
                self._worker = await self._source.join(worker)
                self._turn_numbers = count(1)
                if not self._stopped:
                    self._planner.allow_claims()
                    self.schedule()
                return
            await self._clock.sleep(_RETRY_PAUSE)

    def stop_claims(self) -> None:
        """Claim no more, and cancel the claim that waits."""
        self._stopped = True
        self._planner.forbid_claims()
        self._act()

    async def wait_for_claim(self) -> None:
        """Return when what was being claimed is handed over or released."""
        if self._claim is not None:
            await asyncio.gather(self._claim, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all calls and leave the source."""
        self._stopped = self._closed = True
        if self._scheduled is not None:
            self._scheduled.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._worker is not None:
            with log_and_continue(logger, "leave.failed", unavailable="leave.unavailable"):
                await self._source.leave(self._worker)

    def post(self, command: LeaseCommand, on_answer: OnAnswer) -> None:
        """Send a command and call back with the source's answer."""
        if not self._waiting:
            self._first_waits_since = self._clock.elapsed()
        self._waiting.append((command, on_answer))
        self._planner.command_added()
        self.schedule()

    def schedule(self) -> None:
        """Act after the callbacks that are ready: commands that come together are sent together.

        To be called also when slots or room may have become free elsewhere.
        """
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _gathers(self) -> bool:
        """Whether the commands that wait are held back for a moment, so that others join them."""
        if not self._waiting or self._stopped or not self._observer.may_gather():
            return False
        left = self._first_waits_since + _GATHER - self._clock.elapsed()
        if left <= timedelta(0):
            return False
        loop = asyncio.get_running_loop()
        self._scheduled = loop.call_later(left.total_seconds(), self._act)
        return True

    def _act(self) -> None:
        self._scheduled = None
        if self._closed or self._gathers():
            return
        for action in self._planner.decide(busy=self._observer.busy):
            match action:
                case SendTurn(slots=slots):
                    batch, self._waiting = deque(self._waiting), []
                    self._start(self._run_turn(batch, slots))
                case StartClaim(slots=slots):
                    self._claim = self._start(self._run_claim(slots))
                case StopClaim():
                    if self._claim is not None:
                        self._claim.cancel()

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(call)
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None))
        return task

    # Turns --------------------------------------------------------------------------------------

    async def _run_turn(self, batch: deque[Waiting], slots: int) -> None:
        try:
            await self._exchange(batch, slots)
        except BaseException as error:
            # No attempt may wait for ever. What was answered is no longer in the batch.
            for _, on_answer in batch:
                on_answer(BackendUnavailable(f"{type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise
            logger.exception("turn.failed")  # no error may end the worker
        self._planner.turn_ended()
        self.schedule()

    async def _exchange(self, batch: deque[Waiting], slots: int) -> None:
        """Carry out a turn and answer its batch, which is empty then."""
        worker = self._current_worker()
        room = self._room(slots) if self._source.claims_with_commands else None
        commands = [command for command, _ in batch]
        turn_id = self._next_turn_id()
        try:
            turn, sent_at = await self._repeat(
                lambda: self._source.turn(worker, commands, turn_id=turn_id, room=room)
            )
        except WorkerGone as error:
            self._on_gone(worker)
            lost = Refusal(RefusalReason.LEASE_LOST, str(error))
            # Commands that end attempts are decided by their fence alone.
            for _ in commands:
                command, on_answer = batch.popleft()
                if isinstance(command.command, c.AttemptCommand):
                    batch.append((command, on_answer))
                else:
                    on_answer(lost)
            if batch:
                await self._exchange(batch, 0)
            return
        except BackendUnavailable as error:
            turn, sent_at = Turn((error,) * len(commands)), timedelta(0)
        for answer in turn.answers:
            batch.popleft()[1](answer)
        self._observer.on_claimed(turn.claimed, sent_at)

    def _room(self, slots: int) -> Room | None:
        ahead = {} if self._stopped or self._gone is self._worker else self._observer.ahead(slots)
        return Room(slots=slots, ahead=ahead) if slots or ahead else None

    # Claims -------------------------------------------------------------------------------------

    async def _run_claim(self, slots: int) -> None:
        try:
            await self._claim_tasks(slots)
        except asyncio.CancelledError:
            if self._closed:
                raise
        self._claim = None
        self._planner.claim_ended()
        self.schedule()

    async def _claim_tasks(self, slots: int) -> None:
        worker, turn_id = self._current_worker(), self._next_turn_id()
        room = self._room(slots) or Room(slots=slots)
        try:
            claimed, sent_at = await self._repeat(
                lambda: self._source.claim(worker, room, turn_id=turn_id, wait=self._poll_wait)
            )
        except WorkerGone:
            self._on_gone(worker)
        except BackendUnavailable:
            pass
        except Exception:  # no error may end the worker
            logger.exception("claim.failed")
            await self._clock.sleep(_RETRY_PAUSE)
        else:
            self._observer.on_claimed(claimed, sent_at)

    # Both ---------------------------------------------------------------------------------------

    def _current_worker(self) -> WorkerInstance:
        worker = self._worker
        if worker is None:
            message = "the worker has not joined its source"
            raise RuntimeError(message)
        return worker

    def _next_turn_id(self) -> str:
        """Returns an id that is greater, as text, than those of this instance before."""
        return f"{self._current_worker().number}.{next(self._turn_numbers):012d}"

    async def _repeat(self, call: Callable[[], Awaitable[ResultT]]) -> tuple[ResultT, timedelta]:
        """Repeat a call through an outage, for as long as a lease lasts.

        Returns the answer, and a moment that is not later than that of its first effect.
        """
        started = sent_at = self._clock.elapsed()
        pause, unknown = _FIRST_PAUSE, False
        while True:
            if not unknown:
                sent_at = self._clock.elapsed()
            try:
                return await call(), sent_at
            except BackendUnavailable as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                logger.warning("source.unavailable", extra={"error": str(error)})
                if self._clock.elapsed() - started >= self._context.lease.duration:
                    raise
            await self._clock.sleep(pause)
            pause = min(2 * pause, _RETRY_PAUSE)

    def _on_gone(self, worker: WorkerInstance) -> None:
        if self._gone is not worker:
            self._gone = worker
            logger.warning("worker.gone", extra={"worker_id": worker.worker_id})
            self._planner.forbid_claims()
            self._start(self._join_again())

    async def _join_again(self) -> None:
        # No attempt of the old instance may be alive when the new one claims its task.
        await self._observer.on_gone()
        await self.join()
