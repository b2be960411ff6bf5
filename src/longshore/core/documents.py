"""Where a task's input, result and other documents are kept.

A row stays small, because every transition rewrites it: a document that is short stands in the row
itself, a longer one is written to the blob store *before* the commit that refers to it, so that a
row never points at nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

INLINE_LIMIT_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON document, either here (``text``) or in the blob store (``key``)."""

    text: str | None = None
    key: str | None = None
    size: int = 0  # bytes of the JSON text, wherever it is

    @property
    def inline(self) -> bool:
        """Whether the document stands here and needs no second read."""
        return self.text is not None
