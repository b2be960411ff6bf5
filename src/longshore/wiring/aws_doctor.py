"""Settings → an examination of the installation on AWS that they name."""

from __future__ import annotations

from longshore.adapters.system import SystemClock
from longshore.core.inspection import Check
from longshore.errors import ConfigurationError
from longshore.services.dispatcher import ENDING_EVENTS
from longshore.settings import Settings

# An examination asks once and does not wait for long: whoever waits for it is a person.
_CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 6.0


async def diagnose_aws(settings: Settings) -> list[Check]:
    """What is right and what is wrong on AWS; nothing is changed.

    Raises:
        ConfigurationError: a package is missing.
    """
    try:
        # Not everybody who uses Longshore has it installed.
        from longshore.adapters.aws.client import AwsClient, AwsClientOptions
        from longshore.adapters.aws.deploy.doctor import ExpectedInstallation, diagnose
        from longshore.adapters.aws.names import Names
    except ModuleNotFoundError as error:
        problem = f"backend is aws and {error.name} is missing: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error
    place = AwsClientOptions(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        max_attempts=1,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        read_timeout_s=_READ_TIMEOUT_S,
    )
    wanted = ExpectedInstallation(
        names=Names(stage=settings.environment, bucket=settings.aws.bucket or ""),
        queues=settings.worker.queues,
        dispatcher_events=tuple(ENDING_EVENTS),
        skew_margin=settings.worker.skew_margin,
    )
    aws = AwsClient(place)
    try:
        return await diagnose(aws, wanted, SystemClock())
    finally:
        await aws.close()
