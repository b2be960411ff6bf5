"""Reaching a repository over HTTP and ssh, and the errors when it cannot be reached."""

from pathlib import Path

import pytest

from longshore.core.tasks.failures import ErrorCategory, failure_of
from longshore.execution.runners.agent.git import GitFailed, failure_of_git
from tests.agents.git_repositories import (
    Origin,
    WorkspaceMachine,
    fresh_git,
    install_program,
    serve_repository,
)


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    created = Origin(tmp_path / "remotes" / "origin.git")
    created.commit({"a.txt": b"one\n"})
    return created


@pytest.fixture
def machine(tmp_path: Path) -> WorkspaceMachine:
    return WorkspaceMachine(tmp_path / "machine")


def test_a_server_is_asked_over_http(origin: Origin, machine: WorkspaceMachine) -> None:
    with serve_repository(origin.path) as url:
        space = machine.open(url)
        commit = origin.commit({"a.txt": b"two\n"})

        assert machine.open(url, "main").commit == commit
    assert space.commit != commit
    assert machine.progress == [f"cloning {url}", f"fetching {url}"]


@pytest.mark.parametrize(
    ("status", "category", "text"),
    [
        (401, ErrorCategory.AUTH, "use an ssh:// address"),
        (403, ErrorCategory.AUTH, "use an ssh:// address"),
        (404, ErrorCategory.NOT_FOUND, "no repository at this address"),
        (429, ErrorCategory.RATE_LIMIT, "later"),
        (500, ErrorCategory.SERVER_ERROR, "server failed"),
        (0, ErrorCategory.NETWORK, "could not be reached"),
    ],
)
def test_the_status_of_a_git_server_becomes_a_category_and_a_remedy(
    origin: Origin, machine: WorkspaceMachine, status: int, category: ErrorCategory, text: str
) -> None:
    with serve_repository(origin.path, status) as url, pytest.raises(GitFailed) as caught:
        machine.open(url)

    failure = failure_of(caught.value)
    assert (failure.category, failure.retryable) == (category, category.retryable)
    assert text in failure.message
    assert not list(machine.cache.glob("*.partial"))


def test_a_closed_repository_is_refused(origin: Origin, machine: WorkspaceMachine) -> None:
    with (
        serve_repository(origin.path, credentials="me:hunter22") as url,
        pytest.raises(GitFailed) as caught,
    ):
        machine.open(url)

    assert failure_of(caught.value).category is ErrorCategory.AUTH


def test_a_repository_that_has_moved_is_a_mistake_in_the_definition() -> None:
    stderr = "fatal: unable to access 'https://x/': The requested URL returned error: 301"

    failed = failure_of_git("fetching x", stderr, 128)

    assert failed.failure.category is ErrorCategory.VALIDATION
    assert "has moved" in failed.failure.message


def test_a_redirect_of_the_server_is_followed(origin: Origin, machine: WorkspaceMachine) -> None:
    with serve_repository(origin.path, 301) as url:
        assert machine.open(url).commit


def test_an_unreachable_server_and_a_missing_repository_have_their_categories(
    tmp_path: Path, machine: WorkspaceMachine
) -> None:
    with serve_repository(tmp_path) as url:
        pass
    with pytest.raises(GitFailed) as caught:
        machine.open(url)
    assert failure_of(caught.value).category is ErrorCategory.NETWORK

    with pytest.raises(GitFailed) as caught:
        machine.open(str(tmp_path / "nothing"))
    assert failure_of(caught.value).category is ErrorCategory.NOT_FOUND


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("git@example.com: Permission denied (publickey).", ErrorCategory.AUTH),
        ("Host key verification failed.", ErrorCategory.AUTH),
        ("ERROR: Repository not found.", ErrorCategory.NOT_FOUND),
        ("ssh: Could not resolve hostname example.com", ErrorCategory.NETWORK),
        ("kex_exchange_identification: Connection closed", ErrorCategory.NETWORK),
    ],
)
def test_an_ssh_error_has_its_category(
    tmp_path: Path, machine: WorkspaceMachine, text: str, category: ErrorCategory
) -> None:
    path = install_program(tmp_path / "bin", "ssh", f"echo '{text}' >&2; exit 255")

    with pytest.raises(GitFailed) as caught:
        machine.open("git@example.com:a/b.git", allow_local=False, git=fresh_git(PATH=path))

    assert failure_of(caught.value).category is category


def test_ssh_prompts_for_nothing_and_gets_the_parts_of_the_address(
    origin: Origin, tmp_path: Path, machine: WorkspaceMachine
) -> None:
    # A stand-in that does what the other side would do, with what it was given.
    script = f'echo "$@" >> {tmp_path}/asked; for last; do :; done; eval "$last"'
    path = install_program(tmp_path / "bin", "ssh", script)
    url = f"ssh://git@example.com:2222{origin.url}"

    space = machine.open(url, allow_local=False, git=fresh_git(PATH=path))

    assert (space.folder / "a.txt").read_bytes() == b"one\n"
    requested = (tmp_path / "asked").read_text()
    assert "BatchMode=yes" in requested
    assert f"-p 2222 git@example.com git-upload-pack '{origin.url}'" in requested
