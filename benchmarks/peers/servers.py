"""Private servers on loopback for the peers that need them, run by the current user.

A program is taken from a setting, from PATH, or from Debian's folders. PostgreSQL refuses to run as
root, so root starts it as another user.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.launcher import Launcher, MeasurementFailed, Process, wait_until

SYNC_CALLS = "fsync,fdatasync,sync_file_range,msync"
_READY_WITHIN_S = 120.0
_ENVIRONMENTS = Path(__file__).parents[2] / ".venv" / "peers"
# The user without privileges on Linux, if there is no user for PostgreSQL.
_UNPRIVILEGED_ID = 65534


class NotAvailable(Exception):
    """A server cannot be started here; the text is the reason."""


def find_program(name: str, setting: str, patterns: Iterable[str] = ()) -> str:
    """The path of a server's program.

    Raises:
        NotAvailable: it is neither in the folder of the setting, nor in PATH, nor in the patterns.
    """
    folders = [Path(os.environ[setting])] if setting in os.environ else []
    for pattern in patterns:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    path = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    if path is None:
        message = f"`{name}` was not found in PATH; {setting} can name its folder"
        raise NotAvailable(message)
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """A server with its data in a folder of its own."""

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM

    def __init__(self, launcher: Launcher, parent: Path) -> None:
        self._launcher = launcher
        self.folder = parent / self.name
        self.port = free_port()
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, trace: Path | None = None) -> None:
        """Start it with its data as it was left; with ``trace``, record its syncs."""
        self.folder.mkdir(exist_ok=True)
        self._process = self._launcher.start(
            self.command(),
            environment={**os.environ, "HOME": str(self.folder), **self.variables()},
            folder=self.folder,
            log=self.folder.parent / f"{self.name}.log",
            trace=trace,
            calls=SYNC_CALLS,
        )
        process = self._process
        wait_until(lambda: process.exit_code is not None or self.is_ready(), _READY_WITHIN_S, 0.05)
        if process.exit_code is not None or not self.is_ready():
            message = f"{self.name} did not start: {process.log_tail()}"
            raise MeasurementFailed(message)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(self.stop_signal)
            self._process = None

    def reset(self) -> None:
        """Remove all data; the default is to start again with an empty folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.start()

    def program(self) -> str:
        """The path of the server's program.

        Raises:
            NotAvailable: there is none.
        """
        raise NotImplementedError

    def command(self) -> list[str]:
        """The program with its arguments."""
        raise NotImplementedError

    def version(self) -> str:
        """The version number that the program prints."""
        command = [self.program(), "--version"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        match = re.search(r"\d+(\.\d+)+", ran.stdout)
        return match[0] if match else "unknown"

    def variables(self) -> dict[str, str]:
        """The environment of clients and workers."""
        return {}

    def is_ready(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def promises_sync(self) -> bool:
        """Whether the server is configured to sync before it answers."""
        return False

    def disk_bytes(self) -> int | None:
        """Size of the peer's data; None if it is not on disk."""
        return None


class Redis(Server):
    """Redis as it is by default: in memory, with occasional snapshots."""

    name = "redis"

    def program(self) -> str:
        return find_program("redis-server", "BENCH_REDIS_BIN")

    def command(self) -> list[str]:
        address = ["--port", str(self.port), "--bind", "127.0.0.1"]
        return [self.program(), *address, "--dir", str(self.folder)]

    def variables(self) -> dict[str, str]:
        url = f"redis://127.0.0.1:{self.port}"
        return {"BENCH_REDIS_URL": url, "RQ_REDIS_URL": url}

    def reset(self) -> None:
        if not self.is_running:
            super().reset()
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n")
            connection.recv(64)


class Postgres(Server):
    """PostgreSQL as it is by default, with ``synchronous_commit=on``."""

    name = "postgres"
    stop_signal = signal.SIGINT

    def program(self) -> str:
        return self._program("postgres")

    def _program(self, name: str) -> str:
        return find_program(name, "BENCH_POSTGRES_BIN", ["/usr/lib/postgresql/*/bin"])

    def command(self) -> list[str]:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        settings = [item for name, value in options.items() for item in ("-c", f"{name}={value}")]
        server = [self.program(), "-D", str(self.folder), "-p", str(self.port)]
        return [*_as_other_user(), *server, *settings]

    def start(self, trace: Path | None = None) -> None:
        if not (self.folder / "PG_VERSION").exists():
            self.folder.mkdir(exist_ok=True)
            if user := _other_user():
                self.folder.parent.chmod(0o711)
                shutil.chown(self.folder, user)
            initdb = [self._program("initdb"), "-A", "trust", "-U", "postgres", "-E", "UTF8"]
            command = [*_as_other_user(), *initdb, "--no-sync", "-D", str(self.folder)]
            subprocess.run(command, check=True, capture_output=True, cwd=self.folder)
        super().start(trace)

    def variables(self) -> dict[str, str]:
        return {"BENCH_POSTGRES_URL": f"postgresql://postgres@127.0.0.1:{self.port}/bench"}

    def is_ready(self) -> bool:
        return self._query("select 1", "postgres", check=False) == "1"

    def reset(self) -> None:
        if not self.is_running:
            self.start()
        self._query("drop database if exists bench with (force)", "postgres")
        self._query("create database bench", "postgres")
        self._query("checkpoint", "postgres")

    def promises_sync(self) -> bool:
        return self._query("show synchronous_commit") == "on" and self._query("show fsync") == "on"

    def disk_bytes(self) -> int | None:
        return int(self._query("select pg_database_size('bench')"))

    def _query(self, sql: str, database: str = "bench", *, check: bool = True) -> str:
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database]
        command = [self._program("psql"), "-X", "-qAt", *address, "-c", sql]
        ran = subprocess.run(command, capture_output=True, text=True, check=check)
        return ran.stdout.strip()


class Temporal(Server):
    """Temporal's development server with a SQLite file."""

    name = "temporal"

    def program(self) -> str:
        return find_program("temporal", "BENCH_TEMPORAL_BIN", [f"{_ENVIRONMENTS}/temporal/bin"])

    def command(self) -> list[str]:
        address = ["--ip", "127.0.0.1", "--port", str(self.port)]
        store = ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "error"]
        return [self.program(), "server", "start-dev", "--headless", *address, *store]

    def variables(self) -> dict[str, str]:
        return {"BENCH_TEMPORAL_ADDRESS": f"127.0.0.1:{self.port}"}


class Prefect(Server):
    """Prefect's server with a SQLite file."""

    name = "prefect"

    def program(self) -> str:
        return find_program("prefect", "BENCH_PREFECT_BIN", [f"{_ENVIRONMENTS}/prefect/bin"])

    def command(self) -> list[str]:
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [self.program(), "server", "start", *address]

    def variables(self) -> dict[str, str]:
        return {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_HOME": str(self.folder),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "DO_NOT_TRACK": "1",
        }


SERVERS: dict[str, type[Server]] = {
    server.name: server for server in (Redis, Postgres, Temporal, Prefect)
}


def _other_user() -> int | None:
    """The id of the user that runs PostgreSQL; None: the current one."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_uid
    except KeyError:
        return _UNPRIVILEGED_ID


def _as_other_user() -> list[str]:
    user = _other_user()
    return ["setpriv", f"--reuid={user}", "--clear-groups", "--"] if user else []
