"""Leases: which worker may work on a task, and until when.

Delivery is at least once, so two workers can hold the same message. The lease is what keeps them
from doing the same work: a task has at most one live lease, and its ``fence`` grows each time the
task changes hands, so a write from a worker that lost its lease can be told from a current one.

A worker and those who wait for its end read different clocks. So the worker stops trusting its
lease early (``trusted_until``), and others take over late (``over``): the two never overlap.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta

from longshore.core.events.types import Usage
from longshore.core.records import value
from longshore.core.text.durations import format_duration

LEASE_SLACK = 1.5
"""A lease outlasts the message's visibility by this much: one lost renewal does no harm."""

EPOCH_BITS = 32


@value
class Lease:
    """One worker's right to run one task until a moment."""

    worker_id: str
    fence: int
    claim_id: str  # change id of the claim, by which a worker whose answer was lost knows its own
    acquired_at: datetime
    expires_at: datetime
    heartbeats: int = 0
    local: bool = True  # held on the machine that keeps the file
    # What the attempt has consumed by its last word: if it is the very last, that is counted.
    usage: Usage = field(default_factory=Usage)

    def is_live(self, now: datetime) -> bool:
        """Half open: live before ``expires_at``, over at it."""
        return now < self.expires_at


@value
class LeasePolicy:
    """How often a worker says that it is alive, and how long each word is believed."""

    renew_every: timedelta = timedelta(seconds=20)
    extend_by: timedelta = timedelta(seconds=30)
    kill_grace: timedelta = timedelta(seconds=5)
    skew_margin: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        if self.renew_every <= timedelta(0):
            message = f"renew_every must be longer than zero, not {self.renew_every!r}"
            raise ValueError(message)
        for name in ("kill_grace", "skew_margin"):
            if getattr(self, name) < timedelta(0):
                message = f"{name} must not be negative, but is {getattr(self, name)!r}"
                raise ValueError(message)
        if self.renew_every >= self.extend_by:
            message = (
                f"renew_every must be shorter than extend_by ({format_duration(self.extend_by)}), "
                f"not {format_duration(self.renew_every)}"
            )
            raise ValueError(message)
        if self.duration - self.kill_grace - self.skew_margin <= self.renew_every:
            message = (
                f"renew_every ({format_duration(self.renew_every)})"
                f" + kill_grace ({format_duration(self.kill_grace)})"
                f" + skew_margin ({format_duration(self.skew_margin)})"
                f" must be shorter than extend_by ({format_duration(self.extend_by)}) × 1.5: "
                "a worker would have to kill every attempt before it could renew"
            )
            raise ValueError(message)

    @property
    def duration(self) -> timedelta:
        """How long a lease lasts from the moment it is written."""
        return self.extend_by * LEASE_SLACK

    @property
    def trusted_for(self) -> timedelta:
        """How long after *sending* a renewal the worker may still have a child alive."""
        return self.duration - self.kill_grace - self.skew_margin


def is_over(lease: Lease, *, now: datetime, margin: timedelta) -> bool:
    """Whether somebody else may end this lease: its end and the clock's error have passed."""
    return now >= lease.expires_at + margin


def next_fence(last: int, epoch: int) -> int:
    """The fence of the next claim.

    ``epoch`` grows whenever claims that were not yet on disk may have been forgotten (a power
    loss); as the high part of the fence it makes a number that was handed out and forgotten
    impossible to hand out again.
    """
    return max(last, epoch << EPOCH_BITS) + 1
