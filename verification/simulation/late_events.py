"""Events on their way: some come twice, some long after those that followed them, none never."""

from __future__ import annotations

from itertools import count
from random import Random

from longshore.core.events.event import Event
from longshore.ports.events import Delivery
from verification.simulation.faults import Fault, Faults
from verification.simulation.simulation import Simulation

_MAX_DELAY_S = 60.0
_MAX_REPEATED = 8


class LateEvents:
    """Stands between the bus and its consumers.

    What it holds back has been acknowledged on the bus, so it keeps it until a delivery that has it
    is acknowledged here.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._numbers = count(1)
        self._delivered: list[Event] = []
        self._delayed: dict[int, tuple[float, Event]] = {}  # with when it comes

    def mix(
        self, delivery: Delivery | None, simulation: Simulation, faults: Faults
    ) -> Delivery | None:
        """A delivery without what is late, with what was late, and with what is old."""
        events: list[Event] = []
        for event in delivery.events if delivery else ():
            if faults.occurs(Fault.EVENT_LATE, self._rng):
                moment = simulation.time() + self._rng.random() * _MAX_DELAY_S
                self._delayed[next(self._numbers)] = (moment, event)
            else:
                events.append(event)
        now = simulation.time()
        due = [key for key, (moment, _) in self._delayed.items() if moment <= now or faults.ended]
        events += [self._delayed[key][1] for key in due]
        if self._delivered and faults.occurs(Fault.EVENT_DUPLICATED, self._rng):
            events += [self._rng.choice(self._delivered) for _ in range(_MAX_REPEATED)]
        self._delivered += events
        if not events and delivery is None:
            return None
        receipt = delivery.receipt if delivery else "0"
        return Delivery(events=tuple(events), receipt=":".join([receipt, *map(str, due)]))

    def acknowledge(self, receipt: str) -> str:
        """Forget what came with this delivery; the receipt as the bus knows it."""
        first, *held = receipt.split(":")
        for key in held:
            self._delayed.pop(int(key), None)
        return first
