"""What Longshore is made of: a check of the licences of its packages, and a bill of materials.

``python deploy/packages.py licences`` fails if the licence of a locked package is not in the list.
``python deploy/packages.py sbom`` prints the packages that Longshore needs with all extras, as
CycloneDX JSON. Both read the lock and what is installed from it, and no network.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

LOCK = Path(__file__).parents[1] / "requirements-dev.txt"
PRODUCT = "longshore"

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC", "MIT"),
        *("MIT-0", "MPL-2.0", "PSF-2.0", "Python-2.0", "Zlib"),
    }
)
# What packages without an SPDX expression call their licence.
_SPDX_BY_NAME = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "modified bsd license": "BSD-3-Clause",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Licences that the metadata does not name, each read in the package itself.
_READ_BY_HAND = {
    "apsw": "Zlib",  # "any-OSI": its LICENSE is that of zlib
}
_LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)
_SEPARATORS = re.compile(r"[-_.]+")


def locked_packages() -> dict[str, str]:
    """The versions of the lock by name."""
    return dict(_LOCKED.findall(LOCK.read_text(encoding="utf-8")))


def licence_of(package: Distribution) -> str:
    """The licence as an SPDX expression; the package's own words if they are not known."""
    about = package.metadata
    if by_hand := _READ_BY_HAND.get(_normal(about["Name"])):
        return by_hand
    if expression := about.get("License-Expression"):
        return expression
    names = [
        entry.rpartition(" :: ")[2]
        for entry in about.get_all("Classifier") or []
        if entry.startswith("License ::") and not entry.endswith(("DFSG approved", "OSI Approved"))
    ]
    text = (about.get("License") or "").strip().partition("\n")[0]
    expressions = [_SPDX_BY_NAME.get(name.lower(), name) for name in names or [text]]
    return " OR ".join(expressions) or "unknown"


def is_allowed(expression: str) -> bool:
    """Whether the expression is met by allowed licences: of alternatives, one is enough."""
    parts = re.sub(r"[()]", " ", expression).split(" AND ")
    return all(any(choice.strip() in ALLOWED for choice in part.split(" OR ")) for part in parts)


def licence_problems() -> list[str]:
    """The locked packages whose licence is not allowed; those of other systems are left out."""
    problems = []
    for name in locked_packages():
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:
            continue
        if not is_allowed(licence):
            problems.append(
                f"{name}: the licence {licence!r} is not in the list of deploy/packages.py"
            )
    return problems


def bill_of_materials() -> dict[str, Any]:
    """The packages that the product needs with all extras, as a CycloneDX document.

    It is the same whenever and wherever it is made from the same packages.
    """
    needed, waiting = dict[str, set[str]](), [(PRODUCT, "agent"), (PRODUCT, "aws")]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        others = {other for other, _ in _requirements_of(name, extra)}
        needed[name] = needed.get(name, set()) | others
        new = set(_requirements_of(name, extra)) - seen
        seen |= new
        waiting += new
    locked = locked_packages()
    packages = {name: distribution(name) for name in sorted(needed)}
    stale = [
        f"{name} {package.version}"
        for name, package in packages.items()
        if name != PRODUCT and locked.get(name) != package.version
    ]
    if stale:
        raise SystemExit(f"not as locked: {', '.join(stale)}; run `make .venv/.installed-dev`")
    components = {name: _component(name, package) for name, package in packages.items()}
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**components.pop(PRODUCT), "type": "application"}},
        "components": list(components.values()),
        "dependencies": [
            {
                "ref": _url(name, packages[name]),
                "dependsOn": [_url(n, packages[n]) for n in sorted(others)],
            }
            for name, others in sorted(needed.items())
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def _requirements_of(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """What a package with an extra needs here, each with an extra of it or with none ("")."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            other = _normal(requirement.name)
            yield from ((other, item) for item in ("", *requirement.extras))


def _component(name: str, package: Distribution) -> dict[str, Any]:
    url = _url(name, package)
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": package.version,
        "licenses": [{"expression": licence_of(package)}],
        "purl": url,
    }


def _url(name: str, package: Distribution) -> str:
    return f"pkg:pypi/{name}@{package.version}"


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    match arguments:
        case ["licences"]:
            problems = licence_problems()
            print("\n".join(problems) or "All licences are allowed.")
            return 1 if problems else 0
        case ["sbom"]:
            print(json.dumps(bill_of_materials(), indent=2))
            return 0
    print("usage: python deploy/packages.py licences|sbom", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
