"""The bodies of ``longshore dead list`` and ``dead show``, and what a person may wish for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from rich.text import Text

from longshore.core.dead_letters import DeadFilter, message_named
from longshore.core.error_categories import ErrorCategory
from longshore.core.sanitise import safe_excerpt
from longshore.core.states import TaskState
from longshore.durations import parse_duration
from longshore.errors import NotFound, UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
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
from longshore.ports.output import Stream

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

    async def meant(self, desk: Desk) -> DeadFilter:
        """What was meant.

        Raises:
            UsageError: the time is none.
            Missing: there is no such job.
        """
        since = moment_of(self.since, desk.now()) if self.since else None
        job_id = (await desk.find(self.job)).job_id if self.job else None
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
    async with desk_for(here) as desk:
        found = await desk.dead_page(await wish.meant(desk), limit=limit, cursor=cursor)
        if here.json:
            print_json(found)
            return
        if not found["deadLetters"]:
            say("no dead letters")
            return
        _print_letters(found["deadLetters"], desk.now())
        if found["cursor"] is not None:
            say(f"there are more, {found['count']:,} in all: --cursor {found['cursor']}")


def _print_letters(letters: Sequence[Document], now: datetime) -> None:
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
        [letter["error"] or "" for letter in letters],
    )


def is_task(letter: Document) -> bool:
    """Whether it is a task, which can be replayed, and no message."""
    return bool(letter["kind"] == "task")


def _cells(letter: Document, now: datetime, *, wide: bool) -> list[str | Text]:
    task = is_task(letter)
    return [
        letter["id"],
        *((letter["name"] if task else "",) if wide else ()),
        letter["queue"],
        letter["category"] or Text("message", style="magenta"),
        f"{letter['attemptsUsed']}/{letter['maxAttempts']}" if task else "",
        words.ago(words.moment(letter["at"]), now),
    ]


async def show(here: Here, text: str) -> None:
    """Print all that is known of one dead letter."""
    async with desk_for(here) as desk:
        found = await _meant(desk, text)
        if here.json:
            print_json(found)
        elif is_task(found):
            _print_task(found, desk.now())
        else:
            _print_message(found, desk.now())


async def _meant(desk: Desk, text: str) -> Document:
    """The one dead letter that a text means: a message, a task, or the only one of a job."""
    if message_named(text) is not None:
        return await message_of(desk, text)
    named = await desk.find(text)
    if named.task_id is not None:
        try:
            return await desk.dead(named.task_id)
        except NotFound:
            state = (await desk.task(named.task_id))["status"].replace("_", " ")
            what = f"the task {named.task_id} is {state}, so it is no dead letter"
            raise Missing(what, f"see `longshore events {named.task_id}`") from None
    letters = [one["id"] async for one in desk.dead_matching(DeadFilter(job_id=named.job_id))]
    if not letters:
        raise Missing(f"{named.job_id} has no dead letters", _LISTS_WHAT_THERE_IS)
    if len(letters) > 1:
        shown = "\n  ".join(letters[:_SHOWN])
        more = "\n  …" if len(letters) > _SHOWN else ""
        message = f"{named.job_id} has {len(letters)} dead letters; which one?\n  {shown}{more}"
        raise UsageError(message)
    return await desk.dead(letters[0])


async def message_of(desk: Desk, letter_id: str) -> Document:
    """The message with this id.

    Raises:
        Missing: there is none.
    """
    try:
        return await desk.dead(letter_id)
    except NotFound:
        what = f"there is no dead letter {letter_id!r}"
        raise Missing(what, _LISTS_WHAT_THERE_IS) from None


def _print_message(letter: Document, now: datetime) -> None:
    console().print(Text.assemble((letter["id"], "bold"), "  ", ("message", "magenta")))
    leads_nowhere = letter["requestId"] is None
    print_pairs(
        [
            ("queue", letter["queue"]),
            ("task", letter["requestId"] or ""),
            ("reason", letter["error"] or ""),
            ("received", words.number_of(letter["receives"], "time")),
            ("sent", words.ago(words.moment(letter["sentAt"]), now)),
            ("size", words.size(letter["bodyBytes"])),
            ("body", safe_excerpt(letter["body"], limit=_BODY_CHARACTERS)),
            ("next", f"longshore dead discard {letter['id']}" if leads_nowhere else ""),
        ]
    )


def _print_task(found: Document, now: datetime) -> None:
    title = (found["taskId"], "bold")
    console().print(Text.assemble(title, "  ", state_text(TaskState.FAILED)))
    used, most = found["attemptsUsed"], found["maxAttempts"]
    task = found["task"]
    print_pairs(
        [
            ("task", found["requestId"]),
            ("definition", found["name"]),
            ("queue", found["queue"]),
            ("error", found["error"] or ""),
            ("category", found["category"] or ""),
            ("type", task["error"]["type"] or "" if task["error"] else ""),
            ("ended by", found["endedBy"] or ""),
            ("attempts", f"{used} of {most} used" if used else ""),
            ("round", str(found["round"]) if found["round"] > 1 else ""),
            ("input", words.size(found["inputBytes"]) if found["inputBytes"] else "none"),
            ("created", words.ago(words.moment(task["createdAt"]), now)),
            ("died", words.ago(words.moment(found["at"]), now)),
            ("next", f"longshore dead replay {found['requestId']}"),
        ]
    )
    if found["attempts"]:
        print()
        _print_attempts(found["attempts"], now)
    if found["lastLines"]:
        print()
        _print_lines(found["lastLines"], task)


def _print_attempts(attempts: Sequence[Document], now: datetime) -> None:
    several = attempts[-1]["round"] > 1
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
                str(one["attempt"]),
                *((str(one["round"]),) if several else ()),
                words.ago(words.moment(one["startedAt"]), now),
                words.lasted(one["durationMs"]),
                one["category"] or one["outcome"] or "",
                "" if one["exitCode"] is None else str(one["exitCode"]),
                one["workerId"],
            ]
            for one in attempts
        ],
        [one["error"] or "" for one in attempts],
    )


def _print_lines(lines: Sequence[Document], task: Document) -> None:
    screen = console()
    screen.print(Text(f"The last that attempt {task['attempt']} printed:", style="dim"))
    for line in lines:
        complaint = line["stream"] == Stream.STDERR.value
        sign, style = ("!", "yellow") if complaint else ("|", "")
        screen.print(Text.assemble((f"  {sign} ", "dim"), (line["text"], style)), soft_wrap=True)
    screen.print(Text(f"All of it: longshore logs {task['requestId']}", style="dim"))
