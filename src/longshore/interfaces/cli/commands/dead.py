"""The commands for dead letters: ``dead list``, ``dead show``, ``dead replay``, ``dead discard``.

A replay selects and counts the tasks, asks the user, and replays exactly the tasks that it counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from longshore.core.dead_letters import DeadLetterFilter, message_id_of
from longshore.core.ids import split_task_id
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import parse_duration
from longshore.core.text.sanitise import safe_excerpt
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.interfaces.cli.client import ApiClient, client_command, id_lines
from longshore.interfaces.cli.commands.shared import Cursor, Limit, Yes
from longshore.interfaces.cli.exit_codes import ExitCode, MissingResource, print_stderr
from longshore.interfaces.cli.options import argument, flag, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from longshore.services import documents as d

_WIDE_TERMINAL = 100
_BODY_CHARACTERS = 200
_MAX_SHOWN = 10
_LIST_HINT = "`longshore dead list` lists all dead letters"


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The options that select dead letters."""

    queue: Annotated[str | None, option("NAME", "Only of this queue.")] = None
    definition: Annotated[str | None, option("NAME", "Only tasks of this definition.")] = None
    category: Annotated[
        ErrorCategory | None,
        option("WORD", "Only tasks with this category of error, such as network or exit-code."),
    ] = None
    job: Annotated[str | None, option("ID", "Only tasks of this job.")] = None
    since: Annotated[
        str | None,
        option("TIME", "Only since 2h ago, or since 2026-01-31 or 2026-01-31T12:30."),
    ] = None

    async def read(self, client: ApiClient) -> DeadLetterFilter:
        return DeadLetterFilter(
            queue=self.queue,
            definition=self.definition,
            category=self.category,
            job_id=(await client.resolve(self.job)).job_id if self.job else None,
            since=parse_since(self.since, client.now()) if self.since else None,
        )


def parse_since(text: str, now: datetime) -> datetime:
    """The time that a duration before now, or a date with or without a time, names.

    Raises:
        UsageError: it is neither.
    """
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        # Without a time zone it is local time.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        message = f"--since {text!r} is not a time: use 2h, 7d, 2026-01-31 or 2026-01-31T12:30"
        raise UsageError(message) from error


