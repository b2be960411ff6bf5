"""Count code lines: not blank, not a comment, not a docstring.

``python -m tests.architecture.code_lines`` prints the figures for the product (``src/longshore``
without ``testing`` and ``audit``), for what else is shipped, and for the tests.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longshore"
NOT_PRODUCT = ("testing", "audit")

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """How many lines of a module hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            # A string as a statement documents what precedes it.
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines


def product_modules() -> list[Path]:
    """The modules of the product, in the order of their paths."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in NOT_PRODUCT
    ]


def _total(paths: list[Path]) -> int:
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)


def main() -> None:
    """Print the figures."""
    product = product_modules()
    rest = sorted(set(PACKAGE.rglob("*.py")) - set(product))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    for name, paths in (("product", product), ("testing and audit", rest), ("tests", tests)):
        sys.stdout.write(f"{name}: {_total(paths)} code lines in {len(paths)} modules\n")


if __name__ == "__main__":
    main()
