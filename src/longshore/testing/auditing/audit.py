"""The audit: every law on every job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from longshore.testing.auditing.agreement import agreement, in_order, kept_alike
from longshore.testing.auditing.belonging import identity, tenancy
from longshore.testing.auditing.cases import Case, cases_in
from longshore.testing.auditing.endings import endings
from longshore.testing.auditing.evidence import Evidence
from longshore.testing.auditing.keeping import nothing_lost
from longshore.testing.auditing.leases import limits, one_lease
from longshore.testing.auditing.order import order
from longshore.testing.auditing.printed import output
from longshore.testing.auditing.shapes import without_odd
from longshore.testing.auditing.violation import Violation

__all__ = ["Violation", "audit"]


def _stories(case: Case) -> Iterator[Violation]:
    for story in case.stories.values():
        yield from story.violations


_LAWS: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    nothing_lost,
    one_lease,
    _stories,
    agreement,
    order,
    endings,
    output,
    identity,
    limits,
    tenancy,
)


def audit(evidence: Evidence) -> list[Violation]:
    """Everything in the evidence that must not be, by invariant; an empty list if all is well.

    Whatever the evidence holds, it is answered for: what cannot be read is itself a violation.
    """
    evidence, odd = without_odd(evidence)
    found = {*odd, *kept_alike(evidence)}
    cases, others = cases_in(evidence)
    for case in cases:
        for law in _LAWS:
            found.update(law(case))
    for (_, entity), events in others.items():
        found.update(in_order(entity, sorted(events, key=attrgetter("sequence", "position"))))
    return sorted(found)
