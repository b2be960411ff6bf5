"""Commands that use a server: saved servers, keys, and lost answers."""

import json
import signal
import stat
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from longshore.adapters.system import ensure_key, key_file
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
    """A home folder, with a working directory in it that has no data folder."""
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


def test_a_server_and_its_key_are_saved_for_their_owner_alone(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    added = cli("contexts", "add", "prod", "--server", server.url, stdin=f"{server.key}\n")
    listed = cli("contexts", "list", "-o", "json")
    submitted = cli("submit", _job_file(home), "-o", "json")

    assert (added.code, added.out) == (0, f"Current context: 'prod', {server.url}\n")
    file = home / ".config" / "longshore" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server.key not in added.out + added.err + listed.out
    assert listed.json["contexts"] == [
        {"name": "prod", "url": server.url, "hasKey": True, "current": True}
    ]
    assert submitted.code == 0
    assert [job.id for job in cli.jobs()] == [submitted.json["jobId"]]


def test_a_context_is_selected_deselected_and_removed(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    cli("contexts", "add", "prod", "--server", server.url, stdin=server.key)

    deselected = cli("contexts", "use", "--none")
    named = cli("jobs", "--context", "prod", "-o", "json")
    selected = cli("contexts", "use", "prod")
    removed = cli("contexts", "remove", "prod")
    unknown = cli("jobs", "--context", "prod")

    assert (deselected.code, named.code, selected.code, removed.code) == (0, 0, 0, 0)
    assert named.json["jobs"] == []
    assert unknown.code == ExitCode.USAGE
    assert "there is no context 'prod'" in unknown.err


def test_a_server_that_refuses_the_key_is_not_saved(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    answer = cli("contexts", "add", "prod", "--server", server.url, stdin="ls_wrong\n")

    assert answer.code == ExitCode.USAGE
    assert "not known or was revoked" in answer.err
    assert "ls_wrong" not in answer.err
    assert not (home / ".config").exists()


@pytest.mark.parametrize(
    ("key", "problem"), [("", "no API key given"), ("ls_ä", "this is not an API key")]
)
def test_without_a_valid_key_the_error_names_the_command_that_creates_one(
    cli: Cli, server: ServerAddress, key: str, problem: str
) -> None:
    answer = cli("contexts", "add", "prod", "--server", server.url, stdin=key)

    assert answer.code == ExitCode.USAGE
    assert f"{problem}; create one on the server with `longshore keys create`" in answer.err


def test_without_a_key_the_error_is_the_missing_key_and_not_the_network(cli: Cli) -> None:
    answer = cli("contexts", "add", "p", "--server", "http://jobs.example.com", "--no-key")

    assert answer.code == ExitCode.USAGE
    assert "there is no API key for http://jobs.example.com" in answer.err


def test_a_contexts_file_that_others_can_read_is_refused(
    cli: Cli, home: Path, server: ServerAddress
) -> None:
    cli("contexts", "add", "prod", "--server", server.url, stdin=server.key)
    file = home / ".config" / "longshore" / "contexts.json"
    file.chmod(0o644)

    answer = cli("jobs")

    assert answer.code == ExitCode.USAGE
    assert f"chmod 600 {file}" in answer.err


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "contexts": {"a": 1}}'])
def test_an_invalid_contexts_file_is_refused(cli: Cli, home: Path, text: str) -> None:
    file = home / ".config" / "longshore" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)

    answer = cli("jobs")

    assert answer.code == ExitCode.USAGE
    assert "is not a valid contexts file" in answer.err


def test_an_invalid_key_and_a_missing_scope_give_different_errors(
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
    allowed = inside("jobs", "--server", server.url)
    refused = inside("submit", file, "--server", server.url)

    assert (wrong.code, allowed.code, refused.code) == (ExitCode.USAGE, 0, ExitCode.REFUSED)
    assert "LONGSHORE_API_KEY" in wrong.err
    assert "'submit'" in refused.err


def test_the_error_names_the_url_of_a_server_that_does_not_answer(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_API_KEY", "ls_any")

    answer = inside("jobs", "--server", "http://127.0.0.1:9")

    assert answer.code == ExitCode.BACKEND
    assert "no server answers at http://127.0.0.1:9" in answer.err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://jobs.example.com", "in the clear"),
        ("ftp://127.0.0.1", "invalid server URL"),
        ("http://ann:secret@127.0.0.1:1", "invalid server URL"),
        ("127.0.0.1:8421", "invalid server URL"),
        ("http://127.0.0.1:99999", "invalid server URL"),
    ],
)
def test_a_key_is_not_sent_to_an_unsafe_or_invalid_url(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv("LONGSHORE_API_KEY", "ls_any")

    answer = inside("jobs", "--server", url)

    assert answer.code == ExitCode.USAGE
    assert message in answer.err
    assert "secret" not in answer.err


def test_the_key_of_this_machine_is_sent_to_this_machine_alone(
    cli: Cli, store: Path, server: ServerAddress
) -> None:
    keys = cli.folder / ".config/longshore/keys"
    ensure_key(key_file(keys, store), lambda: server.key)

    local = cli("jobs", "--server", server.url)
    remote = cli("jobs", "--server", "https://jobs.example.com")

    assert local.code == 0
    assert remote.code == ExitCode.USAGE
    assert "there is no API key for https://jobs.example.com" in remote.err


def test_a_server_and_a_data_folder_at_once_are_refused(inside: Inside, home: Path) -> None:
    answer = inside("jobs", "--server", "http://127.0.0.1:1", "--data-dir", ".")

    assert answer.code == ExitCode.USAGE
    assert "--server and --data-dir contradict each other" in answer.err


@pytest.mark.usefixtures("with_key")
def test_a_tenant_cannot_be_named_for_a_server(
    inside: Inside, server: ServerAddress, home: Path
) -> None:
    answer = inside("jobs", "--server", server.url, "--tenant", "other")

    assert answer.code == ExitCode.USAGE
    assert "determines the tenant" in answer.err


@pytest.mark.usefixtures("with_key")
def test_an_invalid_job_file_changes_nothing_on_the_server(
    inside: Inside, server: ServerAddress, home: Path, store: Path
) -> None:
    definition = {"name": "own", "runner": "command", "options": {"argv": ["true"]}}
    bad = {"definitions": [definition], "tasks": [{"taskId": "a", "name": "unknown"}]}

    answer = inside("submit", _job_file(home, bad), "--server", server.url)

    async def definitions(services: Services) -> list[Any]:
        return list(await services.backend.definitions.list("default"))

    assert answer.code == ExitCode.USAGE
    assert "no definition is called 'unknown'" in answer.err
    assert query_services(store, definitions) == []


@pytest.mark.usefixtures("with_key")
def test_a_job_is_accepted_once_if_the_first_answer_is_lost(
    inside: Inside, cli: Cli, server: ServerAddress, home: Path
) -> None:
    with lossy_proxy(server.url, cut_after=(10,), request_prefix=b"POST") as url:
        answer = inside("submit", _job_file(home), "--server", url, "-o", "json")

    assert answer.code == 0, answer.err
    assert [job.id for job in cli.jobs()] == [answer.json["jobId"]]


@pytest.mark.usefixtures("with_key")
def test_the_outcome_of_a_cancel_is_unknown_if_its_answer_is_lost(
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
def test_followed_output_is_complete_and_not_repeated_after_a_lost_connection(
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


def test_submit_with_wait_follows_the_workers_of_the_server(cli: Cli) -> None:
    with up(cli) as (_, client):
        url = str(client.base_url).rstrip("/")
        waited = cli("submit", "-", "--wait", "--server", url, stdin=json.dumps(HELLO))
        logs = cli("logs", cli.jobs()[0].id, "--server", url)

    assert waited.code == 0, waited.err
    assert "completed in" in waited.out
    assert logs.out == "a | hello\n"


def test_interrupting_submit_with_wait_leaves_the_job_to_the_server(cli: Cli) -> None:
    slow = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["sleep", "60"]}}]}
    with up(cli) as (_, client):
        url = str(client.base_url).rstrip("/")
        file = _job_file(cli.folder, slow)
        with cli.start("submit", file, "--wait", "--server", url) as waiting:
            assert waiting.stderr is not None
            assert "a: started" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            errors = waiting.stderr.read()
        (job,) = client.get("/v1/jobs").json()["jobs"]

    assert waiting.returncode == ExitCode.INTERRUPTED
    assert "workers continue job-" in errors
    assert job["status"] == "running"


class _WebPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>Please log in</html>")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.mark.parametrize("command", ["jobs", "why abc", "definitions list"])
def test_a_server_of_another_kind_is_named(cli: Cli, command: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _WebPage) as web_server:
        Thread(target=web_server.serve_forever).start()
        url = f"http://127.0.0.1:{web_server.server_port}"
        answer = cli(*command.split(), "--server", url, env={"LONGSHORE_API_KEY": "some-key"})
        web_server.shutdown()

    assert answer.code == ExitCode.USAGE
    assert f"{url} answered with something that Longshore does not send (text/html)" in answer.err


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(cli: Cli) -> None:
    key = {"LONGSHORE_API_KEY": "schlüssel"}
    answer = cli("jobs", "--server", "http://127.0.0.1:9", env=key)

    assert answer.code == ExitCode.USAGE
    assert "the API key for http://127.0.0.1:9 has characters that no key has" in answer.err
    assert "schl" not in answer.err
