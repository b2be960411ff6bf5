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

from longshore.core.dead_letters import DeadFilter, message_named
from longshore.core.ids import split_task_id
from longshore.errors import CommandRefused, UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.dead_view import Wish, is_task, message_of
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json, print_pairs

_SHOWN = 10


@dataclass(slots=True)
class _Chosen:
    """What is to be replayed."""

    task_ids: list[str] = field(default_factory=list)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)  # of those not named
    queues: dict[str, None] = field(default_factory=dict)  # in the order in which they came
    messages: int = 0  # that were meant too, and cannot be replayed
    by_name: bool = False  # each task was named by itself


def replay(here: Here, texts: Sequence[str], wish: Wish, *, everything: bool, yes: bool) -> int:
    """Give tasks another round; the exit code."""
    if texts and (wish or everything):
        message = "name dead letters by id or choose them by filter, not both"
        raise UsageError(message)
    if not texts and not wish and not everything:
        message = (
            "say what to replay: ids, a filter such as --queue mail, or --all;"
            " `longshore dead list` lists what there is"
        )
        raise UsageError(message)
    chosen = asyncio.run(_named(here, texts) if texts else _wished(here, wish))
    if not chosen.task_ids:
        return _nothing(here, chosen)
    if len(chosen.task_ids) > 1 and not chosen.by_name and not yes and not _agreed(chosen):
        say("nothing was replayed")
        return ExitCode.FAILED
    return asyncio.run(_replay(here, chosen, strict=bool(texts)))


async def _wished(here: Here, wish: Wish) -> _Chosen:
    async with desk_for(here) as desk:
        chosen = _Chosen()
        await _choose(desk, chosen, await wish.meant(desk))
        return chosen


async def _named(here: Here, texts: Sequence[str]) -> _Chosen:
    async with desk_for(here) as desk:
        chosen = _Chosen(by_name=True)
        for text in texts:
            if message_named(text) is not None:
                letter = await message_of(desk, text)
                advice = f"`longshore dead discard {letter['id']}` forgets it"
                raise CommandRefused(text, f"a message has no rounds; {advice}")
            named = await desk.find(text)
            if named.task_id is not None:
                chosen.task_ids.append(named.task_id)
                chosen.queues[(await desk.task(named.task_id))["queue"]] = None
                continue
            before = len(chosen.task_ids)
            await _choose(desk, chosen, DeadFilter(job_id=named.job_id))
            if len(chosen.task_ids) == before:
                raise CommandRefused(named.job_id, "none of its tasks has failed")
            chosen.by_name = False
        chosen.task_ids = list(dict.fromkeys(chosen.task_ids))
        return chosen


async def _choose(desk: Desk, chosen: _Chosen, wanted: DeadFilter) -> None:
    async for letter in desk.dead_matching(wanted):
        if is_task(letter):
            chosen.task_ids.append(letter["id"])
            chosen.kinds[letter["queue"], letter["category"] or "unknown"] += 1
            chosen.queues[letter["queue"]] = None
        else:
            chosen.messages += 1


def _nothing(here: Here, chosen: _Chosen) -> int:
    if here.json:
        print_json({"replayed": [], "movedOn": []})
    elif chosen.messages:
        _tell_of_messages(chosen.messages)
    else:
        say("no dead letters")
    return ExitCode.OK


def _tell_of_messages(count: int) -> None:
    number = words.number_of(count, "message")
    say(f"{number} left alone: only tasks can be replayed; see `longshore dead list`")


def _agreed(chosen: _Chosen) -> bool:
    """Show how much it is, and ask.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    number = words.number_of(len(chosen.task_ids), "task")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"this would replay {number}; add --yes, for there is no terminal to ask on"
        raise UsageError(message)
    jobs = {split_task_id(task_id)[0] for task_id in chosen.task_ids}
    say(f"{number} of {words.number_of(len(jobs), 'job')}:")
    kinds = [(*kind, count) for kind, count in chosen.kinds.most_common()]
    widest = max((len(queue) for queue, _, _ in kinds), default=0)
    for queue, category, count in kinds[:_SHOWN]:
        say(f"  {count:6,}  {queue:{widest}}  {category}")
    if len(kinds) > _SHOWN:
        say("       …")
    print(f"Replay {number}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        say("")
    return answer.strip().lower() in ("y", "yes")


async def _replay(here: Here, chosen: _Chosen, *, strict: bool) -> int:
    async with desk_for(here) as desk:
        replayed = await desk.replay(chosen.task_ids)
        if here.json:
            print_json(replayed)
        else:
            _tell(desk, replayed, list(chosen.queues))
            if chosen.messages:
                _tell_of_messages(chosen.messages)
        return ExitCode.REFUSED if strict and replayed["movedOn"] else ExitCode.OK


def _tell(desk: Desk, replayed: Document, queues: Sequence[str]) -> None:
    done, moved_on = replayed["replayed"], replayed["movedOn"]
    if done:
        jobs = list(dict.fromkeys(split_task_id(task["requestId"])[0] for task in done))
        one = f"{done[0]['requestId']}, now in round {done[0]['round']}"
        many = f"{words.number_of(len(done), 'task')} of {words.number_of(len(jobs), 'job')}"
        steps = [desk.who_works(queues), f"longshore job {jobs[0]}" if len(jobs) == 1 else None]
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
        say(f"longshore: {why}")
    if (rest := len(moved_on) - _SHOWN) > 0:
        say(f"longshore: and {rest:,} more")


async def discard(here: Here, texts: Sequence[str]) -> None:
    """Forget messages that lead to no task."""
    async with desk_for(here) as desk:
        ids = []
        for text in texts:
            if message_named(text) is not None:
                ids.append((await message_of(desk, text))["id"])
                continue
            named = await desk.find(text)
            reason = "a task that failed is history and stays; only messages can be discarded"
            raise CommandRefused(named.task_id or named.job_id, reason)
        for letter_id in dict.fromkeys(ids):
            await desk.discard(letter_id)
            if not here.json:
                print(f"discarded {letter_id}")
        if here.json:
            print_json({"discarded": list(dict.fromkeys(ids))})
