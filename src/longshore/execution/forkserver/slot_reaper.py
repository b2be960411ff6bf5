"""The reaper of a slot: forks the slot's children, one after another.

It holds the child's ends of the slot's pipes for as long as the worker uses the slot, and gives
them to each child. When a child has ended, it kills what is left of it, reports the end to the
worker, and forks the next child, which waits for a task. It is not involved in the tasks
themselves, but it knows from the slot's page whether one is running and until when the worker's
lease is trusted: it kills the child if that time passes, also if the worker is stopped. It ends
when the worker or the fork server has ended, after it has killed all its descendants.
"""

from __future__ import annotations

import contextlib
import gc
import os
import stat
from collections.abc import Mapping
from typing import Any, NoReturn

from longshore.execution.forkserver.child import set_thread_reset
from longshore.execution.forkserver.reaper import ReapedProcesses, Reaper
from longshore.execution.forkserver.slot_child import (
    FOLDER_MODE,
    SlotChild,
    SlotFiles,
    SlotSettings,
)
from longshore.execution.protocol import ChildStatus, KillCause
from longshore.execution.slot_page import SlotPage

# After a child that ended before it had begun anything, or if no child can be forked.
_FORK_INTERVAL_MS = 100


class SlotReaper(Reaper):
    """See the module. The files that it gets are ``SlotFiles`` and the page file."""

    def run(self, settings: Mapping[str, Any]) -> NoReturn:
        """Fork children until the worker or the fork server ends; never returns.

        Args:
            settings: The fields of ``SlotSettings``.
        """
        self._settings = SlotSettings(**settings)
        self._folder = self._settings.child_folder
        self._has_folder = False
        *child_files, page_file = self.child_files
        self._page = SlotPage(page_file, self._settings.page)
        os.close(page_file)
        self._child = SlotChild(
            self._settings, SlotFiles(*child_files), self._page, close_fds=self.own_fds
        )
        self.report(ChildStatus(ended=False, child_pid=os.getpid()), ReapedProcesses())
        set_thread_reset(enabled=False)
        # Everything that is there now stays: a collection would only make children copy pages.
        gc.freeze()
        generation = 0
        while True:
            generation += 1
            begun_count = self._page.begun_count
            failed = self._run_child(generation)
            if failed and self._page.begun_count == begun_count:
                self.wait(_FORK_INTERVAL_MS)

    def _run_child(self, generation: int) -> bool:
        """Fork a child, wait until nothing of it is left, and report that to the worker.

        Returns:
            Whether the child ended by itself, and not in order.
        """
        processes = ReapedProcesses(self._fork(generation))
        self._page.child_pid = processes.child_pid
        self.supervise(processes, generation)
        failed = bool(processes.wait_status)
        processes.kill_all(lambda: self._report_end(processes, generation))
        return failed

    def _report_end(self, processes: ReapedProcesses, generation: int) -> None:
        self._page.finish()
        self._page.child_pid = 0
        self._has_folder = not self._settings.keep_folders and self._folder_is_new()
        if not self._has_folder:
            # The next child must not find it; the worker looks for it under this name.
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._folder, f"{self._folder}.{generation}")
        self.report(processes.status(ended=True), processes)

    def _fork(self, generation: int) -> int:
        while True:
            try:
                if not self._has_folder:
                    os.mkdir(self._folder, FOLDER_MODE)
                    self._has_folder = True
                os.chdir(self._folder)
                return self.fork(lambda: self._child.run(generation))
            except OSError:
                self.wait(_FORK_INTERVAL_MS)

    def _folder_is_new(self) -> bool:
        """Whether the child has left its folder as it was, so that the next one can have it."""
        try:
            mode = os.stat(self._folder).st_mode
            return stat.S_IMODE(mode) == FOLDER_MODE and not os.listdir(self._folder)
        except OSError:
            return False

    @property
    def deadline_ns(self) -> int:  # type: ignore[override]
        return self._page.deadline_ns

    def kill_cause(self, processes: ReapedProcesses) -> KillCause:
        return KillCause.DEADLINE if self._page.running and self.is_late() else KillCause.NONE

    def clean_up(self) -> None:
        """Remove what the slot has left in the work folder, unless the worker does that."""
        self._page.finish()
        self._page.child_pid = 0
        if not self.worker_has_ended:
            return
        # What the child has left here must not be imported instead.
        os.chdir("/")
        # Imported only now: the larger this process, the more a fork costs.
        import shutil

        name = os.path.basename(self._folder)
        try:
            entries = list(os.scandir(self._settings.work_folder))
        except FileNotFoundError:
            entries = []  # the worker's folder was removed as a whole
        for entry in entries:
            if entry.name.partition(".")[0] == name and not self._settings.keep_folders:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
