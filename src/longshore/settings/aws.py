"""What can be set of the backend on AWS."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field

from longshore.settings.section import Duration, Section, bounded, none_or_value

_DAY = timedelta(days=1)
_DECADE = 3650 * _DAY


class AwsSettings(Section):
    """Where the installation is; credentials are found as all AWS tools find them."""

    region: Annotated[str | None, BeforeValidator(none_or_value)] = Field(
        default=None, description="Region of the installation; none: that of the AWS profile."
    )
    bucket: Annotated[str | None, BeforeValidator(none_or_value)] = Field(
        default=None, description="Bucket of the blobs, as `longshore deploy` has named it."
    )
    endpoint_url: Annotated[str | None, BeforeValidator(none_or_value)] = Field(
        default=None, description="Address of something that stands in for AWS."
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
