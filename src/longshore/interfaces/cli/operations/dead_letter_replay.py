"""The bodies of ``longshore dead replay`` and ``dead discard``.

A replay goes in three steps: what is meant is found and counted, the person is asked, and exactly
what was counted is replayed. The question is asked outside the event loop, where Ctrl-C works as
everywhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.core.dead_letters import DeadLetterFilter, message_id_of
from longshore.core.ids import split_task_id
from longshore.errors import CommandRefused, UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.operations.dead_letters import (
    DeadLetterOptions,
    is_task,
    read_message,
)
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import print_json, print_pairs

_SHOWN = 10


@dataclass(slots=True)
class _Selection:
    """What is to be replayed."""

    task_ids: list[str] = field(default_factory=list)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)  # of those not named
    queues: dict[str, None] = field(default_factory=dict)  # in the order in which they came
    messages: int = 0  # that were meant too, and cannot be replayed
    explicit: bool = False  # each task was named by itself


def replay(
    options: GlobalOptions,
    texts: Sequence[str],
    filter_options: DeadLetterOptions,
    *,
    everything: bool,
    yes: bool,
) -> int:
    """Give tasks another round; the exit code."""
    if texts and (filter_options or everything):
        message = "name dead letters by id or choose them by filter, not both"
        raise UsageError(message)
    if not texts and not filter_options and not everything:
        message = (
            "say what to replay: ids, a filter such as --queue mail, or --all;"
            " `longshore dead list` lists what there is"
        )
        raise UsageError(message)
    chosen = asyncio.run(
        _select_by_id(options, texts) if texts else _select_by_filter(options, filter_options)
    )
    if not chosen.task_ids:
        return _print_nothing(options, chosen)
    if len(chosen.task_ids) > 1 and not chosen.explicit and not yes and not _confirmed(chosen):
        print_stderr("nothing was replayed")
        return ExitCode.FAILED
    return asyncio.run(_replay(options, chosen, strict=bool(texts)))


async def _select_by_filter(
    options: GlobalOptions, filter_options: DeadLetterOptions
) -> _Selection:
    async with open_client(options) as desk:
        chosen = _Selection()
        await _add_matching(desk, chosen, await filter_options.to_filter(desk))
        return chosen


async def _select_by_id(options: GlobalOptions, texts: Sequence[str]) -> _Selection:
    async with open_client(options) as desk:
        chosen = _Selection(explicit=True)
        for text in texts:
            if message_id_of(text) is not None:
                letter = await read_message(desk, text)
                advice = f"`longshore dead discard {letter['id']}` forgets it"
                raise CommandRefused(text, f"a message has no rounds; {advice}")
            named = await desk.resolve(text)
            if named.task_id is not None:
                chosen.task_ids.append(named.task_id)
                chosen.queues[(await desk.task(named.task_id))["queue"]] = None
                continue
            before = len(chosen.task_ids)
            await _add_matching(desk, chosen, DeadLetterFilter(job_id=named.job_id))
            if len(chosen.task_ids) == before:
                raise CommandRefused(named.job_id, "none of its tasks has failed")
            chosen.explicit = False
        chosen.task_ids = list(dict.fromkeys(chosen.task_ids))
        return chosen


async def _add_matching(
    client: ApiClient, selection: _Selection, dead_filter: DeadLetterFilter
) -> None:
    async for letter in client.matching_dead_letters(dead_filter):
        if is_task(letter):
            selection.task_ids.append(letter["id"])
            selection.kinds[letter["queue"], letter["category"] or "unknown"] += 1
            selection.queues[letter["queue"]] = None
        else:
            selection.messages += 1


def _print_nothing(options: GlobalOptions, selection: _Selection) -> int:
    if options.json:
        print_json({"replayed": [], "skipped": []})
    elif selection.messages:
        _print_skipped_messages(selection.messages)
    else:
        print_stderr("no dead letters")
    return ExitCode.OK


def _print_skipped_messages(count: int) -> None:
    number = formats.plural(count, "message")
    print_stderr(f"{number} left alone: only tasks can be replayed; see `longshore dead list`")


def _confirmed(selection: _Selection) -> bool:
    """Show how much it is, and ask.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    number = formats.plural(len(selection.task_ids), "task")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"this would replay {number}; add --yes, for there is no terminal to ask on"
        raise UsageError(message)
    jobs = {split_task_id(task_id)[0] for task_id in selection.task_ids}
    print_stderr(f"{number} of {formats.plural(len(jobs), 'job')}:")
    kinds = [(*kind, count) for kind, count in selection.kinds.most_common()]
    widest = max((len(queue) for queue, _, _ in kinds), default=0)
    for queue, category, count in kinds[:_SHOWN]:
        print_stderr(f"  {count:6,}  {queue:{widest}}  {category}")
    if len(kinds) > _SHOWN:
        print_stderr("       …")
    print(f"Replay {number}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print_stderr("")
    return answer.strip().lower() in ("y", "yes")


async def _replay(options: GlobalOptions, selection: _Selection, *, strict: bool) -> int:
    async with open_client(options) as desk:
        replayed = await desk.replay_dead_letters(selection.task_ids)
        if options.json:
            print_json(replayed)
        else:
            _print_replayed(desk, replayed, list(selection.queues))
            if selection.messages:
                _print_skipped_messages(selection.messages)
        return ExitCode.REFUSED if strict and replayed["skipped"] else ExitCode.OK


def _print_replayed(client: ApiClient, replayed: Document, queues: Sequence[str]) -> None:
    done, moved_on = replayed["replayed"], replayed["skipped"]
    if done:
        jobs = list(dict.fromkeys(split_task_id(task["requestId"])[0] for task in done))
        one = f"{done[0]['requestId']}, now in round {done[0]['round']}"
        many = f"{formats.plural(len(done), 'task')} of {formats.plural(len(jobs), 'job')}"
        steps = [
            client.worker_command(queues),
            f"longshore job {jobs[0]}" if len(jobs) == 1 else None,
        ]
        print_pairs(
            [
                ("replayed", one if len(done) == 1 else many),
                ("queue" if len(queues) == 1 else "queues", ", ".join(queues)),
                ("next", "; ".join(step for step in steps if step)),
            ]
        )
        sys.stdout.flush()
    for task in moved_on[:_SHOWN]:
        why = f"{task['requestId']} has moved on and was left as it is: {task['reason']}"
        print_stderr(f"longshore: {why}")
    if (rest := len(moved_on) - _SHOWN) > 0:
        print_stderr(f"longshore: and {rest:,} more")


async def discard(options: GlobalOptions, texts: Sequence[str]) -> None:
    """Forget messages that lead to no task."""
    async with open_client(options) as desk:
        ids = []
        for text in texts:
            if message_id_of(text) is not None:
                ids.append((await read_message(desk, text))["id"])
                continue
            named = await desk.resolve(text)
            reason = "a task that failed is history and stays; only messages can be discarded"
            raise CommandRefused(named.task_id or named.job_id, reason)
        for letter_id in dict.fromkeys(ids):
            await desk.discard_dead_letter(letter_id)
            if not options.json:
                print(f"discarded {letter_id}")
        if options.json:
            print_json({"discarded": list(dict.fromkeys(ids))})
