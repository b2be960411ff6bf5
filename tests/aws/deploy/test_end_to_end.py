"""The stacks, deployed by the command to a stand-in that denies what no policy allows; then used.

The functions are run by the stand-in itself, from the zip that was built, fed by its own mappings,
rules and gateway. Workers and a server run beside it, with the rights of their roles. What a
deployed function cannot be made to do at will is played before, in a stage without stacks.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore.adapters.aws.deploy.stacks.privileges import GRANTS
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


# One test, and not three on one installation: to make it takes a while, and tests of one module are
# not sure to share a process.
@pytest.mark.timeout(400)
def test_an_installation_does_its_work_with_what_it_is_allowed_and_with_all_of_it(
    tmp_path: Path,
) -> None:
    with walked_through(tmp_path) as tour:
        a_job_went_through_the_deployed_functions_to_its_end(tour)
        nobody_was_denied_anything(tour)
        everything_that_is_allowed_was_done(tour.installation, tour.names, NAMES)


@contextmanager
def walked_through(folder: Path) -> Iterator[Walkthrough]:
    """Everything was done once; at the end, all of it is taken away."""
    (folder / "e2e.yaml").write_text(CONFIG)
    with enforcing_stand_in(folder) as here:
        run_rare_scenarios(here, folder)
        stage = ("--stage", here.stage, "--config", str(folder / "e2e.yaml"))
        here.run("aws", "deploy", *stage)
        here.outputs = json.loads(here.run("aws", "status", *stage, "-o", "json"))["outputs"]
        made = start(here)
        run_jobs(made)
        read_everything(made.api, made.jobs["dag"], "keep", jobs="dag")
        send_operator_commands(made)
        cause_failures(made)
        run_server(made)
        yield made
        here.run("aws", "destroy", *stage, "--yes", "--with-data")
        tables = here.call("dynamodb", "list_tables")["TableNames"]
        assert not [name for name in tables if name.startswith(f"longshore-{here.stage}-")]
        here.run("aws", "status", *stage, code=3)


def a_job_went_through_the_deployed_functions_to_its_end(walkthrough: Walkthrough) -> None:
    job = walkthrough.jobs["dag"]
    told = walkthrough.api.request("GET", f"/jobs/{job}/events")["events"]

    # Of every task, what happened, in order and once: by stream, relay, bus, queue and function.
    for task in ("fetch", "count", "keep"):
        own = [item for item in told if item["entityId"] == f"{job}_{task}"]
        assert [item["sequence"] for item in own] == list(range(1, len(own) + 1))
        assert own[-1]["eventType"] == "Task Completed"
    assert [item["eventType"] for item in told if item["entityId"] == job] == [
        "Job Created",
        "Job Completed",
    ]
    assert walkthrough.api.request("GET", f"/jobs/{job}/tasks/fetch/result")["result"] == "y" * 3000


def nobody_was_denied_anything(walkthrough: Walkthrough) -> None:
    denied = [call for call in walkthrough.installation.calls() if call["denied"]]

    assert denied == []


def everything_that_is_allowed_was_done(installation: DeployedInstallation, *stages: Names) -> None:
    """By a role in any of the stages: on the tour, or in a scene."""
    notes, rights = installation.calls(), [RolePolicies.for_stage(names) for names in stages]
    done = {
        role: {use for item in rights for use in item.used_permissions(role, notes)}
        for role in GRANTS
    }
    # A server is the same app and may do the same; on the tour it was asked for a part of it.
    assert granted_permissions("server") == {
        use for use in granted_permissions("api") if use.resource != "secrets"
    }
    done["server"] |= done["api"]
    unused = [
        (role, use) for role in GRANTS for use in sorted(granted_permissions(role) - done[role])
    ]

    assert not unused, "\n".join(map(str, unused))
