"""Faults of the task source in SQLite that its tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Condition, Drop, Value

_TURN = "adapters.sqlite.task_source:TurnWork"
_AS_CORE = "adapters/sqlite/test_turns.py::test_a_turn_decides_as_core_does"

_fault = partial(Fault, part=Part.QUEUE)

TURN_FAULTS = (
    _fault(
        name="a usual claim does not count its attempt",
        at=f"{_TURN}._lease",
        do=Value("_ATTEMPT:", "values[_ATTEMPT]"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion does not compare the fence",
        at=f"{_TURN}._is_usual_completion",
        do=Drop("== fence"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion needs no review",
        at=f"{_TURN}._is_usual_completion",
        do=Drop("not requires_review"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a usual completion forgets the last output",
        at=f"{_TURN}._complete",
        do=Value("_LAST_OUTPUT:", "None"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a job of one task does not count what its task used",
        at=f"{_TURN}._settle_jobs",
        do=Drop("is _REST"),
        caught_by=_AS_CORE,
    ),
    _fault(
        name="a command after an outcome in the same turn sees the task running",
        at=f"{_TURN}._answer",
        do=Condition("_completions", False),
        caught_by=_AS_CORE,
    ),
)
