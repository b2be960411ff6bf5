"""The audit: every law on every job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from longshore.audit.completeness import check_nothing_lost, check_removed
from longshore.audit.consistency import check_consistency, check_mismatches, check_sequences
from longshore.audit.dependency_order import check_order
from longshore.audit.job_history import check_job
from longshore.audit.job_snapshot import JobSnapshot, job_snapshots_in
from longshore.audit.leases import check_leases, check_limits
from longshore.audit.output import check_output
from longshore.audit.ownership import check_identity, check_tenancy
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.audit.validation import drop_malformed
from longshore.audit.violation import Violation

__all__ = ["Violation", "audit"]


def _task_violations(snapshot: JobSnapshot) -> Iterator[Violation]:
    for history in snapshot.histories.values():
        yield from history.violations


_CHECKS: tuple[Callable[[JobSnapshot], Iterator[Violation]], ...] = (
    check_nothing_lost,
    check_leases,
    _task_violations,
    check_consistency,
    check_order,
    check_job,
    check_output,
    check_identity,
    check_limits,
    check_tenancy,
    check_removed,
)


def audit(store: StoreSnapshot) -> list[Violation]:
    """Everything in the evidence that must not be, by invariant; an empty list if all is well.

    Data that cannot be read is itself a violation.
    """
    store, odd = drop_malformed(store)
    violations = {*odd, *check_mismatches(store)}
    cases, others = job_snapshots_in(store)
    for case in cases:
        for law in _CHECKS:
            violations.update(law(case))
    for (_, entity), events in others.items():
        ordered = sorted(events, key=attrgetter("sequence", "position"))
        # Old events of an entity without a row are removed.
        violations.update(check_sequences(entity, ordered, after=ordered[0].sequence - 1))
    return sorted(violations)
