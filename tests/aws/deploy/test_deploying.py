"""Deploying, again, half way, and taking away: what CloudFormation is asked, and what is told."""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer, Aws
from longshore.adapters.aws.deploying import CloudFormationDeployment
from longshore.adapters.aws.deploying_package import Package
from longshore.adapters.aws.deploying_stack import Protected, StackFailed
from longshore.adapters.aws.stacks import STACKS, stack_name
from longshore.adapters.aws.stacks.config import StageConfig, stage_config
from longshore.adapters.system.clock import SystemClock
from longshore.errors import BackendUnavailable, ConfigurationError
from longshore.ports.deploying import Step, StepKind
from tests.aws.standin import stand_in

_DEPLOYED = [name for name in STACKS if name not in ("worker", "server")]


def tiny() -> Package:
    """A zip in which nothing is: no function is run here."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr("nothing.py", "")
    return Package(data=data.getvalue(), sha256="0" * 64)


class Stage:
    """A stage on the stand-in, and all that was told of it."""

    def __init__(self, aws: Aws, **document: Any) -> None:
        self.aws = aws
        self.config = stage_config(
            stand_in().new_stage(),
            {"protected": False, "alarms": {"enabled": False}, **document},
            "test",
        )
        self.told: list[Step] = []

    def deployment(self, config: StageConfig | None = None, package: Package | None = None) -> Any:
        return CloudFormationDeployment(
            self.aws,
            SystemClock(),
            config or self.config,
            wakes=("Task Completed",),
            stand_in=True,
            package=package or tiny(),
        )

    async def deploy(self, **given: Any) -> Any:
        self.told.clear()
        return await self.deployment(**given).deploy(self.told.append)

    async def destroy(self, *, with_data: bool = False) -> None:
        self.told.clear()
        await self.deployment().destroy(self.told.append, with_data=with_data)

    async def states(self) -> dict[str, str | None]:
        return {one.name: one.status for one in await self.deployment().status()}

    def steps(self, kind: StepKind) -> list[str]:
        return [one.stack for one in self.told if one.kind is kind]

    def name(self, stack: str) -> str:
        return stack_name(self.config.stage, stack)


def on_stand_in(
    story: Callable[[Stage], Awaitable[None]], aws: type[Aws] = Aws, **document: Any
) -> None:
    server = stand_in()

    async def tell() -> None:
        way = aws(server.place)
        try:
            await story(Stage(way, **document))
        finally:
            await way.close()

    asyncio.run(tell())


def test_what_is_deployed_again_is_not_changed_and_new_code_changes_functions_alone() -> None:
    async def story(stage: Stage) -> None:
        outputs = await stage.deploy()
        assert stage.steps(StepKind.DONE) == ["infrastructure", "code", *_DEPLOYED[1:]]
        assert outputs["Bucket"].startswith(f"longshore-{stage.config.stage}-")

        await stage.deploy()
        assert stage.steps(StepKind.UNCHANGED) == ["infrastructure", "code", *_DEPLOYED[1:]]
        assert stage.steps(StepKind.DONE) == []

        await stage.deploy(package=replace(tiny(), sha256="1" * 64))
        assert stage.steps(StepKind.UNCHANGED) == ["infrastructure"]
        assert stage.steps(StepKind.DONE) == ["code", *_DEPLOYED[1:]]

        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}
        await stage.destroy(with_data=True)  # nothing is there, and nothing breaks

    on_stand_in(story)


class Breaks(Aws):
    """CloudFormation cannot make the dispatcher's rule: it names what nobody exports."""

    wrong = True

    async def call(self, service: str, operation: str, **given: Any) -> Answer:
        if self.wrong and operation == "create_change_set" and "dispatcher" in given["StackName"]:
            wrong = given["TemplateBody"].replace('-undelivered"', '-nowhere"')
            given["TemplateBody"] = wrong
        return await super().call(service, operation, **given)


