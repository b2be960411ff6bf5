"""Gives every call site of the AWS adapters every trouble, and looks what comes of it.

``python -m tests.aws.every_call_site`` tells each story again and again: each time every site meets
another trouble. What a site did not meet so, because another trouble was in the way, it meets
alone. First the first call of every site does, then the second, then the
last; and then so many in a row that whoever asked is told of it and has to ask again. After each
story the tables are audited, and its jobs have to end as they should. Prints how many sites and
troubles there were, and everything that was wrong. A site that no story reaches is wrong, too.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

from botocore.retries.standard import ExponentialBackoff

from longshore.testing.clock import FakeClock
from tests.aws.call_reached import EXCUSED
from tests.aws.call_sites import Place, places
from tests.aws.call_stories import STORIES
from tests.aws.call_theatre import Story, Unfinished, theatre
from tests.aws.call_tracing import seen_through
from tests.aws.standin import stand_in
from tests.aws.wire_trouble import Plan, Site, Trouble, TroubledAws, Turns, may_meet, the_first
from tests.unit.services import patience

_START = datetime(2030, 1, 7, 12, tzinfo=UTC)
_STORY_TAKES = timedelta(days=2)
_LIMIT_S = 300
_IDLE_TELLINGS = 2
_runs = count(1)

Pair = tuple[Site, Trouble]

TURNS = ("first", "second", "last", "storm")
STORMY = (Trouble.THROTTLED, Trouble.BROKEN_AFTER, Trouble.TIMED_OUT, Trouble.RESET)
STORM = 9
"""So many calls of a site fail one after the other: more than anybody but a client tries."""
# Each answer that is lost leaves a copy of the message, which is seen before the time to which the
# last one was put off: that is what a queue may do, and more than this story allows.
SPARED_BY_STORMS = ("messages_that_are_put_off_given_back_and_worn_out",)


@dataclass(slots=True)
class Told:
    """What came of telling a story once."""

    story: str
    made: Counter[Site]
    met: dict[Site, Trouble]
    passed: set[Place]
    wrong: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> set[Pair]:
        return set(self.met.items())


@contextmanager
def without_pauses() -> Iterator[None]:
    """The library asks again at once: how long it waits is not ours to test."""
    with patch.object(ExponentialBackoff, "delay_amount", lambda *_: 0.0):
        yield


def tell(folder: Path, story: Story, plan: Plan = lambda _: None, turns: Turns = the_first) -> Told:
    """Tell a story while one call of each site meets the trouble that is planned for it."""
    number = next(_runs)
    clock = FakeClock(_START + number * _STORY_TAKES)
    aws = TroubledAws(stand_in().place, clock, plan, turns)
    told = Told(story.__name__, aws.made, aws.met, aws.passed)

    async def play() -> None:
        async with asyncio.timeout(_LIMIT_S):
            async with theatre(folder, clock, aws, f"story-{number}") as stage:
                await story(stage)
                told.wrong += [str(one) for one in await stage.comes_to_rest()]

    with without_pauses(), seen_through():
        try:
            patience.run(play())
        except (Unfinished, TimeoutError) as error:
            told.wrong.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the next story is told
            last = traceback.extract_tb(error.__traceback__)[-1]
            told.wrong.append(f"ended by {error!r} in {last.name}, line {last.lineno}: {last.line}")
    return told


class Campaign:
    """All stories, and what came of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = self._wrong = 0
        self._passed: set[Place] = set()
        self._told_by: dict[Site, Story] = {}
        self._calls: Counter[Site] = Counter()  # in the story that tells of the site

    def run(self, stories: Sequence[Story], turns: Sequence[str]) -> int:
        """How much was wrong."""
        began = time.monotonic()
        for story in stories:
            told = self._tell(story, "without trouble")
            self._passed |= told.passed
            for site, calls in told.made.items():
                if site not in self._told_by or calls > self._calls[site]:
                    self._told_by[site], self._calls[site] = story, calls
            _say(f"{story.__name__}: {told.made.total()} calls of {len(told.made)} sites")
        if len(stories) == len(STORIES):
            self._wrong += _say_all("UNREACHED", unreached(self._passed))
        for turn in turns:
            never = self._turn(turn)
            self._wrong += never
        _say(f"all: {self._runs} stories, {self._wrong} wrong, {_since(began)}")
        return self._wrong

    def _turn(self, turn: str) -> int:
        """Every trouble at these calls of every site; how many could not be brought about."""
        began, runs, wrong = time.monotonic(), self._runs, self._wrong
        met: set[Pair] = set()
        wanted = {
            (site, trouble)
            for site, calls in self._calls.items()
            if turn in ("first", "storm") or calls > 1
            for trouble in may_meet(site)
            if turn != "storm" or (trouble in STORMY and self._stormy(site))
        }
        for story in dict.fromkeys(self._told_by.values()):
            own = {(site, trouble) for site, trouble in wanted if self._told_by[site] is story}
            met |= self._meet(story, own, turn)
            _say(f"{turn}, {story.__name__}: {len(own & met)} of {len(own)}, {_since(began)}")
        never = wanted - met
        _say(
            f"{turn}: {len({site for site, _ in wanted})} sites, {len(wanted - never)} of"
            f" {len(wanted)} troubles, {self._runs - runs} stories, {self._wrong - wrong} wrong,"
            f" {_since(began)}"
        )
        lines = [f"{turn}, {site}: {trouble.name}" for site, trouble in sorted(never)]
        # How often a site is called depends on what went before: only the first call is certain.
        return _say_all("NEVER", lines) if turn == "first" else 0 * _say_all("not met", lines)

    def _stormy(self, site: Site) -> bool:
        return self._told_by[site].__name__ not in SPARED_BY_STORMS

    def _meet(self, story: Story, wanted: set[Pair], turn: str) -> set[Pair]:
        """Tell a story until all of these have happened, or no more of them do."""
        met: set[Pair] = set()
        number, idle = 0, 0
        while (left := wanted - met) and idle < _IDLE_TELLINGS:
            number += 1
            # Others each time, and not the same of all: one trouble may keep the next away.
            plan = dict(sorted(left, key=lambda pair: crc32(f"{number} {pair}".encode())))
            told = self._tell(story, f"{turn}, telling {number}", plan.get, self._which(turn))
            idle = 0 if told.pairs & left else idle + 1
            met |= told.pairs
        for site, trouble in sorted(wanted - met):
            what = f"{turn}, {site}: {trouble.name}"
            met |= self._tell(story, what, {site: trouble}.get, self._which(turn)).pairs
        return met

    def _which(self, turn: str) -> Turns:
        match turn:
            case "second":
                return lambda _: range(1, 2)
            case "last":
                return lambda site: range(self._calls[site] - 1, self._calls[site])
            case "storm":
                return lambda _: range(STORM)
        return the_first

    def _tell(
        self, story: Story, what: str, plan: Plan = lambda _: None, turns: Turns = the_first
    ) -> Told:
        told = tell(self._folder, story, plan, turns)
        self._runs += 1
        self._wrong += _say_all("WRONG", [f"{told.story}, {what}: {one}" for one in told.wrong])
        return told


def unreached(passed: set[Place]) -> list[str]:
    """Sites of which no story tells."""
    return sorted(str(place) for place in places() - passed if str(place) not in EXCUSED)


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def _say_all(what: str, lines: Sequence[str]) -> int:
    for line in lines:
        _say(f"{what}  {line}")
    return len(lines)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", nargs="*", default=TURNS, choices=TURNS, help="which calls")
    parser.add_argument("--stories", nargs="*", default=[], help="parts of their names")
    asked = parser.parse_args()
    wanted = [
        story
        for story in STORIES
        if not asked.stories or any(part in story.__name__ for part in asked.stories)
    ]
    logging.getLogger("longshore").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="call-sites-") as folder:
        return 1 if Campaign(Path(folder)).run(wanted, asked.turns) else 0


if __name__ == "__main__":
    raise SystemExit(main())
