"""Settings and stage document → deployment and doctor of an AWS installation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from longshore.adapters.system import SystemClock
from longshore.core.inspection import Check
from longshore.errors import ConfigurationError
from longshore.services.dispatcher import ENDING_EVENTS
from longshore.settings import FIELDS, Settings, is_secret, load, variable_of
from longshore.wiring.backends import aws_client, aws_extra

if TYPE_CHECKING:
    from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment
    from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig

_MAX_ATTEMPTS: Final = 10  # CloudFormation throttles frequent calls
# The doctor does not retry and has short timeouts, because an operator waits for it.
_DOCTOR_LIMITS: Final = {"max_attempts": 1, "connect_timeout_s": 3.0, "read_timeout_s": 6.0}
# Settings that follow from the stage.
_RESERVED_SETTINGS: Final = ("backend", "environment", "aws.bucket", "aws.region", "data_dir")


@contextlib.asynccontextmanager
async def open_deployment(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str
) -> AsyncIterator[CloudFormationDeployment]:
    """The deployment of a stage, as its document describes it.

    Raises:
        ConfigurationError: the document is invalid, or the extra ``aws`` is not installed.
    """
    config = _stage_config(stage, document, origin)
    from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment

    aws = aws_client(settings, max_attempts=_MAX_ATTEMPTS)
    try:
        yield CloudFormationDeployment(
            aws,
            SystemClock(),
            config,
            dispatcher_events=ENDING_EVENTS,
            stand_in=settings.aws.endpoint_url is not None,
        )
    finally:
        await aws.close()


def render_templates(stage: str, document: Mapping[str, Any], origin: str) -> dict[str, str]:
    """The templates of a stage, by file name.

    Raises:
        ConfigurationError: the document is invalid.
    """
    config = _stage_config(stage, document, origin)
    from longshore.adapters.aws.deploy.stacks.template import templates

    return {
        f"{name}.json": json.dumps(template, indent=2) + "\n"
        for name, template in templates(config, dispatcher_events=ENDING_EVENTS).items()
    }


async def diagnose_aws(settings: Settings) -> list[Check]:
    """Check the AWS installation that the settings name, without changing it.

    Raises:
        ConfigurationError: the extra ``aws`` is not installed.
    """
    with aws_extra():
        from longshore.adapters.aws.deploy.doctor import AwsDoctor
        from longshore.adapters.aws.deploy.doctor_probe import Probe
        from longshore.adapters.aws.names import Names
    aws = aws_client(settings, **_DOCTOR_LIMITS)
    doctor = AwsDoctor(
        probe=Probe(aws, SystemClock()),
        names=Names(stage=settings.environment, bucket=settings.aws.bucket or ""),
        queues=settings.worker.queues,
        dispatcher_events=tuple(ENDING_EVENTS),
        skew_margin=settings.worker.skew_margin,
    )
    try:
        return await doctor.diagnose()
    finally:
        await aws.close()


def _stage_config(stage: str, document: Mapping[str, Any], origin: str) -> StageConfig:
    with aws_extra():
        from longshore.adapters.aws.deploy.stacks.stage_config import read_stage_config
    config = read_stage_config(stage, document, origin)
    if problems := _setting_problems(config.settings):
        raise ConfigurationError([f"{origin}: settings: {problem}" for problem in problems])
    return config


def _setting_problems(values: Mapping[str, str]) -> list[str]:
    problems = [f"{name} follows from the stage" for name in _RESERVED_SETTINGS if name in values]
    problems += [f"no setting is called {name!r}" for name in values if name not in FIELDS]
    problems += [
        f"{name} is a secret: store it as the SSM parameter /longshore/STAGE/{name}"
        for name in values
        if name in FIELDS and is_secret(name)
    ]
    if problems:
        return problems
    try:
        load(environ={variable_of(name): text for name, text in values.items()})
    except ConfigurationError as error:
        return list(error.problems)
    return []
