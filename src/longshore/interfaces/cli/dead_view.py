"""The bodies of ``longshore dead list`` and ``dead show``, and what a person may wish for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from rich.text import Text

from longshore.core.attempt_history import PastAttempt
from longshore.core.dead_letters import DeadFilter, DeadLetter, DeadMessage, message_named
from longshore.core.error_categories import ErrorCategory
from longshore.core.rows import TaskRow
from longshore.core.sanitise import safe_excerpt
from longshore.core.states import TaskState
from longshore.durations import parse_duration
from longshore.errors import NotFound, UsageError
from longshore.interfaces import views
from longshore.interfaces.cli import naming, words
from longshore.interfaces.cli.exits import Missing, say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import (
    Column,
    console,
    print_json,
    print_pairs,
    print_table_with_errors,
    state_text,
)
from longshore.interfaces.cli.session import Session, existing, settings_for
from longshore.ports.output import Stream
from longshore.services.post_mortem import PostMortem, PrintedLine, examine

_SHOWN = 8
_WIDE = 100
_BODY_CHARACTERS = 200
_LISTS_WHAT_THERE_IS = "`longshore dead list` lists what there is"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which dead letters a person asked for, in their own words."""

    queue: str | None = None
    definition: str | None = None
    category: ErrorCategory | None = None
    job: str | None = None
    since: str | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in astuple(self))

    async def meant(self, session: Session) -> DeadFilter:
        """What was meant.

        Raises:
            UsageError: the time is none.
            Missing: there is no such job.
        """
        since = moment_of(self.since, session.backend.clock.now()) if self.since else None
        tenant, ledger = session.settings.tenant, session.backend.ledger
        job_id = await naming.find_job(ledger, tenant, self.job) if self.job else None
        return DeadFilter(
            queue=self.queue,
            definition=self.definition,
            category=self.category,
            job_id=job_id,
            since=since,
        )


def moment_of(text: str, now: datetime) -> datetime:
    """The moment that a person means by so long ago, or by a date with or without a time.

    Raises:
        UsageError: it is neither.
    """
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        # Without a zone it is the time on the person's own clock.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        message = f"--since {text!r} is no time: write 2h, 7d, 2026-01-31 or 2026-01-31T12:30"
        raise UsageError(message) from error


async def list_(here: Here, wish: Wish, limit: int, cursor: str | None) -> None:
    """Print a page of dead letters."""
    async with existing(settings_for(here)) as session:
        wanted = await wish.meant(session)
        tenant, dead = session.settings.tenant, session.dead_letters
        found = await dead.page(tenant, wanted, limit=limit, cursor=cursor)
        if here.json:
            documents = [views.dead_letter_document(letter) for letter in found.items]
            print_json({"deadLetters": documents, "count": found.total, "cursor": found.cursor})
            return
        if not found.items:
            say("no dead letters")
            return
        _print_letters(found.items, session.backend.clock.now())
        if found.cursor is not None:
            say(f"there are more, {found.total:,} in all: --cursor {found.cursor}")


def _print_letters(letters: Sequence[DeadLetter], now: datetime) -> None:
    # The ids are long, and whoever has them can ask for the rest.
    wide = console().width >= _WIDE
    print_table_with_errors(
        [
            Column("ID"),
            *((Column("DEFINITION"),) if wide else ()),
            Column("QUEUE", flexible=True),
            Column("CATEGORY"),
            Column("ATTEMPTS", right=True),
            Column("DIED"),
        ],
        [_cells(letter, now, wide=wide) for letter in letters],
        [letter.reason for letter in letters],
    )


def _cells(letter: DeadLetter, now: datetime, *, wide: bool) -> list[str | Text]:
    task = letter.row if letter.replayable else None
    return [
        letter.id,
        *((task.spec.definition if task else "",) if wide else ()),
        letter.queue,
        letter.category.value if letter.category else Text("message", style="magenta"),
        _attempts(task) if task else "",
        words.ago(letter.at, now),
    ]


def _attempts(row: TaskRow) -> str:
    return f"{row.attempts_used}/{row.spec.retry.max_attempts}"


async def show(here: Here, text: str) -> None:
    """Print all that is known of one dead letter."""
    async with existing(settings_for(here)) as session:
        letter = await _meant(session, text)
        found = await examine(session.backend, letter)
        if here.json:
            print_json(views.post_mortem_document(found))
        elif letter.message is not None:
            _print_message(letter, letter.message, session.backend.clock.now())
        elif letter.row is not None:
            _print_task(found, letter.row, session.backend.clock.now())