def test_a_stack_that_fails_is_put_back_the_first_reason_is_told_and_the_next_try_mends_it() -> (
    None
):
    async def story(stage: Stage) -> None:
        assert isinstance(stage.aws, Breaks)
        with pytest.raises(StackFailed) as failed:
            await stage.deploy()

        assert failed.value.stack == stage.name("dispatcher")
        assert failed.value.resource == "DispatcherRule"
        assert "-nowhere" in str(failed.value)
        assert [one.resource for one in stage.told if one.failed] == [
            "DispatcherRule (AWS::Events::Rule)"
        ]
        assert (await stage.states())["dispatcher"] == "ROLLBACK_COMPLETE"
        assert (await stage.states())["health-check"] is None

        stage.aws.wrong = False
        await stage.deploy()
        assert (await stage.states())["dispatcher"] == "CREATE_COMPLETE"
        await stage.destroy(with_data=True)

    on_stand_in(story, Breaks)


class GoesAway(Aws):
    """Whoever deploys is gone right after a call, for good or for bad."""

    after: str | None = None

    async def call(self, service: str, operation: str, **given: Any) -> Answer:
        answer = await super().call(service, operation, **given)
        if operation == self.after:
            self.after = None
            raise BackendUnavailable(operation)
        return answer


@pytest.mark.parametrize("after", ["create_change_set", "execute_change_set"])
def test_whoever_deploys_again_after_an_interruption_finishes_it(after: str) -> None:
    async def story(stage: Stage) -> None:
        assert isinstance(stage.aws, GoesAway)
        stage.aws.after = after
        with pytest.raises(BackendUnavailable):
            await stage.deploy()
        assert set((await stage.states()).values()) != {None}

        await stage.deploy()

        states = await stage.states()
        assert {states[name] for name in _DEPLOYED} == {"CREATE_COMPLETE"}
        await stage.destroy(with_data=True)

    on_stand_in(story, GoesAway)


def test_a_protected_stage_is_not_taken_away_until_it_is_deployed_without_protection() -> None:
    async def story(stage: Stage) -> None:
        await stage.deploy()
        assert all(one.protected for one in await stage.deployment().status() if one.status)

        with pytest.raises(Protected, match="protected: false"):
            await stage.destroy()
        assert (await stage.states())["producer-api"] == "CREATE_COMPLETE"

        stage.config = replace(stage.config, protected=False)
        await stage.deploy()
        await stage.destroy(with_data=True)
        assert set((await stage.states()).values()) == {None}

    on_stand_in(story, protected=True)


def test_tables_that_were_kept_are_found_again_with_what_is_in_them() -> None:
    async def story(stage: Stage) -> None:
        outputs = await stage.deploy()
        table = stage.config.names.house
        item = {"kind": {"S": "kept"}, "name": {"S": "kept"}}
        await stage.aws.call("dynamodb", "put_item", TableName=table, Item=item)

        await stage.destroy()
        kept = [one.resource for one in stage.told if one.kind is StepKind.KEPT]
        assert kept[-2:] == [table, f"bucket {outputs['Bucket']}"]
        # The stand-in takes over tables, and no bucket that is there; AWS takes both.
        await stage.aws.call("s3", "delete_object", Bucket=outputs["Bucket"], Key=tiny().key)
        await stage.aws.call("s3", "delete_bucket", Bucket=outputs["Bucket"])

        await stage.deploy()

        found = await stage.aws.call("dynamodb", "get_item", TableName=table, Key=item)
        assert found["Item"] == item
        await stage.destroy(with_data=True)

    on_stand_in(story)


def test_what_is_not_a_stage_changes_nothing() -> None:
    async def story(stage: Stage) -> None:
        many = replace(stage.config, queues=tuple(f"queue-{n}" for n in range(40)))
        with pytest.raises(ConfigurationError, match="have fewer queues"):
            await stage.deploy(config=many)

        assert set((await stage.states()).values()) == {None}

    on_stand_in(story)
