"""The bodies of ``longshore dead replay`` and ``dead discard``.

A replay goes in three steps: what is meant is found and counted, the person is asked, and exactly
what was counted is replayed. The question is asked outside the event loop, where Ctrl-C works as
everywhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.core.dead_letters import DeadFilter, message_named
from longshore.core.ids import split_task_id
from longshore.errors import CommandRefused, UsageError
from longshore.interfaces.cli import naming, words
from longshore.interfaces.cli.dead_view import Wish, message_of
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json, print_pairs
from longshore.interfaces.cli.session import Session, existing, settings_for
from longshore.services.dead_letters import Counts, Replayed

_BY = "user"
_SHOWN = 10


@dataclass(slots=True)
class _Chosen:
    """What is to be replayed."""

    task_ids: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)  # of those that were not named
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
    async with existing(settings_for(here)) as session:
        chosen = _Chosen()
        await _choose(session, chosen, await wish.meant(session))
        return chosen


async def _named(here: Here, texts: Sequence[str]) -> _Chosen:
    async with existing(settings_for(here)) as session:
        chosen = _Chosen(by_name=True)
        for text in texts:
            if message_named(text) is not None:
                letter = await message_of(session, text)
                advice = f"`longshore dead discard {letter.id}` forgets it"
                raise CommandRefused(text, f"a message has no rounds; {advice}")
            ledger, tenant = session.backend.ledger, session.settings.tenant
            named = await naming.find(ledger, tenant, text)
            if named.task_id is not None:
                chosen.task_ids.append(named.task_id)
                continue
            before = len(chosen.task_ids)
            await _choose(session, chosen, DeadFilter(job_id=named.job_id))
            if len(chosen.task_ids) == before:
                raise CommandRefused(named.job_id, "none of its tasks has failed")
            chosen.by_name = False
        chosen.task_ids = list(dict.fromkeys(chosen.task_ids))
        return chosen


async def _choose(session: Session, chosen: _Chosen, wanted: DeadFilter) -> None:
    async for letter in session.dead_letters.matching(session.settings.tenant, wanted):
        if letter.replayable:
            chosen.task_ids.append(letter.id)
            chosen.counts.add(letter)
        else:
            chosen.messages += 1


def _nothing(here: Here, chosen: _Chosen) -> int:
    if here.json:
        _print_json(Replayed(rounds={}, moved_on={}))
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
    kinds = [(*kind, count) for kind, count in chosen.counts.by_kind.most_common()]
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
    async with existing(settings_for(here)) as session:
        tenant = session.settings.tenant
        replayed = await session.dead_letters.replay(tenant, chosen.task_ids, by=_BY)
        if here.json:
            _print_json(replayed)
        else:
            await _tell(session, replayed)
            if chosen.messages:
                _tell_of_messages(chosen.messages)
        return ExitCode.REFUSED if strict and replayed.moved_on else ExitCode.OK


def _print_json(replayed: Replayed) -> None:
    rounds = [{"requestId": one, "round": number} for one, number in replayed.rounds.items()]
    moved_on = [{"requestId": one, "reason": why} for one, why in replayed.moved_on.items()]
    print_json({"replayed": rounds, "movedOn": moved_on})


async def _tell(session: Session, replayed: Replayed) -> None:
    ids = list(replayed.rounds)
    if ids:
        jobs = list(dict.fromkeys(split_task_id(task_id)[0] for task_id in ids))
        one = f"{ids[0]}, now in round {replayed.rounds[ids[0]]}"
        many = f"{words.number_of(len(ids), 'task')} of {words.number_of(len(jobs), 'job')}"
        queues = await _queues(session, ids)
        print_pairs(
            [
                ("replayed", one if len(ids) == 1 else many),
                ("queue" if len(queues) == 1 else "queues", ", ".join(queues)),
                ("next", _next(session, queues, jobs)),
            ]
        )
        sys.stdout.flush()
    for task_id, why in list(replayed.moved_on.items())[:_SHOWN]:
        say(f"longshore: {task_id} has moved on and was left as it is: {why}")
    if (rest := len(replayed.moved_on) - _SHOWN) > 0:
        say(f"longshore: and {rest:,} more")


async def _queues(session: Session, task_ids: Sequence[str]) -> list[str]:
    rows = await session.backend.ledger.tasks(task_ids)
    return list(dict.fromkeys(row.spec.queue for row in rows))


def _next(session: Session, queues: Sequence[str], jobs: Sequence[str]) -> str:
    usual = session.settings.worker.queues
    named = "".join(f" --queue {queue}" for queue in queues)
    steps = []
    if not set(queues) <= set(usual):
        steps.append(f"longshore worker --burst{named}")
    elif not session.presence.present():
        steps.append("longshore worker --burst")
    if len(jobs) == 1:
        steps.append(f"longshore job {jobs[0]}")
    return "; ".join(steps)


async def discard(here: Here, texts: Sequence[str]) -> None:
    """Forget messages that lead to no task."""
    async with existing(settings_for(here)) as session:
        tenant, ledger = session.settings.tenant, session.backend.ledger
        ids = []
        for text in texts:
            if message_named(text) is not None:
                ids.append((await message_of(session, text)).id)
                continue
            named = await naming.find(ledger, tenant, text)
            reason = "a task that failed is history and stays; only messages can be discarded"
            raise CommandRefused(named.task_id or named.job_id, reason)
        for letter_id in dict.fromkeys(ids):
            await session.dead_letters.discard(tenant, letter_id, by=_BY)
            if not here.json:
                print(f"discarded {letter_id}")
        if here.json:
            print_json({"discarded": list(dict.fromkeys(ids))})
