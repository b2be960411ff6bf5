"""The stacks, deployed by the command to a stand-in that denies what no policy allows; then used.

The stand-in runs the functions from the built zip, and calls them by its own mappings, rules and
gateway. Workers and a server run beside it, with the permissions of their roles. Situations that a
test cannot cause in a deployed function run before, in a stage without stacks.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore.adapters.aws.deploy.stacks.template import GRANTS
from longshore.adapters.aws.names import Names
from tests.aws.deploy.installation import DeployedInstallation, enforcing_stand_in
from tests.aws.deploy.permissions import RolePolicies, granted_permissions
from tests.aws.deploy.rare_scenarios import NAMES, run_rare_scenarios
from tests.aws.deploy.walkthrough import (
    Walkthrough,
    cause_failures,
    read_everything,
    run_jobs,
    run_server,
    send_operator_commands,
    start,
)

CONFIG = """\
protected: false
alarms: { email: [operators@example.com] }
worker: { image: "shop:1", subnets: [subnet-1], security_groups: [sg-1] }
server: { image: "shop:1", subnets: [subnet-1], security_groups: [sg-1] }
"""


# One test instead of three on one installation: creating it is slow, and the tests of a module may
# run in different processes.
@pytest.mark.timeout(400)
def test_an_installation_needs_all_its_permissions_and_no_others(
    tmp_path: Path,
) -> None:
    with walked_through(tmp_path) as walkthrough:
        assert_job_completed_in_deployed_functions(walkthrough)
        assert_no_call_was_denied(walkthrough)
        assert_every_permission_was_used(walkthrough.installation, walkthrough.names, NAMES)


@contextmanager
def walked_through(folder: Path) -> Iterator[Walkthrough]:
    """Deploy a stage, do everything once, and destroy the stage at the end."""
    (folder / "e2e.yaml").write_text(CONFIG)
    with enforcing_stand_in(folder) as installation:
        run_rare_scenarios(installation, folder)
        stage = ("--stage", installation.stage, "--config", str(folder / "e2e.yaml"))
        installation.run("aws", "deploy", *stage)
        status = installation.run("aws", "status", *stage, "-o", "json")
        installation.outputs = json.loads(status)["outputs"]
        walkthrough = start(installation)
        run_jobs(walkthrough)
        read_everything(walkthrough.api, walkthrough.jobs["dag"], "keep", jobs="dag")
        send_operator_commands(walkthrough)
        cause_failures(walkthrough)
        run_server(walkthrough)
        yield walkthrough
        installation.run("aws", "destroy", *stage, "--yes", "--with-data")
        tables = installation.call("dynamodb", "list_tables")["TableNames"]
        assert not [name for name in tables if name.startswith(f"longshore-{installation.stage}-")]
        installation.run("aws", "status", *stage, code=3)


def assert_job_completed_in_deployed_functions(walkthrough: Walkthrough) -> None:
    job = walkthrough.jobs["dag"]
    events = walkthrough.api.request("GET", f"/jobs/{job}/events")["events"]

    # Stream, relay, bus, queue and function delivered each task's events in order and once.
    for task in ("fetch", "count", "keep"):
        own = [item for item in events if item["entityId"] == f"{job}_{task}"]
        assert [item["sequence"] for item in own] == list(range(1, len(own) + 1))
        assert own[-1]["eventType"] == "Task Completed"
    assert [item["eventType"] for item in events if item["entityId"] == job] == [
        "Job Created",
        "Job Completed",
    ]
    assert walkthrough.api.request("GET", f"/jobs/{job}/tasks/fetch/result")["result"] == "y" * 3000


def assert_no_call_was_denied(walkthrough: Walkthrough) -> None:
    denied = [call for call in walkthrough.installation.calls() if call["denied"]]

    assert denied == []


def assert_every_permission_was_used(installation: DeployedInstallation, *stages: Names) -> None:
    """A permission may be used in any of the stages: in the walkthrough or in a rare scenario."""
    call_log, policies = installation.calls(), [RolePolicies.for_stage(names) for names in stages]
    used = {
        role: {use for item in policies for use in item.used_permissions(role, call_log)}
        for role in GRANTS
    }
    # A server is the same app with the same permissions; its part of the walkthrough uses some.
    assert granted_permissions("server") == {
        use for use in granted_permissions("api") if use.resource != "secrets"
    }
    used["server"] |= used["api"]
    unused = [
        (role, use) for role in GRANTS for use in sorted(granted_permissions(role) - used[role])
    ]

    assert not unused, "\n".join(map(str, unused))
