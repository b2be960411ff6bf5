"""Counts as text."""


def plural(count: int, noun: str) -> str:
    """``1 task``, ``5 tasks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
