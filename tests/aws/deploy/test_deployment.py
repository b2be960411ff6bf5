"""Stages are deployed, deployed again, interrupted and destroyed by CloudFormation."""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient, AwsResponse
from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment
from longshore.adapters.aws.deploy.package import FunctionPackage
from longshore.adapters.aws.deploy.stack_client import StackFailed
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig, read_stage_config
from longshore.adapters.aws.deploy.stacks.template import STACKS, stack_name
from longshore.adapters.system import SystemClock
from longshore.errors import BackendUnavailable, ConfigurationError, Conflict
from tests.aws.stand_in import stand_in

_DEPLOYED = [name for name in STACKS if name not in ("worker", "server")]


def empty_package() -> FunctionPackage:
    """A zip without code: no function runs here."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr("nothing.py", "")
    return FunctionPackage(data=data.getvalue(), sha256="0" * 64)


class StageUnderTest:
    """A stage on the stand-in, and the progress that was reported for it."""

    def __init__(self, aws: AwsClient, **document: Any) -> None:
        self.aws = aws
        self.config = read_stage_config(
            stand_in().new_stage(),
            {"protected": False, "alarms": {"enabled": False}, **document},
            "test",
        )
        self.steps_reported: list[str] = []

    def deployment(
        self, config: StageConfig | None = None, package: FunctionPackage | None = None
    ) -> Any:
        return CloudFormationDeployment(
            self.aws,
            SystemClock(),
            config or self.config,
            dispatcher_events=("Task Completed",),
            stand_in=True,
            package=package or empty_package(),
        )

    async def deploy(self, **options: Any) -> Any:
        self.steps_reported.clear()
        return await self.deployment(**options).deploy(self.steps_reported.append)

    async def destroy(self, *, with_data: bool = False) -> None:
        self.steps_reported.clear()
        await self.deployment().destroy(self.steps_reported.append, with_data=with_data)

    async def states(self) -> dict[str, str | None]:
        return {stack.name: stack.status for stack in await self.deployment().status()}

    def steps(self, end: str) -> list[str]:
        return [
            line.removesuffix(f": {end}")
            for line in self.steps_reported
            if line.endswith(f": {end}")
        ]

    def name(self, stack: str) -> str:
        return stack_name(self.config.stage, stack)


def run_on_stand_in(
    scenario: Callable[[StageUnderTest], Awaitable[None]],
    aws: type[AwsClient] = AwsClient,
    **document: Any,
) -> None:
    server = stand_in()

    async def run() -> None:
        client = aws(server.client_options)
        try:
            await scenario(StageUnderTest(client, **document))
        finally:
            await client.close()

    asyncio.run(run())


def test_a_second_deployment_changes_nothing_and_new_code_changes_only_functions() -> None:
    async def scenario(stage: StageUnderTest) -> None:
        outputs = await stage.deploy()
        assert stage.steps("done") == ["infrastructure", "code", *_DEPLOYED[1:]]
        assert outputs["Bucket"].startswith(f"longshore-{stage.config.stage}-")

        await stage.deploy()
        assert stage.steps("no changes") == [
            "infrastructure",
            "code",
            *_DEPLOYED[1:],
        ]
        assert stage.steps("done") == []

        await stage.deploy(package=replace(empty_package(), sha256="1" * 64))
        assert stage.steps("no changes") == ["infrastructure"]
        assert stage.steps("done") == ["code", *_DEPLOYED[1:]]

        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}
        await stage.destroy(with_data=True)  # destroying an absent stage succeeds

    run_on_stand_in(scenario)


class FailingRuleAws(AwsClient):
    """CloudFormation cannot create the dispatcher's rule, which imports an unknown value."""

    broken = True

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        if (
            self.broken
            and operation == "create_change_set"
            and "dispatcher" in parameters["StackName"]
        ):
            body = parameters["TemplateBody"]
            parameters["TemplateBody"] = body.replace('-undelivered"', '-nowhere"')
        return await super().call(service, operation, **parameters)


