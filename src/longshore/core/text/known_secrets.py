"""Masks secrets whose values are known: those that an attempt was given.

``sanitise`` finds secrets by their form. Here the values themselves are searched for, so nothing
that looks ordinary is overlooked. A value is also found as it is written in JSON and in URLs, and
each long line of it alone. A task that encodes a value otherwise, or prints it in parts, is not
stopped.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from longshore.core.text.sanitise import CUT_SUFFIX, MASK

_MASK = MASK.encode()
_PART_BYTES = 64 * 1024
SECRET_MIN_CHARACTERS = 8
"""A shorter value would also be found where it is no secret."""


class KnownSecrets:
    """The secrets of one attempt."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value)}
        # The longest first: it may contain others.
        texts = sorted(forms, key=lambda form: (-len(form), form))
        self._text_pattern = re.compile("|".join(map(re.escape, texts)))
        data = [form.encode(errors="surrogateescape") for form in texts]
        self._data_pattern = re.compile(b"|".join(map(re.escape, data)))
        self._longest = max(map(len, data))
        self._by_first = defaultdict[int, list[bytes]](list)
        for form in data:
            self._by_first[form[0]].append(form)

    def mask(self, text: str) -> str:
        """Returns the text without the secrets, and without the beginning of one at a cut end."""
        text = self._text_pattern.sub(MASK, text)
        if text.endswith(CUT_SUFFIX):
            data = text.removesuffix(CUT_SUFFIX).encode(errors="surrogatepass")
            if (start := self._possible_start(data)) < len(data):
                text = data[:start].decode(errors="ignore") + MASK + CUT_SUFFIX
        return text

    def mask_json(self, value: Any) -> Any:
        """Returns a JSON value without the secrets; its lists and objects are changed in place."""
        whole = [value]
        waiting: list[Any] = [whole]
        while waiting:
            node = waiting.pop()
            items = list(node.items() if isinstance(node, dict) else enumerate(node))
            for key, item in items:
                if isinstance(item, str):
                    node[key] = self.mask(item)
                elif isinstance(item, dict | list):
                    waiting.append(item)
                if isinstance(key, str) and (masked := self.mask(key)) != key:
                    node[masked] = node.pop(key)
        return whole[0]

    def mask_part(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns a part of a stream without the secrets, and the rest of it.

        The rest may be the beginning of a secret; it must be put before the next part.
        """
        start = self._possible_start(data)
        for match in self._data_pattern.finditer(data):
            if match.end() > start:
                start = min(start, match.start())
                break
        return self._data_pattern.sub(_MASK, data[:start]), data[start:]

    def mask_data(self, data: bytes | bytearray) -> bytes:
        """Returns long data without the secrets, in parts, so that other threads can run."""
        masked, rest = [], b""
        for start in range(0, len(data), _PART_BYTES):
            part, rest = self.mask_part(rest + data[start : start + _PART_BYTES])
            masked.append(part)
        return b"".join(masked) + self._data_pattern.sub(_MASK, rest)

    def mask_end(self, rest: bytes) -> bytes:
        """Returns the rest of a stream that has ended, without the secrets."""
        data = self._data_pattern.sub(_MASK, rest)
        start = self._possible_start(data)
        return data if len(data) - start < SECRET_MIN_CHARACTERS else data[:start] + _MASK

    def _possible_start(self, data: bytes) -> int:
        """Returns where the end of the data may be the beginning of a secret, or its length."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            end = data[start:]
            for form in self._by_first.get(data[start], ()):
                if len(end) < len(form) and form.startswith(end):
                    return start
        return len(data)


def _forms(value: str) -> set[str]:
    """Returns the texts in which a value may be written."""
    lines = value.splitlines()
    # A terminal writes each line end as two characters.
    plain = {value, "\r\n".join(lines), *lines}
    encoded = {json.dumps(text)[1:-1] for text in plain}
    encoded |= {json.dumps(text, ensure_ascii=False)[1:-1] for text in plain}
    quoted = {quote(text, safe="") for text in plain}
    return {form for form in plain | encoded | quoted if len(form) >= SECRET_MIN_CHARACTERS}
