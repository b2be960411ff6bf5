"""Events on their way: some come twice, some long after those that followed them, none never."""

from __future__ import annotations

from itertools import count
from random import Random

from longshore.core.events.event import Event
from longshore.ports.events import Delivery
from longshore.testing.simulation.faults import Fault, Faults
from longshore.testing.simulation.world import World

_LATEST = 60.0
_MOST_OLD = 8


class LateEvents:
    """Stands between the bus and its consumers.

    What it holds back has been acknowledged on the bus, so it keeps it until a delivery that has it
    is acknowledged here.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._numbers = count(1)
        self._brought: list[Event] = []
        self._held: dict[int, tuple[float, Event]] = {}  # with when it comes

    def mixed_up(self, delivery: Delivery | None, world: World, faults: Faults) -> Delivery | None:
        """A delivery without what is late, with what was late, and with what is old."""
        events: list[Event] = []
        for event in delivery.events if delivery else ():
            if faults.happens(Fault.EVENT_LATE, self._rng):
                moment = world.time() + self._rng.random() * _LATEST
                self._held[next(self._numbers)] = (moment, event)
            else:
                events.append(event)
        now = world.time()
        due = [key for key, (moment, _) in self._held.items() if moment <= now or faults.over]
        events += [self._held[key][1] for key in due]
        if self._brought and faults.happens(Fault.EVENT_DOUBLED, self._rng):
            events += [self._rng.choice(self._brought) for _ in range(_MOST_OLD)]
        self._brought += events
        if not events and delivery is None:
            return None
        receipt = delivery.receipt if delivery else "0"
        return Delivery(events=tuple(events), receipt=":".join([receipt, *map(str, due)]))

    def received(self, receipt: str) -> str:
        """Forget what came with this delivery; the receipt as the bus knows it."""
        first, *held = receipt.split(":")
        for key in held:
            self._held.pop(int(key), None)
        return first
