"""The bodies of ``longshore deploy``, ``destroy`` and ``status``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from longshore.core.inspection import (
    CloudAccount,
    DeployProgress,
    DeployProgressKind,
    StackState,
)
from longshore.errors import ConfigurationError, UsageError
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_pairs, print_table
from longshore.interfaces.cli.services import settings_for
from longshore.settings import Settings, variable_of

_FOLDER = Path("infra")
_IN_PROGRESS = "_IN_PROGRESS"
_BUCKET, _API = "Bucket", "Api"


def deploy(options: GlobalOptions, stage: str, config: Path | None) -> int:
    """Bring a stage to AWS."""
    settings = settings_for(options)
    document, origin = _stage_document(stage, config)
    try:
        outputs = asyncio.run(_deploy(settings, stage, document, origin))
    except KeyboardInterrupt:
        print_stderr(
            "interrupted; CloudFormation goes on with what it has begun."
            f" `longshore deploy --stage {stage}` waits for that and does the rest"
        )
        return ExitCode.INTERRUPTED
    print()
    print_pairs(_usage_pairs(stage, outputs))
    return ExitCode.OK


async def _deploy(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str
) -> Mapping[str, str]:
    from longshore.wiring.deploy import open_deployment

    async with open_deployment(settings, stage, document, origin) as wanted:
        _print_target(await wanted.account(), settings, stage, origin)
        return await wanted.deploy(_print_step)


def render(stage: str, config: Path | None, folder: Path) -> int:
    """Write a stage's templates into a folder."""
    from longshore.wiring.deploy import render_templates

    document, origin = _stage_document(stage, config)
    texts = render_templates(stage, document, origin)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return ExitCode.OK


def destroy(
    options: GlobalOptions, stage: str, config: Path | None, *, with_data: bool, yes: bool
) -> int:
    """Take a stage away."""
    settings = settings_for(options)
    document, origin = _stage_document(stage, config)
    account = asyncio.run(_account(settings, stage, document, origin))
    _print_target(account, settings, stage, origin)
    if not yes and not _confirmed(stage, with_data=with_data):
        print_stderr("nothing was changed")
        return ExitCode.FAILED
    try:
        asyncio.run(_destroy(settings, stage, document, origin, with_data=with_data))
    except KeyboardInterrupt:
        print_stderr("interrupted; the same command goes on where this one stopped")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


async def _account(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str
) -> CloudAccount:
    from longshore.wiring.deploy import open_deployment

    async with open_deployment(settings, stage, document, origin) as found:
        return await found.account()


async def _destroy(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str, *, with_data: bool
) -> None:
    from longshore.wiring.deploy import open_deployment

    async with open_deployment(settings, stage, document, origin) as found:
        await found.destroy(_print_step, with_data=with_data)


