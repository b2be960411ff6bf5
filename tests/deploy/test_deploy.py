"""The files in deploy/ fit the program: commands exist, and stop timeouts are long enough."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from longshore.core.supervision import SupervisionPolicy
from longshore.core.text.durations import parse_duration
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import COMMANDS, main
from longshore.settings import FIELDS, Settings, variable_of
from tests.interfaces.command_line import SCRIPT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_SPEC: Any = spec_from_file_location("packages", DEPLOY / "packages.py")
packages: Any = module_from_spec(_SPEC)
_SPEC.loader.exec_module(packages)
UNITS = [DEPLOY / "longshore-worker.service", DEPLOY / "longshore.service"]
CONTAINER = DEPLOY / "Containerfile"
ANALYZE = shutil.which("systemd-analyze")


class Unit(configparser.ConfigParser):
    """A unit file: names keep their case, and a name may occur repeatedly."""

    def __init__(self, path: Path) -> None:
        super().__init__(interpolation=None, strict=False, delimiters=("=",))
        self.text = path.read_text(encoding="utf-8")
        self.read_string(self.text)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(params=UNITS, ids=lambda path: path.stem)
def unit(request: pytest.FixtureRequest) -> Unit:
    return Unit(request.param)


def seconds(text: str) -> timedelta:
    return timedelta(seconds=int(text))


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, with continued lines joined."""
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def instruction(name: str) -> str:
    """The last instruction of that name, which is the effective one."""
    return [rest for result, rest in instructions() if result == name][-1]


def assert_parses(arguments: list[str]) -> None:
    """The command exists and has these options: with --help it only parses them."""
    assert arguments[0] in COMMANDS
    assert main([*arguments, "--help"]) == ExitCode.OK


def test_the_unit_waits_longer_than_the_last_deadline_of_a_stop(unit: Unit) -> None:
    # A process that hangs ends itself then, with a message and an exit code of its own.
    assert seconds(unit["Service"]["TimeoutStopSec"]) > Settings().stop_deadline


def test_the_unit_starts_a_command_that_exists(unit: Unit) -> None:
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])

    assert Path(program).name == "longshore"
    assert_parses(arguments)


def test_there_is_a_unit_for_the_worker_and_one_for_the_server() -> None:
    commands = [shlex.split(Unit(path)["Service"]["ExecStart"])[1:] for path in UNITS]

    assert commands == [["worker"], ["up"]]


def test_the_unit_restarts_and_gives_up_as_a_supervisor_does(unit: Unit) -> None:
    policy, service = SupervisionPolicy(), unit["Service"]
    starts = int(unit["Unit"]["StartLimitBurst"])

    assert service["Restart"] == "always"
    assert seconds(service["RestartSec"]) == policy.restart_delay
    assert starts == policy.restart_limit + 1
    assert seconds(unit["Unit"]["StartLimitIntervalSec"]) == starts * (
        policy.short_life + policy.restart_delay
    )
    assert int(service["RestartPreventExitStatus"]) == ExitCode.USAGE


def test_the_unit_signals_the_worker_alone(unit: Unit) -> None:
    assert unit["Service"]["KillMode"] == "mixed"
    assert unit["Service"]["KillSignal"] == "SIGTERM"


def test_the_unit_stores_its_data_in_the_only_directories_that_it_may_write(unit: Unit) -> None:
    service = unit["Service"]
    folders = [f"/var/lib/{name}" for name in service["StateDirectory"].split()]
    set_here = re.findall(r"^Environment=(\w+)=(.*)$", unit.text, re.MULTILINE)

    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    variables = ("LONGSHORE_DATA_DIR", "LONGSHORE_KEYS_DIR")[: len(folders)]
    assert set(zip(variables, folders, strict=True)) <= set(set_here)
    assert {name for name, _ in set_here} <= {variable_of(name) for name in FIELDS}