def test_a_failed_stack_is_rolled_back_with_its_first_reason_and_created_by_the_next_try() -> None:
    async def scenario(stage: StageUnderTest) -> None:
        assert isinstance(stage.aws, FailingRuleAws)
        with pytest.raises(StackFailed) as failed:
            await stage.deploy()

        assert failed.value.stack == stage.name("dispatcher")
        assert failed.value.resource == "DispatcherRule"
        assert "-nowhere" in str(failed.value)
        assert [line.split()[0] for line in stage.steps_reported if "_FAILED" in line] == [
            "DispatcherRule"
        ]
        assert (await stage.states())["dispatcher"] == "ROLLBACK_COMPLETE"
        assert (await stage.states())["health-check"] is None

        stage.aws.broken = False
        await stage.deploy()
        assert (await stage.states())["dispatcher"] == "CREATE_COMPLETE"
        await stage.destroy(with_data=True)

    run_on_stand_in(scenario, FailingRuleAws)


class InterruptedAws(AwsClient):
    """The deploying process loses AWS right after one call."""

    after: str | None = None

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        answer = await super().call(service, operation, **parameters)
        if operation == self.after:
            self.after = None
            raise BackendUnavailable(operation)
        return answer


@pytest.mark.parametrize("after", ["create_change_set", "execute_change_set"])
def test_the_next_deployment_completes_an_interrupted_one(after: str) -> None:
    async def scenario(stage: StageUnderTest) -> None:
        assert isinstance(stage.aws, InterruptedAws)
        stage.aws.after = after
        with pytest.raises(BackendUnavailable):
            await stage.deploy()
        assert set((await stage.states()).values()) != {None}

        await stage.deploy()

        states = await stage.states()
        assert {states[name] for name in _DEPLOYED} == {"CREATE_COMPLETE"}
        await stage.destroy(with_data=True)

    run_on_stand_in(scenario, InterruptedAws)


def test_a_protected_stage_is_destroyed_only_after_a_deployment_without_protection() -> None:
    async def scenario(stage: StageUnderTest) -> None:
        await stage.deploy()
        assert all(stack.protected for stack in await stage.deployment().status() if stack.status)

        with pytest.raises(Conflict, match="protected: false"):
            await stage.destroy()
        assert (await stage.states())["producer-api"] == "CREATE_COMPLETE"

        stage.config = replace(stage.config, protected=False)
        await stage.deploy()
        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}

    run_on_stand_in(scenario, protected=True)


def test_a_new_deployment_takes_over_retained_tables_with_their_items() -> None:
    async def scenario(stage: StageUnderTest) -> None:
        outputs = await stage.deploy()
        table = stage.config.names.config
        item = {"kind": {"S": "kept"}, "name": {"S": "kept"}}
        await stage.aws.call("dynamodb", "put_item", TableName=table, Item=item)

        await stage.destroy()
        retained = [f"  {table}  retained", f"  bucket {outputs['Bucket']}  retained"]
        assert stage.steps_reported[-2:] == retained
        # AWS takes over an existing bucket too; the stand-in takes over only tables.
        await stage.aws.call(
            "s3", "delete_object", Bucket=outputs["Bucket"], Key=empty_package().key
        )
        await stage.aws.call("s3", "delete_bucket", Bucket=outputs["Bucket"])

        await stage.deploy()

        result = await stage.aws.call("dynamodb", "get_item", TableName=table, Key=item)
        assert result["Item"] == item
        await stage.destroy(with_data=True)

    run_on_stand_in(scenario)


def test_an_invalid_configuration_changes_nothing() -> None:
    async def scenario(stage: StageUnderTest) -> None:
        many = replace(stage.config, queues=tuple(f"queue-{n}" for n in range(40)))
        with pytest.raises(ConfigurationError, match="use fewer queues"):
            await stage.deploy(config=many)

        assert set((await stage.states()).values()) == {None}

    run_on_stand_in(scenario)
