"""Deploying, again, half way, and taking away: what CloudFormation is asked, and what is told."""

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
from longshore.adapters.aws.deploy.stack_client import StackFailed, StackProtected
from longshore.adapters.aws.deploy.stacks import STACKS, stack_name
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig, read_stage_config
from longshore.adapters.system import SystemClock
from longshore.core.inspection import DeployProgress, DeployProgressKind
from longshore.errors import BackendUnavailable, ConfigurationError
from tests.aws.stand_in import stand_in

_DEPLOYED = [name for name in STACKS if name not in ("worker", "server")]


def empty_package() -> FunctionPackage:
    """A zip in which nothing is: no function is run here."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr("nothing.py", "")
    return FunctionPackage(data=data.getvalue(), sha256="0" * 64)


class StageUnderTest:
    """A stage on the stand-in, and all that was told of it."""

    def __init__(self, aws: AwsClient, **document: Any) -> None:
        self.aws = aws
        self.config = read_stage_config(
            stand_in().new_stage(),
            {"protected": False, "alarms": {"enabled": False}, **document},
            "test",
        )
        self.steps_reported: list[DeployProgress] = []

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

    async def deploy(self, **given: Any) -> Any:
        self.steps_reported.clear()
        return await self.deployment(**given).deploy(self.steps_reported.append)

    async def destroy(self, *, with_data: bool = False) -> None:
        self.steps_reported.clear()
        await self.deployment().destroy(self.steps_reported.append, with_data=with_data)

    async def states(self) -> dict[str, str | None]:
        return {one.name: one.status for one in await self.deployment().status()}

    def steps(self, kind: DeployProgressKind) -> list[str]:
        return [one.stack for one in self.steps_reported if one.kind is kind]

    def name(self, stack: str) -> str:
        return stack_name(self.config.stage, stack)


def run_on_stand_in(
    scenario: Callable[[StageUnderTest], Awaitable[None]],
    aws: type[AwsClient] = AwsClient,
    **document: Any,
) -> None:
    server = stand_in()

    async def tell() -> None:
        way = aws(server.client_options)
        try:
            await scenario(StageUnderTest(way, **document))
        finally:
            await way.close()

    asyncio.run(tell())


def test_what_is_deployed_again_is_not_changed_and_new_code_changes_functions_alone() -> None:
    async def story(stage: StageUnderTest) -> None:
        outputs = await stage.deploy()
        assert stage.steps(DeployProgressKind.DONE) == ["infrastructure", "code", *_DEPLOYED[1:]]
        assert outputs["Bucket"].startswith(f"longshore-{stage.config.stage}-")

        await stage.deploy()
        assert stage.steps(DeployProgressKind.UNCHANGED) == [
            "infrastructure",
            "code",
            *_DEPLOYED[1:],
        ]
        assert stage.steps(DeployProgressKind.DONE) == []

        await stage.deploy(package=replace(empty_package(), sha256="1" * 64))
        assert stage.steps(DeployProgressKind.UNCHANGED) == ["infrastructure"]
        assert stage.steps(DeployProgressKind.DONE) == ["code", *_DEPLOYED[1:]]

        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}
        await stage.destroy(with_data=True)  # nothing is there, and nothing breaks

    run_on_stand_in(story)


class FailingDeleteAws(AwsClient):
    """CloudFormation cannot make the dispatcher's rule: it names what nobody exports."""

    code = True

    async def call(self, service: str, operation: str, **given: Any) -> AwsResponse:
        if self.code and operation == "create_change_set" and "dispatcher" in given["StackName"]:
            wrong = given["TemplateBody"].replace('-undelivered"', '-nowhere"')
            given["TemplateBody"] = wrong
        return await super().call(service, operation, **given)


