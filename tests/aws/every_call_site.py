"""Gives every call site of the AWS adapters every trouble, and looks what comes of it.

``python -m tests.aws.every_call_site`` tells each story as often as there are kinds of trouble:
each time every site meets another one. What a site did not meet so, because another trouble
was in the way, it meets alone. After each story the tables are audited, and its jobs have to end
as they should. Prints how many sites and troubles there were, and everything that was wrong.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from unittest.mock import patch

from botocore.retries.standard import ExponentialBackoff

from longshore.testing.clock import FakeClock
from tests.aws.call_stories import STORIES, Story, Unfinished, theatre
from tests.aws.standin import stand_in
from tests.aws.wire_trouble import Plan, Site, Trouble, TroubledAws, may_meet
from tests.unit.services import patience

_START = datetime(2030, 1, 7, 12, tzinfo=UTC)
_STORY_TAKES = timedelta(days=2)
_LIMIT_S = 120
_runs = count(1)

Pair = tuple[Site, Trouble]


@dataclass(slots=True)
class Told:
    """What came of telling a story once."""

    story: str
    made: Counter[Site]
    met: dict[Site, Trouble]
    wrong: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> set[Pair]:
        return set(self.met.items())


@contextmanager
def without_pauses() -> Iterator[None]:
    """The library asks again at once: how long it waits is not ours to test."""
    with patch.object(ExponentialBackoff, "delay_amount", lambda *_: 0.0):
        yield


def tell(folder: Path, story: Story, plan: Plan = lambda _: None, which: int = 0) -> Told:
    """Tell a story while one call of each site meets the trouble that is planned for it."""
    number = next(_runs)
    clock = FakeClock(_START + number * _STORY_TAKES)
    aws = TroubledAws(stand_in().place, clock, plan, which)
    told = Told(story.__name__, aws.made, aws.met)

    async def play() -> None:
        async with asyncio.timeout(_LIMIT_S):
            async with theatre(folder, clock, aws, f"story-{number}") as stage:
                await story(stage)
                told.wrong += [str(one) for one in await stage.comes_to_rest()]

    with without_pauses():
        try:
            patience.run(play())
        except (Unfinished, TimeoutError) as error:
            told.wrong.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the next story is told
            told.wrong.append(f"ended by {error!r}")
    return told


def plan_of(sites: Sequence[Site], turn: int) -> Plan:
    """A trouble for each site, another one in each turn."""
    plan = {}
    for place, site in enumerate(sites):
        troubles = may_meet(site)
        plan[site] = troubles[(place + turn) % len(troubles)]
    return plan.get


def sites_of(told: Told) -> list[Site]:
    return sorted(told.made)


def all_pairs(sites: Sequence[Site]) -> set[Pair]:
    return {(site, trouble) for site in sites for trouble in may_meet(site)}


def campaign(folder: Path, *, alone: bool) -> int:
    """All of it; how much was wrong."""
    began, runs, wrong = time.monotonic(), 0, 0
    met: set[Pair] = set()
    everywhere: dict[Site, Story] = {}

    def add(told: Told, what: str) -> None:
        nonlocal runs, wrong
        runs += 1
        met.update(told.pairs)
        wrong += len(told.wrong)
        for text in told.wrong:
            _say(f"WRONG  {told.story}, {what}: {text}")

    for story in STORIES:
        told = tell(folder, story)
        add(told, "without trouble")
        sites = sites_of(told)
        everywhere |= {site: story for site in sites if site not in everywhere}
        _say(f"{story.__name__}: {told.made.total()} calls of {len(sites)} sites")
        for turn in range(0 if alone else len(Trouble)):
            add(tell(folder, story, plan_of(sites, turn)), f"turn {turn}")
    left = sorted(all_pairs(list(everywhere)) - met)
    for site, trouble in left:
        add(tell(folder, everywhere[site], {site: trouble}.get), f"{site}: {trouble.name}")
    missed = all_pairs(list(everywhere)) - met
    for site, trouble in sorted(missed):
        _say(f"NEVER  {site}: {trouble.name}")
    took = time.monotonic() - began
    _say(
        f"{len(everywhere)} sites, {len(met)} troubles of {len(met | missed)}, {runs} stories,"
        f" {wrong} violations, {took:.0f} s"
    )
    return wrong + len(missed)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true", help="one trouble a story: takes longest")
    asked = parser.parse_args()
    logging.getLogger("longshore").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="call-sites-") as folder:
        return 1 if campaign(Path(folder), alone=asked.alone) else 0


if __name__ == "__main__":
    raise SystemExit(main())