@client_command(
    ("longshore dead list", "newest first"),
    ("longshore dead list --category network --since 2h", "recent network errors"),
    ("longshore dead list --queue mail -o json | jq .count", "for a monitor"),
)
async def dead_list(
    client: ApiClient,
    *,
    selection: _Selection,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List dead letters, newest first: tasks and messages that need an operator.

    A task is a dead letter when it has failed and will not be retried, also a command of `longshore
    run`. It stays until it is replayed. A message is a dead letter when it was received too often
    and belongs to no task. It stays until it is discarded.
    """
    dead_filter = await selection.read(client)
    page = await client.app.list_dead_letters(dead_filter, limit=limit, cursor=cursor)
    # The ids are long; `dead show` has the definition.
    wide = screen.console().width >= _WIDE_TERMINAL
    client.options.print_listing(
        page,
        page.dead_letters,
        lambda letter: {
            "ID": letter.id,
            "DEFINITION": letter.name or "" if wide else "",
            "QUEUE": letter.queue,
            "CATEGORY": letter.category or screen.styled("message", "magenta"),
            "ATTEMPTS": f"{letter.attempts_used}/{letter.max_attempts}" if letter.name else "",
            "FAILED": client.ago(letter.at),
        },
        empty="no dead letters",
        error=lambda letter: letter.error,
        cursor=page.cursor,
    )
    if page.cursor is not None and not client.options.json:
        print_stderr(f"{page.count:,} dead letters in total")


@client_command(
    ("longshore dead show job-k3x_fetch", "a task: its attempts and its last output"),
    ("longshore dead show msg-17", "a message: why it could not be processed"),
)
async def dead_show(
    client: ApiClient,
    letter: Annotated[
        str, argument("ID", "ID or unique prefix of a task or its job, or ID of a message.")
    ],
) -> None:
    """Show a dead letter: its error, its attempts and the last lines of its output."""
    document = await _find(client, letter)
    if client.options.json:
        screen.print_json(document)
    elif document.task is not None:
        _print_task(client, document, document.task)
    else:
        _print_message(client, document)


async def _find(client: ApiClient, text: str) -> d.PostMortemDocument:
    """The dead letter that a text names: a message, a task, or the only one of a job."""
    if message_id_of(text) is not None:
        return await _get_message(client, text)
    ref = await client.resolve(text)
    if ref.task_id is not None:
        try:
            return await client.app.get_dead_letter(ref.task_id)
        except NotFound:
            state = (await client.app.get_task(ref.task_id)).status.replace("_", " ")
            problem = f"the task {ref.task_id} is {state} and not a dead letter"
            raise MissingResource(problem, f"see `longshore events {ref.task_id}`") from None
    letters = await client.list_all_dead_letters(DeadLetterFilter(job_id=ref.job_id))
    if not letters:
        raise MissingResource(f"{ref.job_id} has no dead letters", _LIST_HINT)
    if len(letters) > 1:
        ids = id_lines([letter.id for letter in letters])
        raise UsageError(f"{ref.job_id} has {len(letters)} dead letters; name one of them:{ids}")
    return await client.app.get_dead_letter(letters[0].id)


async def _get_message(client: ApiClient, letter_id: str) -> d.PostMortemDocument:
    try:
        return await client.app.get_dead_letter(letter_id)
    except NotFound:
        raise MissingResource(f"there is no dead letter {letter_id!r}", _LIST_HINT) from None


def _print_message(client: ApiClient, letter: d.PostMortemDocument) -> None:
    screen.print_title(letter.id, screen.styled("message", "magenta"))
    screen.print_pairs(
        queue=letter.queue,
        task=letter.request_id or "",
        reason=letter.error,
        received=formats.plural(letter.receives or 0, "time"),
        sent=client.ago(letter.sent_at),
        size=formats.size(letter.body_bytes or 0),
        body=safe_excerpt(letter.body or "", limit=_BODY_CHARACTERS),
        next="" if letter.request_id else f"longshore dead discard {letter.id}",
    )


def _print_task(client: ApiClient, letter: d.PostMortemDocument, task: d.TaskDocument) -> None:
    screen.print_title(task.task_id, screen.state_text(TaskState.FAILED))
    used = letter.attempts_used
    screen.print_pairs(
        task=task.request_id,
        definition=task.name,
        queue=letter.queue,
        error=letter.error,
        category=letter.category or "",
        type=(task.error.type or "") if task.error else "",
        ended_by=letter.ended_by or "",
        attempts=f"{used} of {letter.max_attempts} used" if used else "",
        round=str(letter.round) if (letter.round or 1) > 1 else "",
        input=formats.size(letter.input_bytes) if letter.input_bytes else "none",
        created=client.ago(task.created_at),
        failed=client.ago(letter.at),
        next=f"longshore dead replay {task.request_id}",
    )
    if letter.attempts:
        print()
        _print_attempts(client, letter.attempts)
    if letter.last_lines:
        print()
        terminal = screen.console()
        terminal.print(screen.styled(f"Last lines of output from attempt {task.attempt}:", "dim"))
        for line in letter.last_lines:
            sign, style = ("!", "yellow") if line.stream == "stderr" else ("|", "default")
            text = screen.styled(f"  {sign} ", "dim").append(line.text, style)
            terminal.print(text, soft_wrap=True)
        terminal.print(screen.styled(f"Complete output: longshore logs {task.request_id}", "dim"))


def _print_attempts(client: ApiClient, attempts: Sequence[d.PastAttemptDocument]) -> None:
    rounds = attempts[-1].round > 1
    screen.print_table(
        [
            {
                "ATTEMPT": str(attempt.attempt),
                "ROUND": str(attempt.round) if rounds else "",
                "STARTED": client.ago(attempt.started_at),
                "DURATION": formats.duration_ms_text(attempt.duration_ms),
                "ENDED": attempt.category or attempt.outcome or "",
                "EXIT": "" if attempt.exit_code is None else str(attempt.exit_code),
                "WORKER": attempt.worker_id or "",
            }
            for attempt in attempts
        ],
        [attempt.error or "" for attempt in attempts],
    )


_Tasks = dict[str, tuple[str, str]]
"""The queue and the category of each task to replay; a named task has no category."""


@client_command(
    ("longshore dead replay job-k3x_fetch", "one task"),
    ("longshore dead replay --category network --since 1h", "asks for confirmation"),
    ("longshore dead replay --all --yes", "everything, without asking"),
)
async def dead_replay(
    client: ApiClient,
    letters: Annotated[
        list[str] | None,
        argument("ID", "IDs or unique prefixes of tasks, or of jobs for all their tasks."),
    ] = None,
    *,
    selection: _Selection,
    everything: Annotated[bool, flag("Replay all tasks.", "--all")] = False,
    yes: Yes = False,
) -> int:
    """Run failed tasks again by ID or filter, in a new round with all their attempts.

    Has the same effect as `resume`, across jobs. Cancelled tasks are not included.

    Completed tasks are not run again; tasks that depend on a replayed task run after it. If two
    users replay a task at the same time, it is replayed once; tasks that are no longer dead letters
    are skipped.

    If a filter selects several tasks, the command shows how many there are and asks for
    confirmation. Without a terminal, --yes is needed.

    Exits with 1 if you decline, and with 4 if a task that was named is not a dead letter.
    """
    filtered = selection != _Selection()
    if letters and (filtered or everything):
        raise UsageError("name dead letters by ID or select them by filter, not both")
    if not letters and not filtered and not everything:
        message = f"name tasks, use a filter such as --queue mail, or use --all; {_LIST_HINT}"
        raise UsageError(message)
    messages = 0
    if letters:
        tasks, all_named = await _select_by_id(client, letters)
    else:
        selected = await client.list_all_dead_letters(await selection.read(client))
        tasks, all_named = _tasks_of(selected), False
        messages = len(selected) - len(tasks)
    if len(tasks) > 1 and not (yes or all_named or _confirm(tasks)):
        print_stderr("nothing was replayed")
        return ExitCode.FAILED
    result = await client.app.replay_dead_letters(list(tasks))
    if client.options.json:
        screen.print_json(result)
    else:
        _print_replayed(client, result, list(dict.fromkeys(queue for queue, _ in tasks.values())))
        if messages:
            number = formats.plural(messages, "message")
            print_stderr(f"{number} skipped: only tasks can be replayed; see `longshore dead list`")
        elif not tasks:
            print_stderr("no dead letters")
    return ExitCode.REFUSED if letters and result.skipped else ExitCode.OK


def _tasks_of(letters: Sequence[d.DeadLetterDocument]) -> _Tasks:
    return {
        letter.id: (letter.queue, letter.category or "unknown")
        for letter in letters
        if letter.kind == "task"
    }


async def _select_by_id(client: ApiClient, texts: Sequence[str]) -> tuple[_Tasks, bool]:
    """The tasks that the texts name, and whether each was named itself and not by its job."""
    tasks: _Tasks = {}
    all_named = True
    for text in texts:
        if message_id_of(text) is not None:
            letter = await _get_message(client, text)
            hint = f"`longshore dead discard {letter.id}` deletes it"
            raise CommandRefused(text, f"a message cannot be replayed; {hint}")
        ref = await client.resolve(text)
        if ref.task_id is not None:
            queue = (await client.app.get_task(ref.task_id)).queue
            tasks.setdefault(ref.task_id, (queue, ""))
            continue
        failed = await client.list_all_dead_letters(DeadLetterFilter(job_id=ref.job_id))
        if not failed:
            raise CommandRefused(ref.job_id, "none of its tasks has failed")
        tasks |= _tasks_of(failed)
        all_named = False
    return tasks, all_named


def _confirm(tasks: _Tasks) -> bool:
    number = formats.plural(len(tasks), "task")
    jobs = {split_task_id(task_id)[0] for task_id in tasks}
    kinds = Counter(tasks.values()).most_common()
    widest = max(len(queue) for (queue, _), _ in kinds)
    lines = [
        f"{number} of {formats.plural(len(jobs), 'job')}:",
        *(
            f"  {count:6,}  {queue:{widest}}  {category}".rstrip()
            for (queue, category), count in kinds[:_MAX_SHOWN]
        ),
        *(["       …"] if len(kinds) > _MAX_SHOWN else []),
        f"Replay {number}? [y/N] ",
    ]
    answer = screen.ask("\n".join(lines), effect=f"this would replay {number}")
    return answer.lower() in ("y", "yes")


def _print_replayed(
    client: ApiClient, result: d.ReplayResultDocument, queues: Sequence[str]
) -> None:
    if tasks := result.replayed:
        jobs = list(dict.fromkeys(split_task_id(task.request_id)[0] for task in tasks))
        replayed = f"{formats.plural(len(tasks), 'task')} of {formats.plural(len(jobs), 'job')}"
        if len(tasks) == 1:
            replayed = f"{tasks[0].request_id}, now in round {tasks[0].round}"
        show_job = f"longshore job {jobs[0]}" if len(jobs) == 1 else None
        screen.print_pairs(
            replayed=replayed,
            **{"queue" if len(queues) == 1 else "queues": ", ".join(queues)},
            next="; ".join(filter(None, [client.worker_command(queues), show_job])),
        )
        sys.stdout.flush()
    for task in result.skipped[:_MAX_SHOWN]:
        print_stderr(f"longshore: {task.request_id} was not replayed: {task.reason}")
    if (rest := len(result.skipped) - _MAX_SHOWN) > 0:
        print_stderr(f"longshore: and {rest:,} more")


@client_command(("longshore dead discard msg-17", "a message that belongs to no task"))
async def dead_discard(
    client: ApiClient,
    letters: Annotated[list[str], argument("ID", "Messages, as `dead list` shows.")],
) -> None:
    """Delete dead messages that belong to no task.

    An event of the queue keeps the reason and the beginning of the message. A failed task cannot be
    deleted: it is part of the history and stays in the list until it is replayed.
    """
    ids: dict[str, None] = {}
    for text in letters:
        if message_id_of(text) is None:
            ref = await client.resolve(text)
            reason = "a failed task is part of the history; only messages can be discarded"
            raise CommandRefused(ref.id, reason)
        ids[(await _get_message(client, text)).id] = None
    for letter_id in ids:
        await client.app.discard_dead_letter(letter_id)
        if not client.options.json:
            print(f"discarded {letter_id}")
    if client.options.json:
        screen.print_json({"discarded": list(ids)})