def test_a_stack_that_fails_is_put_back_the_first_reason_is_told_and_the_next_try_mends_it() -> (
    None
):
    async def story(stage: StageUnderTest) -> None:
        assert isinstance(stage.aws, FailingDeleteAws)
        with pytest.raises(StackFailed) as failed:
            await stage.deploy()

        assert failed.value.stack == stage.name("dispatcher")
        assert failed.value.resource == "DispatcherRule"
        assert "-nowhere" in str(failed.value)
        assert [one.resource for one in stage.steps_reported if one.failed] == [
            "DispatcherRule (AWS::Events::Rule)"
        ]
        assert (await stage.states())["dispatcher"] == "ROLLBACK_COMPLETE"
        assert (await stage.states())["health-check"] is None

        stage.aws.code = False
        await stage.deploy()
        assert (await stage.states())["dispatcher"] == "CREATE_COMPLETE"
        await stage.destroy(with_data=True)

    run_on_stand_in(story, FailingDeleteAws)


class InterruptedAws(AwsClient):
    """Whoever deploys is gone right after a call, for good or for bad."""

    after: str | None = None

    async def call(self, service: str, operation: str, **given: Any) -> AwsResponse:
        answer = await super().call(service, operation, **given)
        if operation == self.after:
            self.after = None
            raise BackendUnavailable(operation)
        return answer


@pytest.mark.parametrize("after", ["create_change_set", "execute_change_set"])
def test_whoever_deploys_again_after_an_interruption_finishes_it(after: str) -> None:
    async def story(stage: StageUnderTest) -> None:
        assert isinstance(stage.aws, InterruptedAws)
        stage.aws.after = after
        with pytest.raises(BackendUnavailable):
            await stage.deploy()
        assert set((await stage.states()).values()) != {None}

        await stage.deploy()

        states = await stage.states()
        assert {states[name] for name in _DEPLOYED} == {"CREATE_COMPLETE"}
        await stage.destroy(with_data=True)

    run_on_stand_in(story, InterruptedAws)


def test_a_protected_stage_is_not_taken_away_until_it_is_deployed_without_protection() -> None:
    async def story(stage: StageUnderTest) -> None:
        await stage.deploy()
        assert all(one.protected for one in await stage.deployment().status() if one.status)

        with pytest.raises(StackProtected, match="protected: false"):
            await stage.destroy()
        assert (await stage.states())["producer-api"] == "CREATE_COMPLETE"

        stage.config = replace(stage.config, protected=False)
        await stage.deploy()
        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}

    run_on_stand_in(story, protected=True)


def test_tables_that_were_kept_are_found_again_with_what_is_in_them() -> None:
    async def story(stage: StageUnderTest) -> None:
        outputs = await stage.deploy()
        table = stage.config.names.config
        item = {"kind": {"S": "kept"}, "name": {"S": "kept"}}
        await stage.aws.call("dynamodb", "put_item", TableName=table, Item=item)

        await stage.destroy()
        kept = [
            one.resource for one in stage.steps_reported if one.kind is DeployProgressKind.RETAINED
        ]
        assert kept[-2:] == [table, f"bucket {outputs['Bucket']}"]
        # The stand-in takes over tables, and no bucket that is there; AWS takes both.
        await stage.aws.call(
            "s3", "delete_object", Bucket=outputs["Bucket"], Key=empty_package().key
        )
        await stage.aws.call("s3", "delete_bucket", Bucket=outputs["Bucket"])

        await stage.deploy()

        result = await stage.aws.call("dynamodb", "get_item", TableName=table, Key=item)
        assert result["Item"] == item
        await stage.destroy(with_data=True)

    run_on_stand_in(story)


def test_what_is_not_a_stage_changes_nothing() -> None:
    async def story(stage: StageUnderTest) -> None:
        many = replace(stage.config, queues=tuple(f"queue-{n}" for n in range(40)))
        with pytest.raises(ConfigurationError, match="use fewer queues"):
            await stage.deploy(config=many)

        assert set((await stage.states()).values()) == {None}

    run_on_stand_in(story)
