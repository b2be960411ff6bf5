"""The stacks, deployed by the command to a stand-in that denies what no policy allows; then used.

The functions are run by the stand-in itself, from the zip that was built, fed by its own mappings,
rules and gateway. Workers and a server run beside it, with the rights of their roles.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.privileges import FEEDS, GRANTS, PLACES
from tests.aws.deploy.installation import Installation, stand_in_that_denies
from tests.aws.deploy.tour import (
    Tour,
    begin,
    go_wrong,
    look,
    serve,
    wish,
    work,
)
from tests.aws.standin import REGION

ACCOUNT = "000000000000"
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
    with toured(tmp_path) as tour:
        a_job_went_through_the_deployed_functions_to_its_end(tour)
        nobody_was_denied_anything(tour)
        everything_that_is_allowed_was_done_but_for_what_comes_seldom(tour)


@contextmanager
def toured(folder: Path) -> Iterator[Tour]:
    """Everything was done once; at the end, all of it is taken away."""
    (folder / "e2e.yaml").write_text(CONFIG)
    with stand_in_that_denies(folder) as here:
        stage = ("--stage", here.stage, "--config", str(folder / "e2e.yaml"))
        here.run("deploy", *stage)
        here.outputs = json.loads(here.run("status", *stage, "-o", "json"))["outputs"]
        made = begin(here)
        work(made)
        look(made.door, made.jobs["dag"], "keep", jobs="dag")
        wish(made)
        go_wrong(made)
        serve(made)
        yield made
        here.run("destroy", *stage, "--yes", "--with-data")
        assert here.call("dynamodb", "list_tables")["TableNames"] == []
        here.run("status", *stage, code=3)


def a_job_went_through_the_deployed_functions_to_its_end(tour: Tour) -> None:
    job = tour.jobs["dag"]
    told = tour.door.ask("GET", f"/jobs/{job}/events")["events"]

    # Of every task, what happened, in order and once: by stream, relay, bus, queue and function.
    for task in ("fetch", "count", "keep"):
        own = [one for one in told if one["entityId"] == f"{job}_{task}"]
        assert [one["sequence"] for one in own] == list(range(1, len(own) + 1))
        assert own[-1]["eventType"] == "Task Completed"
    assert [one["eventType"] for one in told if one["entityId"] == job] == [
        "Job Created",
        "Job Completed",
    ]
    assert tour.door.ask("GET", f"/jobs/{job}/tasks/fetch/result")["result"] == "y" * 3000


def nobody_was_denied_anything(tour: Tour) -> None:
    denied = [call for call in tour.installation.calls() if call["denied"]]

    assert denied == []


def everything_that_is_allowed_was_done_but_for_what_comes_seldom(tour: Tour) -> None:
    called = {name: calls_of(tour.installation, name) for name in GRANTS}
    # A server is the same app, and was asked for a part of it.
    called["server"] |= called["api"]
    unused, often = [], []
    for name, grants in GRANTS.items():
        for grant in grants:
            if grant.why == FEEDS:
                continue  # Lambda itself does it, and the stand-in's asks nobody.
            done = {
                action for action, resource in called[name] if is_at(tour, grant.place, resource)
            }
            unused += [(name, grant.place, one) for one in grant.actions if one not in done]
            often += [(name, grant.place, one) for one in grant.seldom if one in done]

    assert not unused, "\n".join(map(str, unused))
    # Those of whom it depends on luck may be seen or not; a function that always does it is listed.
    seen = [one for one in often if one[0] not in ("worker", "server", "sweeper")]
    assert not seen, "\n".join(map(str, seen))


def calls_of(here: Installation, name: str) -> set[tuple[str, str]]:
    """By a function's role, or by the user that stands for a service."""
    ends = (f"/longshore-{here.stage}-{name}", f":user/{name}")
    return {(one["action"], one["resource"]) for one in here.calls() if one["who"].endswith(ends)}


def is_at(tour: Tour, place: str, resource: str) -> bool:
    config = StageConfig(stage=tour.installation.stage)
    return any(
        fnmatchcase(resource, text_of(arn, tour.installation.outputs))
        for arn in PLACES[place].arns(config)
    )


def text_of(value: Any, outputs: dict[str, str]) -> str:
    """What CloudFormation makes of a value of a template."""
    match value:
        case str():
            return value
        case {"Fn::ImportValue": str(name)}:
            words = name.removeprefix("longshore-e2e-").split("-")
            return outputs["".join(word.capitalize() for word in words)]
        case {"Fn::Sub": str(text)}:
            return _put_in(text, {})
        case {"Fn::Sub": [str(text), dict(values)]}:
            return _put_in(text, {key: text_of(one, outputs) for key, one in values.items()})
    raise AssertionError(value)


def _put_in(text: str, values: dict[str, str]) -> str:
    known = {"AWS::Partition": "aws", "AWS::Region": REGION, "AWS::AccountId": ACCOUNT, **values}
    return re.sub(r"\$\{([\w:]+)\}", lambda found: known[found[1]], text)