def _confirmed(stage: str, *, with_data: bool) -> bool:
    """Ask; the data only if the stage's name is written.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"this would take {stage} away; add --yes, for there is no terminal to ask on"
        raise UsageError(message)
    if with_data:
        question = f"All data of {stage} will be gone. Write its name to go on: "
    else:
        question = f"Take {stage} away? Tables and blobs stay. [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print_stderr("")
    given = answer.strip()
    return given == stage if with_data else given.lower() in ("y", "yes")


def status(options: GlobalOptions, stage: str, config: Path | None) -> int:
    """Show what is deployed."""
    settings = settings_for(options)
    document, origin = _stage_document(stage, config)
    account, stacks = asyncio.run(_read_status(settings, stage, document, origin))
    outputs = {name: text for stack in stacks for name, text in stack.outputs.items()}
    if options.json:
        print_json(
            {
                "stage": stage,
                "account": account.id,
                "region": account.region,
                "stacks": [_stack_document(stack) for stack in stacks],
                "outputs": outputs,
            }
        )
    else:
        _print_status(account, settings, stage, stacks, outputs)
    there = [stack.status for stack in stacks if stack.status]
    if not there:
        return ExitCode.NOT_FOUND
    return ExitCode.OK if all(_is_healthy(one) for one in there) else ExitCode.FAILED


async def _read_status(
    settings: Settings, stage: str, document: Mapping[str, Any], origin: str
) -> tuple[CloudAccount, Sequence[StackState]]:
    from longshore.wiring.deploy import open_deployment

    async with open_deployment(settings, stage, document, origin) as found:
        return await found.account(), await found.status()


def _print_status(
    account: CloudAccount,
    settings: Settings,
    stage: str,
    stacks: Sequence[StackState],
    outputs: Mapping[str, str],
) -> None:
    from longshore.wiring.services import system_clock

    now = system_clock().now()
    _print_target(account, settings, stage, "")
    print_table(
        [Column("STACK"), Column("STATUS"), Column("CHANGED"), Column("PROTECTED")],
        [
            [
                stack.name,
                _status_text(stack.status),
                formats.relative_time(stack.changed_at, now),
                "yes" if stack.protected else "",
            ]
            for stack in stacks
        ],
    )
    if outputs:
        print()
        print_pairs(_usage_pairs(stage, outputs))


def _stack_document(stack: StackState) -> dict[str, Any]:
    return {
        "name": stack.name,
        "fullName": stack.full_name,
        "status": stack.status,
        "changedAt": stack.changed_at.isoformat() if stack.changed_at else None,
        "protected": stack.protected,
    }


def _is_healthy(status: str) -> bool:
    ended_well = status.endswith("_COMPLETE") and "ROLLBACK" not in status
    return ended_well or status.endswith(_IN_PROGRESS)


def _status_text(status: str | None) -> Text:
    if status is None:
        return Text("not deployed", style="dim")
    style = "green" if _is_healthy(status) else "bold red"
    return Text(status, style="yellow" if status.endswith(_IN_PROGRESS) else style)


def _print_target(account: CloudAccount, settings: Settings, stage: str, origin: str) -> None:
    at = f" at {settings.aws.endpoint_url}" if settings.aws.endpoint_url else ""
    by = f", as {origin} says" if origin else ""
    print(f"stage {stage} in account {account.id}, region {account.region}{at}{by}", flush=True)


def _print_step(step: DeployProgress) -> None:
    if step.kind is DeployProgressKind.RESOURCE and step.text.endswith(_IN_PROGRESS):
        return
    words_of = {
        DeployProgressKind.STARTED: step.text,
        DeployProgressKind.WAITING: f"waits: {step.text}",
        DeployProgressKind.UNCHANGED: "nothing to change",
        DeployProgressKind.DONE: "done",
    }
    if step.kind in words_of:
        print(f"{step.stack}: {words_of[step.kind]}", flush=True)
    elif step.kind is DeployProgressKind.RETAINED:
        print(f"  {step.resource}  kept", flush=True)
    else:
        print(f"  {step.resource}  {step.text}", flush=True)


def _usage_pairs(stage: str, outputs: Mapping[str, str]) -> list[tuple[str, str | Text]]:
    bucket = outputs.get(_BUCKET, "")
    variables = {"backend": "aws", "environment": stage, "aws.bucket": bucket}
    given = " ".join(f"{variable_of(name)}={text}" for name, text in variables.items())
    return [
        ("bucket", bucket),
        ("api", outputs.get(_API, "")),
        ("work", f"{given} longshore worker" if bucket else ""),
    ]


def _stage_document(stage: str, config: Path | None) -> tuple[dict[str, Any], str]:
    """What is known of the stage, and from where.

    Raises:
        ConfigurationError: the file is not there, or no YAML.
    """
    path = config or _FOLDER / f"{stage}.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if config is None:
            return {}, "defaults"
        raise ConfigurationError([f"there is no file {str(path)!r}; see --config"]) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError([f"{path}: {error}"]) from error
    if found is None:
        return {}, str(path)
    if not isinstance(found, dict):
        raise ConfigurationError([f"{path}: it must have names and values"])
    return found, str(path)
