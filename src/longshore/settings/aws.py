"""What can be set of the backend on AWS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from longshore.settings.fields import Duration, Optionally, Section, bounded, optional

_DAY = timedelta(days=1)
_DECADE = 3650 * _DAY
_MINUTE = timedelta(minutes=1)
# Names of functions, stacks and buckets have a stage in them, each with a limit of its own. And a
# stage `prod-eu` would have the queues that a queue `eu` of a stage `prod` has.
_STAGE = re.compile(r"[a-z][a-z0-9]{0,19}")
_QUEUE_NAME_LIMIT: Final = 80  # of SQS


class AwsSettings(Section):
    """Where the installation is; credentials are found as all AWS tools find them."""

    region: Annotated[str | None, Optionally] = optional(
        "Region of the installation; none: that of the AWS profile."
    )
    bucket: Annotated[str | None, Optionally] = optional(
        "Bucket of the blobs, as `longshore aws deploy` names it."
    )
    endpoint_url: Annotated[str | None, Optionally] = optional(
        "URL of a stand-in for AWS, for tests."
    )
    tries: int = bounded("How often a call is made before it counts as failed.", 3, 1, 20)
    shards: int = bounded(
        "Parts that index keys are spread over; may grow and must never shrink.", 4, 1, 256
    )
    keep_events: Duration = bounded(
        "Time that DynamoDB keeps events; 0 keeps them for ever.",
        timedelta(0),
        timedelta(0),
        _DECADE,
    )
    keep_output: Duration = bounded(
        "Time that DynamoDB keeps output; 0 keeps it for ever.", 30 * _DAY, timedelta(0), _DECADE
    )
    functions: bool = Field(
        default=True,
        description="Whether functions dispatch and sweep, as `longshore aws deploy` sets it up; "
        "otherwise workers do.",
    )
    event_indexes: Literal["few", "all"] = Field(
        default="few",
        description="Indexes of the event table that are filled: `all` seven, for who queries them "
        "outside of Longshore, or a `few`, which is a quarter of the writes. Never go back.",
    )
    heartbeat_every: Duration = bounded(
        "Time between two extensions of an `SQSHeartbeat` that asks for it.",
        *(5 * _MINUTE, timedelta(seconds=1), timedelta(hours=12)),
    )


def stage_problems(stage: str, queues: Iterable[str]) -> Iterator[str]:
    """Why an installation on AWS cannot be called so, or have these queues."""
    if not _STAGE.fullmatch(stage):
        yield (
            f"environment ({stage}) is a part of every name on AWS: use 1 to 20 lower-case letters "
            "and digits, a letter first, and no '-': `prod-eu` is `prodeu`"
        )
    for queue in queues:
        longest = f"longshore-{stage}-{queue}-normal-dead"
        if (over := len(longest) - _QUEUE_NAME_LIMIT) > 0:
            yield (
                f"worker.queues ({queue}) is too long for AWS by {over} characters: SQS would have "
                f"to call a queue {longest}, and takes {_QUEUE_NAME_LIMIT}"
            )
