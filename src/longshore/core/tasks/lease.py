"""Leases: which worker may work on a task, and until when.

Delivery is at least once, so two workers can hold the same message. The lease is what keeps them
from doing the same work: a task has at most one live lease. Its ``fence`` grows with each claim,
so a write of a worker that lost its lease is recognised and refused.

Workers read different clocks. A worker therefore stops trusting its lease early (``trusted_for``),
and other workers take over late (``is_over``): the two never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core.events.types import NO_USAGE, Usage
from longshore.core.records import value
from longshore.core.text.durations import format_duration

LEASE_SLACK = 1.5
"""A lease is longer than a renewal by this factor, so that one lost renewal does no harm."""

EPOCH_BITS = 32


@value
class Lease:
    """The right of a worker to run a task until a time."""

    worker_id: str
    fence: int
    claim_id: str  # change id of the claim: a worker whose answer was lost recognises its own
    acquired_at: datetime
    expires_at: datetime
    heartbeats: int = 0
    local: bool = True  # held on the machine of the store
    usage: Usage = NO_USAGE  # that the attempt last reported

    def is_live(self, now: datetime) -> bool:
        """Whether the lease is live: before ``expires_at``, not at it."""
        return now < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """How often a worker renews its lease, and how long each renewal lasts."""

    renew_every: timedelta = timedelta(seconds=20)
    extend_by: timedelta = timedelta(seconds=30)
    kill_grace: timedelta = timedelta(seconds=5)
    skew_margin: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        if self.renew_every <= timedelta(0):
            raise ValueError(f"renew_every must be longer than zero, not {self.renew_every!r}")
        for name in ("kill_grace", "skew_margin"):
            if getattr(self, name) < timedelta(0):
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)!r}")
        if self.renew_every >= self.extend_by:
            raise ValueError(
                f"renew_every must be shorter than extend_by ({format_duration(self.extend_by)}), "
                f"not {format_duration(self.renew_every)}"
            )
        if self.trusted_for <= self.renew_every:
            raise ValueError(
                f"renew_every ({format_duration(self.renew_every)})"
                f" + kill_grace ({format_duration(self.kill_grace)})"
                f" + skew_margin ({format_duration(self.skew_margin)})"
                f" must be shorter than extend_by ({format_duration(self.extend_by)}) × 1.5: "
                "a worker would have to kill every attempt before it could renew"
            )

    @property
    def duration(self) -> timedelta:
        """How long a lease lasts from its claim or renewal."""
        return self.extend_by * LEASE_SLACK

    @property
    def trusted_for(self) -> timedelta:
        """How long after *sending* a renewal a child of the worker may still run."""
        return self.duration - self.kill_grace - self.skew_margin


def is_over(lease: Lease, *, now: datetime, margin: timedelta) -> bool:
    """Whether another process may end the lease: it expired more than the clock error ago."""
    return now >= lease.expires_at + margin


def next_fence(last: int, epoch: int) -> int:
    """Returns the fence of the next claim.

    ``epoch`` is the high part of the fence. It grows when claims that were not on disk may be lost
    (a power loss), so that a lost fence is never issued again.
    """
    return max(last, epoch << EPOCH_BITS) + 1
