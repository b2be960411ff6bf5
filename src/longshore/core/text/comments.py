"""What people say along with a wish (a reason, feedback): text that every store can keep."""

from __future__ import annotations


def comment_problem(text: str, *, limit: int) -> str | None:
    """What is wrong with it, to be put behind its name; None if nothing is."""
    if len(text) > limit:
        return f"must have at most {limit} characters, and this has {len(text)}"
    if not text.strip():
        return "must say something, and this is empty"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be valid Unicode, and this has a lone surrogate in it"
    return None
