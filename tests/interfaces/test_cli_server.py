"""Commands that ask a server: who is believed, what is sent where, and answers that get lost."""

import json
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.wiring.services import Services
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.dead_store import query_services
from tests.interfaces.lossy_proxy import lossy_proxy
from tests.interfaces.server_thread import ServerAddress, run_server
from tests.interfaces.test_cli_up import up

Inside = Callable[..., CommandResult]
HELLO = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["echo", "hello"]}}]}
LINES = 400
CHATTY = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done"


@pytest.fixture
def store(cli: Cli) -> Path:
    return cli.folder / ".longshore"


@pytest.fixture
def server(store: Path) -> Iterator[ServerAddress]:
    with run_server(store) as served:
        yield served


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, and a place to work in that has no data folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


@pytest.fixture
def with_key(server: ServerAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_API_KEY", server.key)


def _job_file(folder: Path, document: Any = HELLO) -> str:
    path = folder / "job.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_server_and_its_key_are_remembered_for_their_owner_alone(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    added = cli("contexts", "add", "prod", "--server", server.url, stdin=f"{server.key}\n")
    listed = cli("contexts", "list", "-o", "json")
    asked = cli("submit", _job_file(home), "-o", "json")

    assert (added.code, added.out) == (0, f"prod is in use: {server.url}\n")
    file = home / ".config" / "longshore" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server.key not in added.out + added.err + listed.out
    assert listed.json["contexts"] == [
        {"name": "prod", "url": server.url, "hasKey": True, "current": True}
    ]
    assert asked.code == 0
    assert [job.id for job in cli.jobs()] == [asked.json["jobId"]]


def test_a_context_is_chosen_left_and_forgotten(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    cli("contexts", "add", "prod", "--server", server.url, stdin=server.key)

    left = cli("contexts", "use", "--none")
    beside = cli("jobs", "--context", "prod", "-o", "json")
    chosen = cli("contexts", "use", "prod")
    forgotten = cli("contexts", "remove", "prod")
    unknown = cli("jobs", "--context", "prod")

    assert (left.code, beside.code, chosen.code, forgotten.code) == (0, 0, 0, 0)
    assert beside.json["jobs"] == []
    assert unknown.code == ExitCode.USAGE
    assert "no context is called 'prod'" in unknown.err


def test_a_server_that_does_not_know_the_key_is_not_remembered(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    answer = cli("contexts", "add", "prod", "--server", server.url, stdin="ls_wrong\n")

    assert answer.code == ExitCode.USAGE
    assert "not known or was revoked" in answer.err
    assert "ls_wrong" not in answer.err
    assert not (home / ".config").exists()


def test_contexts_that_others_can_read_are_not_believed(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    cli("contexts", "add", "prod", "--server", server.url, stdin=server.key)
    file = home / ".config" / "longshore" / "contexts.json"
    file.chmod(0o644)

    answer = cli("jobs")

    assert answer.code == ExitCode.USAGE
    assert f"chmod 600 {file}" in answer.err


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "contexts": {"a": 1}}'])
def test_a_file_that_holds_no_contexts_is_said_to_be_so(cli: Cli, home: Path, text: str) -> None:
    file = home / ".config" / "longshore" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)

    answer = cli("jobs")

    assert answer.code == ExitCode.USAGE
    assert "does not hold contexts" in answer.err


def test_a_wrong_key_and_one_that_allows_too_little_are_told_apart(
    inside: Inside, server: ServerAddress, store: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reader(services: Services) -> str:
        _, text = await services.api_keys.create(
            "default", name="bob", scopes=(ApiScope.READ,), by="tests"
        )
        return text

    file = _job_file(home)
    monkeypatch.setenv("LONGSHORE_API_KEY", "ls_wrong")
    wrong = inside("jobs", "--server", server.url)
    monkeypatch.setenv("LONGSHORE_API_KEY", query_services(store, reader))
    may = inside("jobs", "--server", server.url)
    may_not = inside("submit", file, "--server", server.url)

    assert (wrong.code, may.code, may_not.code) == (ExitCode.USAGE, 0, ExitCode.REFUSED)
    assert "LONGSHORE_API_KEY" in wrong.err
    assert "'submit'" in may_not.err


def test_nobody_at_the_address_is_told_with_the_address(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_API_KEY", "ls_any")

    answer = inside("jobs", "--server", "http://127.0.0.1:9")

    assert answer.code == ExitCode.BACKEND
    assert "no server answers at http://127.0.0.1:9" in answer.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://jobs.example.com", "in the clear"),
        ("ftp://127.0.0.1", "is no address"),
        ("http://ann:secret@127.0.0.1:1", "is no address"),
        ("127.0.0.1:8421", "is no address"),
        ("http://127.0.0.1:99999", "is no address"),
    ],
)
def test_a_key_is_not_sent_to_what_is_no_safe_address(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("LONGSHORE_API_KEY", "ls_any")

    answer = inside("jobs", "--server", url)

    assert answer.code == ExitCode.USAGE
    assert said in answer.err
    assert "secret" not in answer.err


def test_this_machines_own_key_is_found_by_itself_and_sent_to_this_machine_alone(
    cli: Cli, store: Path, server: ServerAddress
) -> None:
    (store / "api-key").write_text(f"{server.key}\n")
    (store / "api-key").chmod(0o600)

    near = cli("jobs", "--server", server.url)
    far = cli("jobs", "--server", "https://jobs.example.com")

    assert near.code == 0
    assert far.code == ExitCode.USAGE
    assert "there is no key to https://jobs.example.com" in far.err


def test_two_places_at_once_are_refused(inside: Inside, home: Path) -> None:
    answer = inside("jobs", "--server", "http://127.0.0.1:1", "--data-dir", ".")

    assert answer.code == ExitCode.USAGE
    assert "--server and --data-dir name different places" in answer.err


@pytest.mark.usefixtures("with_key")
def test_a_server_knows_the_tenant_by_the_key(
    inside: Inside, server: ServerAddress, home: Path
) -> None:
    answer = inside("jobs", "--server", server.url, "--tenant", "other")

    assert answer.code == ExitCode.USAGE
    assert "knows the tenant by the key" in answer.err


@pytest.mark.usefixtures("with_key")
def test_a_bad_file_changes_nothing_at_the_server(
    inside: Inside, server: ServerAddress, home: Path, store: Path
) -> None:
    definition = {"name": "own", "runner": "command", "options": {"argv": ["true"]}}
    bad = {"definitions": [definition], "tasks": [{"taskId": "a", "name": "nobody-knows"}]}

    answer = inside("submit", _job_file(home, bad), "--server", server.url)

    async def definitions(services: Services) -> list[Any]:
        return list(await services.backend.definitions.list("default"))

    assert answer.code == ExitCode.USAGE
    assert "no definition is called 'nobody-knows'" in answer.err
    assert query_services(store, definitions) == []


@pytest.mark.usefixtures("with_key")
def test_a_job_whose_acceptance_was_lost_on_the_way_is_accepted_once(
    inside: Inside, cli: Cli, server: ServerAddress, home: Path
) -> None:
    with lossy_proxy(server.url, cut_after=(10,), request_prefix=b"POST") as url:
        answer = inside("submit", _job_file(home), "--server", url, "-o", "json")

    assert answer.code == 0, answer.err
    assert [job.id for job in cli.jobs()] == [answer.json["jobId"]]


@pytest.mark.usefixtures("with_key")
def test_a_wish_whose_answer_was_lost_is_said_to_be_unknown(
    inside: Inside, server: ServerAddress, home: Path
) -> None:
    job = inside("submit", _job_file(home), "--server", server.url, "-o", "json").json["jobId"]

    with lossy_proxy(server.url, cut_after=(10,), request_prefix=b"POST") as url:
        answer = inside("cancel", job, "--server", url)

    assert answer.code == ExitCode.BACKEND
    assert "whether it was done is not known" in answer.err
    assert inside("job", job, "--server", server.url, "-o", "json").json["status"] == "cancelled"


@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("whole", [False, True], ids=["task", "job"])
def test_output_that_is_cut_off_on_the_way_is_whole_and_comes_once(
    inside: Inside, cli: Cli, server: ServerAddress, home: Path, whole: bool
) -> None:
    task = {"taskId": "a", "name": "command", "input": {"argv": ["sh", "-c", CHATTY]}}
    file = _job_file(home, {"tasks": [task]})
    job = inside("submit", file, "--server", server.url, "-o", "json").json["jobId"]
    assert cli("worker", "--burst").code == 0

    with lossy_proxy(server.url, cut_after=(20_000, 300), request_prefix=b"GET /v1/jobs") as url:
        answer = inside("logs", job if whole else f"{job}_a", "-f", "--server", url)

    assert answer.code == 0, answer.err
    lines = [line.removeprefix("a | ") for line in answer.out.splitlines()]
    assert lines == [f"line {number}" for number in range(LINES)]


def test_a_submitted_job_is_waited_for_while_the_servers_workers_do_it(cli: Cli) -> None:
    with up(cli) as (_, client):
        url = str(client.base_url).rstrip("/")
        waited = cli("submit", "-", "--wait", "--server", url, stdin=json.dumps(HELLO))
        logs = cli("logs", cli.jobs()[0].id, "--server", url)

    assert waited.code == 0, waited.err
    assert "completed in" in waited.out
    assert logs.out == "a | hello\n"


def test_whoever_stops_waiting_leaves_the_job_to_the_server(cli: Cli) -> None:
    slow = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["sleep", "60"]}}]}
    with up(cli) as (_, client):
        url = str(client.base_url).rstrip("/")
        file = _job_file(cli.folder, slow)
        with cli.start("submit", file, "--wait", "--server", url) as waiting:
            assert waiting.stderr is not None
            assert "a: started" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            said = waiting.stderr.read()
        (job,) = client.get("/v1/jobs").json()["jobs"]

    assert waiting.returncode == ExitCode.INTERRUPTED
    assert "workers continue job-" in said
    assert job["status"] == "running"
