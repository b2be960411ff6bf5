"""What is left of an agent's conversations in its folder when it has ended.

The agent's command line writes each line into a file before anybody hears of it. So what a child
that was killed had not said yet is there to be read, and need not be asked and paid for again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from longshore.core.agents.transcripts import mark_of, new_lines
from longshore.core.child_places import AGENT_FOLDER
from longshore.ports.runner import Conversed, Session

_LARGEST_BYTES = 256 * 1024 * 1024


class Transcripts:
    """Knows what has been said of each conversation, in this attempt or before."""

    def __init__(self, earlier: Mapping[str, Session]) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)
        for name, session in earlier.items():
            self._known[name] = {mark_of(entry) for entry in (*session.before, *session.entries)}

    def note(self, conversed: Conversed) -> None:
        """This has been said."""
        self._known[conversed.session] |= {mark_of(entry) for entry in conversed.entries}

    def left_in(self, folder: Path) -> list[Conversed]:
        """What has not been said."""
        found = []
        for path in sorted((folder / AGENT_FOLDER).glob("**/projects/*/*.jsonl")):
            try:
                if path.is_symlink() or os.path.getsize(path) > _LARGEST_BYTES:
                    continue
                entries = list(new_lines(path.read_bytes(), self._known[path.stem]))
            except OSError:
                continue
            if entries:
                found.append(Conversed(path.stem, entries))
        return found
