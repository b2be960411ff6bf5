"""How the code is divided: size, small modules, folders and class names.

A module is one idea that a reader would look for. Three habits hide ideas: modules that are too
small to have one and that only one other module imports, folders with too many modules to choose
from, and one class name for two things. `modules.toml` has the limits; its numbers only go down.
`python -m tests.architecture.test_modules` prints everything that is over a limit.
"""

import ast
import functools
import sys
import tomllib
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.architecture.code_lines import PACKAGE, ROOT, code_lines, product_modules

LIMITS = Path(__file__).with_name("modules.toml")
VERIFICATION = ROOT / "verification"
SMALL_LINES = 80
MAX_MODULES_IN_FOLDER = 20
# These are started or found by their name, so no import shows their use.
_ENTRIES = {"__init__", "__main__"}


@functools.cache
def limits() -> dict[str, Any]:
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


def small_modules_with_one_importer(package: Path, modules: list[Path]) -> list[str]:
    """Modules under `SMALL_LINES` lines that exactly one other module of the package imports."""
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        for target in _imported_modules(package, path):
            if target != path:
                importers[target].add(path)
    return [
        path.relative_to(package).as_posix()
        for path in modules
        if path.stem not in _ENTRIES
        and len(importers[path]) == 1
        and len(path.read_text(encoding="utf-8").splitlines()) < SMALL_LINES
    ]


def _imported_modules(package: Path, path: Path) -> set[Path]:
    targets: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                targets.update(alias.name for alias in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                targets.add(module)
                targets.update(f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if text.startswith(f"{package.name}."):
                # Modules that are imported by their name when they are first used.
                targets.add(text.partition(":")[0])
    files = (package.parent / f"{target.replace('.', '/')}.py" for target in targets)
    return {file for file in files if file.is_file()}


def modules_by_folder(*packages: Path) -> dict[str, int]:
    """How many modules each folder of the packages holds, without the modules below its folders."""
    return {
        folder.relative_to(package.parent).as_posix(): len(
            [path for path in folder.glob("*.py") if path.stem not in _ENTRIES]
        )
        for package in packages
        for folder in (package, *package.rglob("*"))
        if folder.is_dir() and folder.name != "__pycache__"
    }


def duplicate_class_names(modules: list[Path]) -> dict[str, list[Path]]:
    """Names that more than one module gives to a class at its top level, with those modules."""
    names: dict[str, list[Path]] = defaultdict(list)
    for path in modules:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names[node.name].append(path)
    return {name: paths for name, paths in names.items() if len(paths) > 1}


def product_code_lines() -> int:
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in product_modules())


def test_the_product_does_not_grow() -> None:
    assert product_code_lines() <= limits()["code_lines"]
    assert len(product_modules()) <= limits()["modules"]


def test_small_modules_have_several_importers() -> None:
    allowed = limits()["allowed"]["small_modules"]
    small = small_modules_with_one_importer(PACKAGE, product_modules())

    remaining = [
        path for path in small if not any(fnmatchcase(path, pattern) for pattern in allowed)
    ]

    assert len(remaining) <= limits()["small_modules"], "\n".join(remaining)
    assert all(allowed.values())


def test_no_folder_holds_too_many_modules() -> None:
    allowed = limits()["allowed"]["folders"]
    counts = modules_by_folder(PACKAGE, VERIFICATION)

    assert {
        folder: count
        for folder, count in counts.items()
        if count > allowed.get(folder, {}).get("modules", MAX_MODULES_IN_FOLDER)
    } == {}
    assert all(entry["reason"] for entry in allowed.values())


def test_a_class_name_means_one_thing() -> None:
    allowed = limits()["allowed"]["duplicate_classes"]

    remaining = [name for name in duplicate_class_names(product_modules()) if name not in allowed]

    assert len(remaining) <= limits()["duplicate_classes"], "\n".join(remaining)
    assert all(allowed.values())


def _write(root: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return [root / name for name in files]


def test_a_small_module_is_reported_only_if_a_single_module_imports_it(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    modules = _write(
        package,
        {
            "__init__.py": "",
            "lonely.py": "X = 1\n",
            "lonely_by_name.py": "X = 1\n",
            "shared.py": "X = 1\n",
            "long.py": "X = 1\n" * SMALL_LINES,
            "unused.py": "from shop.lonely import X\nfrom shop import shared, long\n",
            "main.py": "import shop.shared\nLATER = 'shop.lonely_by_name:X'\n",
        },
    )

    small = small_modules_with_one_importer(package, modules)

    assert small == ["lonely.py", "lonely_by_name.py"]


def test_modules_are_counted_in_their_own_folder_only(tmp_path: Path) -> None:
    _write(tmp_path / "shop", {"__init__.py": "", "a.py": "", "b.py": "", "sub/c.py": ""})

    assert modules_by_folder(tmp_path / "shop") == {"shop": 2, "shop/sub": 1}


def test_a_class_name_that_two_modules_define_is_reported(tmp_path: Path) -> None:
    modules = _write(
        tmp_path,
        {
            "a.py": "class Reader:\n    class Inner: ...\n",
            "b.py": "class Reader: ...\nclass Inner: ...\n",
        },
    )

    assert duplicate_class_names(modules) == {"Reader": modules}


def main() -> None:
    """Print what is over a limit, and the figures."""
    product = product_modules()
    small = small_modules_with_one_importer(PACKAGE, product)
    folders = Counter(modules_by_folder(PACKAGE, VERIFICATION))
    duplicates = duplicate_class_names(product)
    for path in small:
        sys.stdout.write(f"small module with one importer: {path}\n")
    for name, paths in sorted(duplicates.items()):
        where = ", ".join(path.relative_to(PACKAGE).as_posix() for path in paths)
        sys.stdout.write(f"class name of several classes: {name} ({where})\n")
    for folder, count in folders.most_common():
        if count > MAX_MODULES_IN_FOLDER:
            sys.stdout.write(f"folder with {count} modules: {folder}\n")
    sys.stdout.write(
        f"{product_code_lines()} code lines in {len(product)} modules, {len(small)} small modules,"
        f" {len(duplicates)} duplicate class names\n"
    )


if __name__ == "__main__":
    main()
