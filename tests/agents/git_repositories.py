"""Real repositories for tests of the workspace: made by one git each, and served where need be."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

from longshore.execution.runners.agent.git import Git
from longshore.execution.runners.agent.workspace import PATCH_NAME, Workspace

_CLEAN = {
    "PATH": os.defpath,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "HOME": "/nonexistent",
}


def git(*arguments: str, at: Path, stdin: bytes = b"") -> str:
    """Git as a person would run it, without anybody's settings."""
    done = subprocess.run(
        ["git", *arguments], cwd=at, env=_CLEAN, input=stdin, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


class Origin:
    """A bare repository to which commits can be added."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.url = str(path)
        git("init", "--quiet", "--bare", "--initial-branch=main", ".", at=path)

    def commit(
        self,
        files: Mapping[str, bytes | None],
        *,
        branch: str = "main",
        modes: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> str:
        """Add a commit that writes these files (None: removes); its id."""
        ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
        defaults = not fresh and git("for-each-ref", ref, at=self.path)
        lines = [f"commit {ref}", "committer A <a@example.com> 1700000000 +0000", "data 1", "x"]
        text = "\n".join(lines).encode() + b"\n"
        text += f"from {ref}^0\n".encode() if defaults else b""
        for name, content in files.items():
            mode = (modes or {}).get(name, "100644")
            if content is None:
                text += f"D {name}\n".encode()
            elif mode == "160000":
                text += f"M 160000 {content.decode()} {name}\n".encode()
            else:
                text += f"M {mode} inline {name}\ndata {len(content)}\n".encode() + content + b"\n"
        git("fast-import", "--quiet", "--force", at=self.path, stdin=text)
        return git("rev-parse", ref, at=self.path)


def fresh_git(seconds: float = 60, **more_: str) -> Git:
    """Returns git with a deadline."""
    return Git(deadline=time.monotonic() + seconds, environment=more_)


def install_program(folder: Path, name: str, script: str) -> str:
    """Install a fake program. Returns a PATH on which it comes first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.defpath}"


def apply_patch(workspace: Workspace, patch: Path) -> None:
    """Apply the changes of one workspace to another."""
    # By Longshore's own repository, which converts no bytes.
    options = ("--index", "--binary", "--whitespace=nowarn")
    workspace._run("apply", *options, stdin=patch.read_bytes())


class WorkspaceMachine:
    """A folder with a cache, where attempts open workspaces."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "cache"
        self.progress: list[str] = []
        self._attempts = 0

    def open(
        self,
        url: str,
        ref: str | None = None,
        *,
        allow_local: bool = True,
        git: Git | None = None,
    ) -> Workspace:
        """Opens a workspace for a new attempt."""
        return Workspace.open(
            self.cache,
            url,
            ref,
            self.new_attempt_folder() / "workspace",
            git=git or fresh_git(),
            allow_local=allow_local,
            on_progress=self.progress.append,
        )

    def new_attempt_folder(self) -> Path:
        """Returns the folder of a new attempt."""
        self._attempts += 1
        return self.root / f"attempt-{self._attempts}"


def _basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@dataclass
class RequestGate:
    """Blocks the responses of a server for paths that contain ``part``."""

    part: str
    paths: list[str] = field(default_factory=list)
    reached: Event = field(default_factory=Event)
    opened: Event = field(default_factory=Event)

    def wait_if_matching(self, path: str) -> None:
        if self.part in path:
            self.paths.append(path)
            self.reached.set()
            self.opened.wait(60)


def patch_of(workspace: Workspace, artifacts: Path) -> Path | None:
    """Write the patch of all changes; returns its path, None without changes."""
    assert not workspace.write_patch(artifacts)
    patch = artifacts / PATCH_NAME
    return patch if patch.exists() else None


@contextmanager
def serve_repository(
    origin: Path,
    status: int = 200,
    gate: RequestGate | None = None,
    *,
    credentials: str | None = None,
) -> Iterator[str]:
    """Serve a repository over HTTP with git's own program, or respond with one status.

    With 301, every address redirects below ``/moved``.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if gate is not None:
                gate.wait_if_matching(self.path)
            if status == 0:
                self.connection.close()
                return
            if status == 301 and self.path.startswith("/moved/"):
                self.path = self.path.removeprefix("/moved")
                self._by_git()
            elif status != 200:
                self._refuse(status)
            elif credentials and self.headers.get("Authorization") != _basic(credentials):
                self._refuse(401)
            else:
                self._by_git()

        do_POST = do_GET  # noqa: N815 - what the server calls

        def _refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Location", f"/moved{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _by_git(self) -> None:
            path, _, query = self.path.partition("?")
            reported = {
                **_CLEAN,
                "GIT_PROJECT_ROOT": str(origin.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": self.headers.get("Content-Length", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(
                ["git", "http-backend"], env=reported, input=body, capture_output=True, check=True
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            # The client may have been killed meanwhile.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Discard the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{origin.name}"
    finally:
        if gate is not None:
            gate.opened.set()
        server.shutdown()
        thread.join()
        server.server_close()
