"""Settings and a stage's document → what deploys it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from longshore.adapters.system import SystemClock
from longshore.errors import ConfigurationError
from longshore.ports.deployment import Deployment
from longshore.services.dispatcher import ENDING_EVENTS
from longshore.settings import FIELDS, Settings, load, variable_of

if TYPE_CHECKING:
    from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig

_MAX_TRIES: Final = 10  # of a call: CloudFormation throttles those who ask often
# What an installation decides by being what it is.
_RESERVED_SETTINGS: Final = ("backend", "environment", "aws.bucket", "aws.region", "data_dir")


@contextlib.asynccontextmanager
async def open_deployment(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str
) -> AsyncIterator[Deployment]:
    """A stage, as its document describes it.

    Raises:
        ConfigurationError: the document is wrong, or what is needed for AWS is not installed.
    """
    config = _stage_config(stage, document, origin)
    from longshore.adapters.aws.client import AwsClient, AwsClientOptions
    from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment

    place = AwsClientOptions(
        region=settings.aws.region,
        endpoint_url=settings.aws.endpoint_url,
        max_attempts=max(_MAX_TRIES, settings.aws.tries),
    )
    aws = AwsClient(place)
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
    """Every template of a stage as the text of a file, by the file's name.

    Raises:
        ConfigurationError: the document is wrong.
    """
    config = _stage_config(stage, document, origin)
    from longshore.adapters.aws.deploy.stacks import templates

    return {
        f"{name}.json": json.dumps(template, indent=2) + "\n"
        for name, template in templates(config, dispatcher_events=ENDING_EVENTS).items()
    }


def _stage_config(stage: str, document: Mapping[str, Any], origin: str) -> StageConfig:
    try:
        # Not everybody who uses Longshore has it installed.
        from longshore.adapters.aws.deploy.stacks.stage_config import read_stage_config
    except ModuleNotFoundError as error:
        problem = f"{error.name} is missing: pip install 'longshore[aws]'"
        raise ConfigurationError([problem]) from error
    config = read_stage_config(stage, document, origin)
    problems = list(_setting_problems(config.settings))
    if problems:
        raise ConfigurationError([f"{origin}: settings: {problem}" for problem in problems])
    return config


def _setting_problems(values: Mapping[str, str]) -> list[str]:
    problems = [f"{name} follows from the stage" for name in _RESERVED_SETTINGS if name in values]
    unknown = [name for name in values if name not in FIELDS]
    problems += [f"no setting is called {name!r}" for name in unknown]
    problems += [
        f"{name} is a secret: keep it as the SSM parameter /longshore/STAGE/{name}"
        for name in values
        if name in FIELDS and _is_secret(name)
    ]
    if problems:
        return problems
    try:
        load(environ={variable_of(name): text for name, text in values.items()})
    except ConfigurationError as error:
        return list(error.problems)
    return []


def _is_secret(name: str) -> bool:
    return "Secret" in str(FIELDS[name].annotation)