def test_the_unit_does_not_take_back_the_control_groups_that_it_delegates(unit: Unit) -> None:
    assert unit["Service"]["Delegate"] == "yes"
    assert "ProtectControlGroups" not in unit["Service"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "name", ["longshore.service", "longshore-worker.service", "longshore-worker@.service"]
)
def test_systemd_understands_the_unit_alone_and_as_a_template(tmp_path: Path, name: str) -> None:
    # The program itself need not be installed where a test runs.
    unit = Unit(DEPLOY / name.replace("@", ""))
    program = unit["Service"]["ExecStart"].split()[0]
    (tmp_path / name).write_text(unit.text.replace(program, str(SCRIPT)))

    checked = subprocess.run(
        [str(ANALYZE), "verify", str(tmp_path / name.replace("@.", "@1."))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    # systemd-analyze also reports problems of other units, which belong to the machine.
    assert [line for line in checked.stderr.splitlines() if "longshore" in line] == []
    assert checked.returncode == 0


def test_the_container_runs_as_a_user_other_than_root() -> None:
    user = instruction("USER").partition(":")[0]

    assert user.isdigit()
    assert int(user) > 0


def test_the_container_starts_a_command_that_exists_below_an_init() -> None:
    program, *arguments = json.loads(instruction("CMD"))

    assert program == "longshore"
    assert_parses(arguments)
    assert json.loads(instruction("ENTRYPOINT")) == ["/usr/bin/tini", "--"]
    assert "tini" in instruction("RUN")
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_the_container_is_checked_by_the_doctor() -> None:
    options, _, command = instruction("HEALTHCHECK").partition(" CMD ")
    program, *arguments = json.loads(command)

    assert program == "longshore"
    assert arguments == ["doctor"]
    assert_parses(arguments)
    times = dict(option.split("=") for option in options.split())
    assert parse_duration(times["--interval"]) > parse_duration(times["--timeout"])


def test_the_container_copies_only_files_that_exist() -> None:
    copied = [
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    base = {rest.split()[0] for name, rest in instructions() if name == "FROM"}

    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert base == {"docker.io/library/python:3.11-slim@${PYTHON_DIGEST}"}


def test_the_container_sets_only_existing_settings() -> None:
    names = set(re.findall(r"LONGSHORE_\w+(?==)", CONTAINER.read_text()))

    assert "LONGSHORE_DATA_DIR" in names
    assert names <= {variable_of(name) for name in FIELDS}


def test_the_page_names_only_settings_and_files_that_exist() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    settings = re.findall(r"`((?:worker|supervisor)\.\w+|log_file\w*)`", text)
    links = re.findall(r"\]\(([^)]+)\)", text)

    assert settings
    assert [name for name in settings if name not in FIELDS] == []
    assert [link for link in links if not (DEPLOY / link).exists()] == []


def test_the_page_gives_more_time_to_stop_than_the_last_deadline_of_a_stop() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    pattern = r"(?:--stop-timeout |terminationGracePeriodSeconds: )(\d+)"
    timeouts = re.findall(pattern, text + CONTAINER.read_text(encoding="utf-8"))

    assert len(timeouts) == 4
    assert all(seconds(number) > Settings().stop_deadline for number in timeouts)


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("Containerfile*")), ids=lambda path: path.name)
def test_a_base_image_is_named_by_a_digest_that_must_be_given(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)

    assert len(images) == 2
    assert all(image.endswith("-slim@${PYTHON_DIGEST}") for image in images)
    assert re.findall(r"^ARG .*", text, re.MULTILINE) == ["ARG PYTHON_DIGEST"]


def test_packages_are_installed_from_a_lock_only() -> None:
    pages = [DEPLOY / "README.md", *DEPLOY.glob("Containerfile*")]
    text = "\n".join(page.read_text(encoding="utf-8").replace("\\\n", " ") for page in pages)
    installs = re.findall(r"pip install [^&\n]*", text)

    assert len(installs) >= 9
    locked = ("--require-hashes", "--no-deps")
    assert [line for line in installs if not any(option in line for option in locked)] == []


def test_the_licences_of_all_packages_are_allowed() -> None:
    assert packages.licence_problems() == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("(MIT OR GPL-3.0-only) AND BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("any-OSI", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_only_if_it_is_listed(expression: str, *, allowed: bool) -> None:
    assert packages.is_allowed(expression) is allowed


def test_a_package_with_another_licence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "ALLOWED", packages.ALLOWED - {"ISC"})

    (problem,) = packages.licence_problems()

    assert problem.startswith("shellingham: the licence 'ISC' ")


def test_the_bill_of_materials_has_every_package_with_its_version_and_licence() -> None:
    document = packages.bill_of_materials()
    components = {item["name"]: item for item in document["components"]}
    locked = packages.locked_packages()
    runtime = (ROOT / "requirements.txt").read_text(encoding="utf-8")

    assert document["bomFormat"] == "CycloneDX"
    assert {name: item["version"] for name, item in components.items()}.items() <= locked.items()
    # One of each kind: the runtime, an extra, a dependency of a dependency, an extra of one.
    assert {"apsw", "aiobotocore", "h11", "claude-agent-sdk", "cryptography"} <= components.keys()
    assert "pytest" not in components
    build = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit"}
    build |= {"trove-classifiers"}
    for name in re.findall(r"^([a-z0-9._-]+)==", runtime, re.MULTILINE):
        assert name in {*components, *build, "httpx2-jsfetch", "colorama", "typing-extensions"}
    references = {item["bom-ref"] for item in document["components"]}
    listed = {reference for item in document["dependencies"] for reference in item["dependsOn"]}
    assert listed <= references
    assert packages.bill_of_materials() == document
