"""The commands for AWS: ``aws deploy``, ``status``, ``destroy`` and ``undelivered``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longshore.core.inspection import CloudAccount, StackState
from longshore.errors import ConfigurationError, LongshoreError, UsageError
from longshore.interfaces.cli.client import load_command_settings, open_command_services
from longshore.interfaces.cli.commands.shared import Cursor, Limit, Yes
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions, argument, command, flag, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from rich.text import Text

    from longshore.services.event_delivery import UndeliveredEvents
    from longshore.settings import Settings

_FOLDER = Path("infra")
_IN_PROGRESS = "_IN_PROGRESS"
_PAGE_SIZE = 100

_Stage = Annotated[
    str,
    option("NAME", "Name of the deployment; an account can have several, such as dev and prod."),
]
_Config = Annotated[
    Path | None,
    option("FILE", "Configuration of the stage. [default: infra/NAME.yaml, if it exists]"),
]


@dataclass(frozen=True, slots=True)
class _Target:
    """A stage, its configuration and the file that the configuration is from."""

    stage: str
    settings: Settings
    config: Mapping[str, Any]
    origin: str

    @classmethod
    def read(cls, options: GlobalOptions, stage: str, config: Path | None) -> _Target:
        """Read the configuration of a stage.

        Raises:
            ConfigurationError: the file does not exist, or is not a YAML mapping.
        """
        import yaml

        path = config or _FOLDER / f"{stage}.yaml"
        origin = str(path)
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if config is not None:
                problem = f"there is no file {origin!r}; see --config"
                raise ConfigurationError([problem]) from None
            document, origin = None, "defaults"
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigurationError([f"{path}: {error}"]) from error
        if not isinstance(document, dict | None):
            raise ConfigurationError([f"{path}: it must have names and values"])
        return cls(stage, load_command_settings(options).settings, document or {}, origin)

    def open(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """The deployment of the stage."""
        from longshore.wiring.deploy import open_deployment

        return open_deployment(self.settings, self.stage, self.config, self.origin)

    def print(self, account: CloudAccount, *, origin: str = "") -> None:
        """Print the account and the region of the stage."""
        url = self.settings.aws.endpoint_url
        endpoint = f" at {url}" if url else ""
        by = f", configured by {origin}" if origin else ""
        print(
            f"stage {self.stage} in account {account.id}, region {account.region}{endpoint}{by}",
            flush=True,
        )

    def usage(self, outputs: Mapping[str, str]) -> dict[str, str | Text]:
        """The outputs of the stacks that users need."""
        from longshore.settings import variable_of

        bucket = outputs.get("Bucket", "")
        values = {"backend": "aws", "environment": self.stage, "aws.bucket": bucket}
        variables = " ".join(f"{variable_of(name)}={text}" for name, text in values.items())
        return {
            "bucket": bucket,
            "api": outputs.get("Api", ""),
            "worker": f"{variables} longshore worker" if bucket else "",
        }


@command(
    ("longshore aws deploy --stage dev", "all stacks, as in infra/dev.yaml"),
    ("longshore aws deploy --stage dev --config my.yaml", "as in another file"),
    ("longshore aws deploy --stage dev --render templates", "only write the templates"),
    output=False,
)
def aws_deploy(
    options: GlobalOptions,
    *,
    stage: _Stage,
    config: _Config = None,
    render: Annotated[
        Path | None, option("FOLDER", "Write the templates to a folder and deploy nothing.")
    ] = None,
) -> int:
    """Create or update an AWS deployment.

    Queues, tables, the event bus, the bucket, functions and the API are CloudFormation stacks,
    deployed one after the other. The command first prints the account and the region. It changes
    only what differs, and repairs a deployment that was interrupted. If a stack fails, it is rolled
    back, the first reason is printed, and the command exits with 1.

    Credentials and region are those of other AWS tools, unless the settings aws.region and
    aws.endpoint_url override them. After Ctrl-C, CloudFormation finishes what it has started; the
    next deployment waits for it and continues.
    """
    target = _Target.read(options, stage, config)
    if render is not None:
        from longshore.wiring.deploy import render_templates

        render.mkdir(parents=True, exist_ok=True)
        for name, text in render_templates(stage, target.config, target.origin).items():
            (render / name).write_text(text, encoding="utf-8")
            print(render / name)
        return ExitCode.OK

    async def run() -> None:
        async with target.open() as deployment:
            target.print(await deployment.account(), origin=target.origin)
            outputs = await deployment.deploy(_print_step)
        print()
        screen.print_named(target.usage(outputs))

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        print_stderr(
            "interrupted; CloudFormation finishes what it has started."
            f" `longshore aws deploy --stage {stage}` waits for it and continues"
        )
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _print_step(line: str) -> None:
    print(line, flush=True)


@command(
    ("longshore aws destroy --stage dev", "asks first; retains tables and blobs"),
    ("longshore aws destroy --stage dev --with-data --yes", "everything, without asking"),
    output=False,
)
def aws_destroy(
    options: GlobalOptions,
    *,
    stage: _Stage,
    config: _Config = None,
    with_data: Annotated[
        bool,
        flag(
            "Delete tables and blobs too: jobs, events, output. This cannot be undone.",
            "--with-data",
        ),
    ] = False,
    yes: Yes = False,
) -> int:
    """Delete an AWS deployment.

    Tables and the bucket are retained, and the next deployment of the same stage uses them again;
    --with-data deletes them. Messages are lost; the sweeper of the next deployment enqueues every
    due task again.

    A stage that is `protected` is not deleted: the command exits with 4 and says what to do.
    Without a terminal, --yes is needed.
    """
    target = _Target.read(options, stage, config)

    async def run() -> int:
        async with target.open() as deployment:
            target.print(await deployment.account(), origin=target.origin)
            if not yes and not _confirms_deletion(stage, with_data=with_data):
                print_stderr("nothing was changed")
                return ExitCode.FAILED
            await deployment.destroy(_print_step, with_data=with_data)
            return ExitCode.OK

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        print_stderr("interrupted; run the same command again to continue")
        return ExitCode.INTERRUPTED


def _confirms_deletion(stage: str, *, with_data: bool) -> bool:
    """Ask. To delete the data, the user must type the name of the stage."""
    question = f"Delete {stage}? Tables and blobs are retained. [y/N] "
    if with_data:
        question = f"All data of {stage} will be deleted. Type its name to continue: "
    answer = screen.ask(question, effect=f"this would delete the deployment {stage}")
    return answer == stage if with_data else answer.lower() in ("y", "yes")


@command(
    ("longshore aws status --stage dev", "what is deployed, and where"),
    ("longshore aws status --stage dev -o json | jq -r .outputs.Bucket", "for a script"),
)
async def aws_status(options: GlobalOptions, *, stage: _Stage, config: _Config = None) -> int:
    """Show the stacks of an AWS deployment, and how to use it.

    Exits with 3 if nothing is deployed, and with 1 if a stack has failed.
    """
    target = _Target.read(options, stage, config)
    async with target.open() as deployment:
        account, stacks = await deployment.account(), await deployment.status()
    outputs = {name: text for stack in stacks for name, text in stack.outputs.items()}
    if options.json:
        screen.print_json(
            {
                "stage": stage,
                "account": account.id,
                "region": account.region,
                "stacks": [
                    {
                        "name": stack.name,
                        "fullName": stack.full_name,
                        "status": stack.status,
                        "changedAt": stack.changed_at.isoformat() if stack.changed_at else None,
                        "protected": stack.protected,
                    }
                    for stack in stacks
                ],
                "outputs": outputs,
            }
        )
    else:
        target.print(account)
        _print_stacks(stacks)
        if outputs:
            print()
            screen.print_named(target.usage(outputs))
    deployed = [stack.status for stack in stacks if stack.status]
    if not deployed:
        return ExitCode.NOT_FOUND
    return ExitCode.OK if all(map(_is_healthy, deployed)) else ExitCode.FAILED


def _print_stacks(stacks: Sequence[StackState]) -> None:
    from longshore.wiring.services import system_clock

    now = system_clock().now()
    screen.print_table(
        [
            {
                "STACK": stack.name,
                "STATUS": _status_text(stack.status),
                "CHANGED": formats.relative_time(stack.changed_at, now),
                "PROTECTED": "yes" if stack.protected else "",
            }
            for stack in stacks
        ]
    )


def _is_healthy(status: str) -> bool:
    completed = status.endswith("_COMPLETE") and "ROLLBACK" not in status
    return completed or status.endswith(_IN_PROGRESS)


def _status_text(status: str | None) -> Text:
    if status is None:
        return screen.styled("not deployed", "dim")
    if status.endswith(_IN_PROGRESS):
        return screen.styled(status, "yellow")
    return screen.styled(status, "green" if _is_healthy(status) else "bold red")


@command(
    ("longshore aws undelivered list", "events that the bus or a consumer did not accept"),
)
async def aws_undelivered_list(
    options: GlobalOptions, *, limit: Limit = 50, cursor: Cursor = None
) -> None:
    """List events on AWS that could not be delivered, oldest first.

    The bus gives up after some retries, a queue after some receives. Events that they gave up on
    are stored in the bucket until they are replayed.
    """
    async with _open_undelivered(options) as store:
        letters = await store.list(limit=limit + 1, after=cursor or "")
        more = letters[limit - 1].id if len(letters) > limit else None
        facts = [(letter, letter.facts()) for letter in letters[:limit]]
        documents = [
            {
                "id": letter.id,
                "eventType": event.event_type,
                "detailType": event.detail_type,
                "entity": event.entity,
                "at": event.at.isoformat(),
                "source": letter.source,
                "reason": letter.reason,
                "body": letter.body,
            }
            for letter, event in facts
        ]
        options.print_listing(
            {"undelivered": documents, "cursor": more},
            facts,
            lambda item: {
                "ID": item[0].id,
                "EVENT": item[1].event_type,
                "ENTITY": item[1].entity,
                "TARGET": item[0].source,
                "REASON": item[0].reason,
            },
            empty="no undelivered events",
            cursor=more,
        )


@command(
    ("longshore aws undelivered replay 000001894017600000-17", "one event"),
    ("longshore aws undelivered replay --all", "when the consumer works again"),
)
async def aws_undelivered_replay(
    options: GlobalOptions,
    ids: Annotated[list[str] | None, argument("ID...", "As `undelivered list` shows them.")] = None,
    *,
    everything: Annotated[bool, flag("Replay all events.", "--all")] = False,
) -> int:
    """Publish undelivered events again.

    Every consumer receives them again, also consumers that have received them before; consumers are
    idempotent. Events that the bus accepts are removed from the list; the others stay, and the
    command exits with 1.
    """
    if bool(ids) == everything:
        raise UsageError("name the events to replay, or use --all")
    replayed, failed = 0, 0
    async with _open_undelivered(options) as store:
        async for letter_id in _ids(store, ids):
            try:
                replayed += await store.replay(letter_id)
            except LongshoreError as error:
                if not everything:
                    raise
                failed += 1
                print_stderr(f"longshore: {letter_id} was not replayed: {error}")
    options.print_answer(
        {"replayed": replayed, "failed": failed},
        f"{formats.plural(replayed, 'event')} replayed",
    )
    return ExitCode.FAILED if failed else ExitCode.OK


@command(
    ("longshore aws undelivered discard 000001894017600000-17", "one that cannot be read"),
)
async def aws_undelivered_discard(
    options: GlobalOptions,
    ids: Annotated[list[str], argument("ID...", "As `undelivered list` shows them.")],
) -> None:
    """Delete undelivered events, without publishing them.

    For messages that cannot be read, which a replay refuses, and for events that no consumer needs.
    """
    async with _open_undelivered(options) as store:
        for letter_id in ids:
            await store.discard(letter_id)
    options.print_answer({"discarded": ids}, f"{formats.plural(len(ids), 'event')} discarded")


async def _ids(store: UndeliveredEvents, named: Sequence[str] | None) -> AsyncIterator[str]:
    """The named ids; without names all, also those after events that stay."""
    for letter_id in named or ():
        yield letter_id
    after = ""
    while not named and (page := await store.list(limit=_PAGE_SIZE, after=after)):
        for letter in page:
            yield letter.id
        after = page[-1].id


@contextlib.asynccontextmanager
async def _open_undelivered(options: GlobalOptions) -> AsyncIterator[UndeliveredEvents]:
    settings = load_command_settings(options).settings
    if settings.backend != "aws":
        raise UsageError("only the AWS backend has undelivered events; set LONGSHORE_BACKEND=aws")
    async with open_command_services(settings) as services:  # or says what is not installed
        from longshore.wiring.lambdas import undelivered_events

        yield undelivered_events(services)