async def _meant(session: Session, text: str) -> DeadLetter:
    """The one dead letter that a text means: a message, a task, or the only one of a job."""
    tenant, dead = session.settings.tenant, session.dead_letters
    if message_named(text) is not None:
        return await message_of(session, text)
    named = await naming.find(session.backend.ledger, tenant, text)
    if named.task_id is not None:
        try:
            return await dead.find(tenant, named.task_id)
        except NotFound:
            row = await session.backend.ledger.task(named.task_id)
            state = row.state.value.replace("_", " ") if row else "gone"
            what = f"the task {named.task_id} is {state}, so it is no dead letter"
            raise Missing(what, f"see `longshore events {named.task_id}`") from None
    letters = [one async for one in dead.matching(tenant, DeadFilter(job_id=named.job_id))]
    if not letters:
        raise Missing(f"{named.job_id} has no dead letters", _LISTS_WHAT_THERE_IS)
    if len(letters) > 1:
        shown = "\n  ".join(one.id for one in letters[:_SHOWN])
        more = "\n  …" if len(letters) > _SHOWN else ""
        message = f"{named.job_id} has {len(letters)} dead letters; which one?\n  {shown}{more}"
        raise UsageError(message)
    return letters[0]


async def message_of(session: Session, letter_id: str) -> DeadLetter:
    """The message with this id.

    Raises:
        Missing: there is none.
    """
    try:
        return await session.dead_letters.find(session.settings.tenant, letter_id)
    except NotFound:
        what = f"there is no dead letter {letter_id!r}"
        raise Missing(what, _LISTS_WHAT_THERE_IS) from None


def _print_message(letter: DeadLetter, message: DeadMessage, now: datetime) -> None:
    console().print(Text.assemble((letter.id, "bold"), "  ", ("message", "magenta")))
    print_pairs(
        [
            ("queue", letter.queue),
            ("task", letter.row.id if letter.row else ""),
            ("reason", letter.reason),
            ("received", words.number_of(message.receives, "time")),
            ("sent", words.ago(message.sent_at, now)),
            ("size", words.size(len(message.body.encode()))),
            ("body", safe_excerpt(message.body, limit=_BODY_CHARACTERS)),
            ("next", f"longshore dead discard {letter.id}" if letter.row is None else ""),
        ]
    )


def _print_task(found: PostMortem, row: TaskRow, now: datetime) -> None:
    console().print(Text.assemble((row.spec.key, "bold"), "  ", state_text(TaskState.FAILED)))
    failure = row.failure
    used, most = row.attempts_used, row.spec.retry.max_attempts
    print_pairs(
        [
            ("task", row.id),
            ("definition", row.spec.definition),
            ("queue", row.spec.queue),
            ("error", found.letter.reason),
            ("category", failure.category.value if failure else ""),
            ("type", failure.error_type or "" if failure else ""),
            ("ended by", found.ended_by or ""),
            ("attempts", f"{used} of {most} used" if used else ""),
            ("round", str(row.round) if row.round > 1 else ""),
            ("input", words.size(row.spec.input.size) if row.spec.input else "none"),
            ("created", words.ago(row.spec.created_at, now)),
            ("died", words.ago(found.letter.at, now)),
            ("next", f"longshore dead replay {row.id}"),
        ]
    )
    if found.attempts:
        print()
        _print_attempts(found.attempts, now)
    if found.last_lines:
        print()
        _print_lines(found.last_lines, row)


def _print_attempts(attempts: Sequence[PastAttempt], now: datetime) -> None:
    several = attempts[-1].round > 1
    print_table_with_errors(
        [
            Column("ATTEMPT", right=True),
            *((Column("ROUND", right=True),) if several else ()),
            Column("STARTED"),
            Column("TOOK", right=True),
            Column("ENDED"),
            Column("EXIT", right=True),
            Column("WORKER"),
        ],
        [
            [
                str(one.number),
                *((str(one.round),) if several else ()),
                words.ago(one.started_at, now),
                words.took(one.took),
                one.category or one.ended or "",
                "" if one.exit_code is None else str(one.exit_code),
                one.worker_id,
            ]
            for one in attempts
        ],
        [one.error or "" for one in attempts],
    )


def _print_lines(lines: Sequence[PrintedLine], row: TaskRow) -> None:
    screen = console()
    screen.print(Text(f"The last that attempt {row.attempt} printed:", style="dim"))
    for line in lines:
        sign = "!" if line.stream is Stream.STDERR else "|"
        style = "yellow" if line.stream is Stream.STDERR else ""
        screen.print(Text.assemble((f"  {sign} ", "dim"), (line.text, style)), soft_wrap=True)
    screen.print(Text(f"All of it: longshore logs {row.id}", style="dim"))
