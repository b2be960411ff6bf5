"""The bodies of ``longshore dead list`` and ``dead show``, and what a person may wish for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from rich.text import Text

from longshore.core.dead_letters import DeadLetterFilter, message_id_of
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import parse_duration
from longshore.core.text.sanitise import safe_excerpt
from longshore.errors import NotFound, UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import MissingResource, print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import (
    Column,
    console,
    print_json,
    print_pairs,
    print_table_with_errors,
    state_text,
)
from longshore.services.documents import Stream

_MAX_SHOWN = 8
_WIDE_TERMINAL = 100
_BODY_CHARACTERS = 200
_LIST_HINT = "`longshore dead list` lists what there is"


@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Which dead letters a person asked for, in their own words."""

    queue: str | None = None
    definition: str | None = None
    category: ErrorCategory | None = None
    job: str | None = None
    since: str | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in astuple(self))

    async def to_filter(self, client: ApiClient) -> DeadLetterFilter:
        """What was meant.

        Raises:
            UsageError: the time is none.
            Missing: there is no such job.
        """
        since = parse_since(self.since, client.now()) if self.since else None
        job_id = (await client.resolve(self.job)).job_id if self.job else None
        return DeadLetterFilter(
            queue=self.queue,
            definition=self.definition,
            category=self.category,
            job_id=job_id,
            since=since,
        )


def parse_since(text: str, now: datetime) -> datetime:
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


async def list_(
    options: GlobalOptions, filter_options: DeadLetterOptions, limit: int, cursor: str | None
) -> None:
    """Print a page of dead letters."""
    async with open_client(options) as desk:
        found = await desk.list_dead_letters(
            await filter_options.to_filter(desk), limit=limit, cursor=cursor
        )
        if options.json:
            print_json(found)
            return
        if not found["deadLetters"]:
            print_stderr("no dead letters")
            return
        _print_letters(found["deadLetters"], desk.now())
        if found["cursor"] is not None:
            print_stderr(f"there are more, {found['count']:,} in all: --cursor {found['cursor']}")


def _print_letters(letters: Sequence[Document], now: datetime) -> None:
    # The ids are long, and whoever has them can ask for the rest.
    wide = console().width >= _WIDE_TERMINAL
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
        formats.relative_time(formats.parse_time(letter["at"]), now),
    ]


async def show(options: GlobalOptions, text: str) -> None:
    """Print all that is known of one dead letter."""
    async with open_client(options) as desk:
        found = await _resolve(desk, text)
        if options.json:
            print_json(found)
        elif is_task(found):
            _print_task(found, desk.now())
        else:
            _print_message(found, desk.now())


async def _resolve(client: ApiClient, text: str) -> Document:
    """The one dead letter that a text means: a message, a task, or the only one of a job."""
    if message_id_of(text) is not None:
        return await read_message(client, text)
    named = await client.resolve(text)
    if named.task_id is not None:
        try:
            return await client.get_dead_letter(named.task_id)
        except NotFound:
            state = (await client.task(named.task_id))["status"].replace("_", " ")
            what = f"the task {named.task_id} is {state}, so it is no dead letter"
            raise MissingResource(what, f"see `longshore events {named.task_id}`") from None
    letters = [
        one["id"]
        async for one in client.matching_dead_letters(DeadLetterFilter(job_id=named.job_id))
    ]
    if not letters:
        raise MissingResource(f"{named.job_id} has no dead letters", _LIST_HINT)
    if len(letters) > 1:
        shown = "\n  ".join(letters[:_MAX_SHOWN])
        more = "\n  …" if len(letters) > _MAX_SHOWN else ""
        message = f"{named.job_id} has {len(letters)} dead letters; which one?\n  {shown}{more}"
        raise UsageError(message)
    return await client.get_dead_letter(letters[0])


async def read_message(client: ApiClient, letter_id: str) -> Document:
    """The message with this id.

    Raises:
        Missing: there is none.
    """
    try:
        return await client.get_dead_letter(letter_id)
    except NotFound:
        what = f"there is no dead letter {letter_id!r}"
        raise MissingResource(what, _LIST_HINT) from None


def _print_message(letter: Document, now: datetime) -> None:
    console().print(Text.assemble((letter["id"], "bold"), "  ", ("message", "magenta")))
    leads_nowhere = letter["requestId"] is None
    print_pairs(
        [
            ("queue", letter["queue"]),
            ("task", letter["requestId"] or ""),
            ("reason", letter["error"] or ""),
            ("received", formats.plural(letter["receives"], "time")),
            ("sent", formats.relative_time(formats.parse_time(letter["sentAt"]), now)),
            ("size", formats.size(letter["bodyBytes"])),
            ("body", safe_excerpt(letter["body"], limit=_BODY_CHARACTERS)),
            ("next", f"longshore dead discard {letter['id']}" if leads_nowhere else ""),
        ]
    )


def _print_task(letter: Document, now: datetime) -> None:
    title = (letter["taskId"], "bold")
    console().print(Text.assemble(title, "  ", state_text(TaskState.FAILED)))
    used, most = letter["attemptsUsed"], letter["maxAttempts"]
    task = letter["task"]
    print_pairs(
        [
            ("task", letter["requestId"]),
            ("definition", letter["name"]),
            ("queue", letter["queue"]),
            ("error", letter["error"] or ""),
            ("category", letter["category"] or ""),
            ("type", task["error"]["type"] or "" if task["error"] else ""),
            ("ended by", letter["endedBy"] or ""),
            ("attempts", f"{used} of {most} used" if used else ""),
            ("round", str(letter["round"]) if letter["round"] > 1 else ""),
            ("input", formats.size(letter["inputBytes"]) if letter["inputBytes"] else "none"),
            ("created", formats.relative_time(formats.parse_time(task["createdAt"]), now)),
            ("died", formats.relative_time(formats.parse_time(letter["at"]), now)),
            ("next", f"longshore dead replay {letter['requestId']}"),
        ]
    )
    if letter["attempts"]:
        print()
        _print_attempts(letter["attempts"], now)
    if letter["lastLines"]:
        print()
        _print_lines(letter["lastLines"], task)


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
                formats.relative_time(formats.parse_time(one["startedAt"]), now),
                formats.duration_ms_text(one["durationMs"]),
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
