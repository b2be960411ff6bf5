"""The users as which tasks run, if not as that of the worker: the setting ``worker.run_as``.

The worker, its fork server and the reapers keep their user, so that the reapers can kill every
process of a task, also one that has changed its user. A child changes to the user of its tenant
before it does anything for the task, and gives up all capabilities.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longshore.errors import UsageError
from longshore.execution.process_table import own_capabilities

FOLDER_MODE = 0o711
"""Of the folder that contains those of the attempts: tasks can pass it, and list nothing."""

_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUser:
    """A user as which tasks run."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str = ""  # empty: none that exists
    shell: str = ""

    def variables(self, folder: Path) -> dict[str, str]:
        """The variables that name the user; without a home, the attempt's folder is the home."""
        shell = {"SHELL": self.shell} if self.shell else {}
        return {"HOME": self.home or str(folder), "USER": self.name, "LOGNAME": self.name, **shell}

    def own(self, path: Path) -> None:
        """Give a file or folder, which no task can have replaced, to this user."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


# As a child does it: the check must not have more rights than a task.
_IMPORT_AS_USER = """
import os, sys
from longshore.execution.linux import become_user
uid, gid, *groups = map(int, sys.argv[1:])
become_user(uid, gid, groups)
os.execv(sys.executable, [sys.executable, "-c", "import longshore.execution.runners"])
"""
_IMPORT_TIMEOUT_S = 60


class TaskUsers:
    """The user of each tenant.

    Args:
        entries: ``USER`` for all tenants, ``TENANT=USER`` for one; a user by name or number.

    Raises:
        UsageError: there is no such user, it is not suitable, or this process may not change users.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        _check_privileges()
        _check_visibility()
        self._users: dict[str, TaskUser] = {}
        for entry in entries:
            tenant, _, name = entry.rpartition("=")
            self._users[tenant] = _find_user(name)

    def of(self, tenant: str) -> TaskUser:
        """Returns the user of a tenant.

        Raises:
            UsageError: there is none.
        """
        user = self._users.get(tenant) or self._users.get("")
        if user is None:
            raise UsageError(
                f"this worker has no user for tasks of the tenant {tenant!r}; add"
                f" {tenant}=USER to the setting worker.run_as"
            )
        return user

    def check_python(self, environment: Mapping[str, str]) -> None:
        """Check that tasks of every user can start Python and import this package.

        Raises:
            UsageError: those of a user cannot.
        """
        for user in dict.fromkeys(self._users.values()):
            ids = map(str, (user.uid, user.gid, *user.groups))
            try:
                ended = subprocess.run(
                    [sys.executable, "-c", _IMPORT_AS_USER, *ids],
                    cwd="/",
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_IMPORT_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                code, problem = 1, f"no answer within {_IMPORT_TIMEOUT_S} s"
            else:
                code, problem = ended.returncode, ended.stderr.strip().rpartition("\n")[2]
            if code:
                raise UsageError(
                    f"tasks of the user {user.name!r} cannot start {sys.executable} and import"
                    f" longshore ({problem or f'exit code {code}'}): install Python and longshore"
                    " in a folder that every user can read, such as /opt, not below a home folder;"
                    " or remove the setting worker.run_as"
                )

    def open_folder(self, folder: Path) -> None:
        """Create the folder that contains those of the attempts; every user must reach it.

        Raises:
            UsageError: a user cannot reach it, or it belongs to another user.
        """
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        about = os.lstat(folder)
        if about.st_uid != os.geteuid() or not os.path.isdir(folder) or folder.is_symlink():
            raise UsageError(f"{str(folder)!r}, for the folders of tasks, belongs to another user")
        # Explicitly, as the umask of a service is strict.
        os.chmod(folder, FOLDER_MODE)
        for user in self._users.values():
            for parent in folder.resolve().parents:
                if not _may_pass(user, parent):
                    raise UsageError(
                        f"tasks of the user {user.name!r} cannot reach their folders in"
                        f" {str(folder)!r}, as {str(parent)!r} is closed to them; choose another"
                        f" data folder, or allow it with `chmod o+x {parent}`"
                    )


def _check_privileges() -> None:
    owned = own_capabilities()["CapEff"] if sys.platform == "linux" else 0
    missing = [name for name, number in _CAPABILITIES.items() if not owned >> number & 1]
    if missing:
        raise UsageError(
            "worker.run_as needs a worker that may change users: start it as root, or with the"
            f" capabilities that it lacks ({' '.join(missing)}; in a systemd unit,"
            " AmbientCapabilities=), or remove the setting"
        )


def _check_visibility() -> None:
    # Mounted with `hidepid`, /proc hides from a reaper what it has to end.
    if not os.path.exists("/proc/1/stat"):
        raise UsageError(
            "worker.run_as needs a worker that sees the processes of other users in /proc, to end"
            " those of its tasks: start it as root, or mount /proc without `hidepid` (in a systemd"
            " unit, ProtectProc=default)"
        )


def _find_user(name: str) -> TaskUser:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        if not name.isdecimal():
            raise UsageError(
                f"worker.run_as: there is no user {name!r} on this machine; create it with"
                f" `useradd --system {name}`, or give a number"
            ) from None
        user = TaskUser(uid=int(name), gid=int(name), groups=(), name=name)
    else:
        # Not ``os.getgrouplist``: it always contains the primary group, which is no supplement.
        groups = (group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem)
        home = entry.pw_dir if os.path.isdir(entry.pw_dir) else ""
        user = TaskUser(
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            groups=tuple(sorted(set(groups))),
            name=entry.pw_name,
            home=home,
            shell=entry.pw_shell,
        )
    if 0 in (user.uid, user.gid) or user.uid == os.geteuid():
        message = f"worker.run_as: tasks must not run as {name!r}, which is root or the worker"
        raise UsageError(f"{message}; create a user for them")
    return user


def _may_pass(user: TaskUser, folder: Path) -> bool:
    about = os.stat(folder)
    if about.st_uid == user.uid:
        return bool(about.st_mode & 0o100)
    if about.st_gid in (user.gid, *user.groups):
        return bool(about.st_mode & 0o010)
    return bool(about.st_mode & 0o001)
