"""Each operation on a small source, and the error for an anchor that does not match one node."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from tests.planting import (
    After,
    Argument,
    Before,
    Change,
    Condition,
    Drop,
    NotPlanted,
    Operation,
    Operator,
    Replace,
    Swap,
    Text,
    Value,
    plant,
    undefined_names,
)


def _applied(source: str, do: Operation | tuple[Operation, ...], at: str = "m:") -> str:
    return Change(at, do).applied(dedent(source), fault="the fault")


def _check(before: str, do: Operation | tuple[Operation, ...], after: str, at: str = "m:") -> None:
    changed = _applied(before, do, at)
    assert ast.unparse(ast.parse(changed)) == ast.unparse(ast.parse(dedent(after))), changed


# Selectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "source"),
    [
        ("send()", "x.y.send(1) + sent(1)"),
        ("state", "row.state + rows"),
        ("limit", "limit + limits"),
        ("limit=", "f(limit=1) + limit"),
        ("'a b'", "f('a b', 'a')"),
        ("0", "x[0] + x[False]"),
        ("None", "f(None, 0)"),
        ("not in", "a not in b or a in b"),
        ("is not", "a is not b or a is b"),
        ("and", "a and b or c"),
        ("[]", "a[b] + c"),
        ("await", "f(await g(), h())"),
        ("ternary", "(a if b else c) + d"),
        ("comprehension", "f([a for a in b], [a])"),
        ("< b", "a < b or a < c"),
        ("f() 1", "f(0) + f(1)"),
    ],
)
def test_a_selector_finds_one_node(selector: str, source: str) -> None:
    assert _applied(source, Replace(selector, "found")).count("found") == 1


def test_words_of_a_statement_are_looked_for_before_its_body() -> None:
    _check("if a:\n    b()\nif b:\n    a()", Drop("if a"), "if b:\n    a()")


def test_nth_counts_from_one_in_the_order_of_the_source() -> None:
    _check("f(a) if f(b) else f(c)", Replace("f()", "x", nth=2), "f(a) if x else f(c)")


def test_a_symbol_is_a_function_a_method_an_inner_function_or_a_variable() -> None:
    source = """
        A = 1
        class B:
            C = 1
            def d(self):
                def e(): return 1
                return 2
        def d(): return 1
    """
    at = {"A": 2, "B.C": 4, "B.d.e": 6, "d": 8}
    for name, number in at.items():
        lines = _applied(source, Replace("1", "found"), f"m:{name}").splitlines()
        changed = [index for index, line in enumerate(lines, 1) if "found" in line]
        assert changed == [number]


def test_source_outside_the_change_stays_the_same() -> None:
    source = "# ä comment\nx = [ 'ä' , f( 1 ) ]  # one\ny  =  2\n"
    assert _applied(source, Replace("1", "3")) == source.replace("1", "3")


# Operations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        ("a()\nb()", "a()", "b()"),
        ("async def f():\n    await a()", "a()", "async def f():\n    pass"),
        ("x += 1\ny", "+=", "y"),
        (
            "try:\n    a\nexcept A:\n    b\nexcept B:\n    c",
            "except A",
            "try:\n    a\nexcept B:\n    c",
        ),
        ("@a\n@b\ndef f(): pass", "a", "@b\ndef f(): pass"),
        ("x = a and b and c", "b", "x = a and c"),
        ("x = a or b", "a", "x = b"),
        ("x = a + b - c", "b", "x = a - c"),
        ("x = [a, b]", "a", "x = [b]"),
        ("x = (a, b)", "b", "x = (a,)"),
        ("x = {'a': 1, 'b': 2}", "'a':", "x = {'b': 2}"),
        ("x = [a for a in b if c(a) if d]", "c()", "x = [a for a in b if d]"),
        ("x = any(a for a in b if c(a))", "c()", "x = any(a for a in b)"),
        (
            "match a:\n    case A.B | A.C | A.D:\n        pass",
            "C",
            "match a:\n    case A.B | A.D:\n        pass",
        ),
    ],
)
def test_drop(before: str, target: str, after: str) -> None:
    _check(before, Drop(target), after)


@pytest.mark.parametrize(
    ("before", "target", "new", "after"),
    [
        ("x = max(a, b)", "max()", "$2", "x = b"),
        ("x = a * b", "b", "$0 - 1", "x = a * (b - 1)"),
        ("x = a < b", "<", "$2 < $1", "x = b < a"),
        ("x = f(a for a in b)", "comprehension", "c", "x = f(c)"),
        ("x = f'{a(b)} and {c}'", "a()", "$1", "x = f'{b} and {c}'"),
        ("if a:\n    b()", "b()", "if c:\n    $0\nd", "if a:\n    if c:\n        b()\n    d"),
        ("x |= f()", "|=", "$1 = $2", "x = f()"),
        ("x = 1", "=", "pass", "pass"),
    ],
)
def test_replace(before: str, target: str, new: str, after: str) -> None:
    _check(before, Replace(target, new), after)


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        ("def f():\n    return a()", "return a()", "def f():\n    return new"),
        ("x = a()", "=", "x = new"),
        ("x += a()", "+=", "x += new"),
        ("f(a=1, b=2)", "b=", "f(a=1, b=new)"),
        ("x = {'a': 1, A.b: 2}", "b:", "x = {'a': 1, A.b: new}"),
        ("for a in b:\n    c", "for", "for a in new:\n    c"),
    ],
)
def test_value(before: str, target: str, after: str) -> None:
    _check(before, Value(target, "new"), after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if here() and a:\n    b", "if False:\n    b"),
        ("if a:\n    b\nelif here():\n    c", "if a:\n    b\nelif False:\n    c"),
        ("while here():\n    a", "while False:\n    a"),
        ("x = a if here() else b", "x = a if False else b"),
        ("x = [a for a in b if here()]", "x = [a for a in b if False]"),
        (
            "match a:\n    case b if here():\n        c",
            "match a:\n    case b if False:\n        c",
        ),
    ],
)
def test_condition(before: str, after: str) -> None:
    _check(before, Condition("here()", False), after)


def test_the_only_condition_needs_no_words() -> None:
    _check("while a < b:\n    c", Condition("", True), "while True:\n    c")


def test_a_condition_can_be_negated() -> None:
    _check("if a or b:\n    c", Condition("a", "not $0"), "if not (a or b):\n    c")


@pytest.mark.parametrize(
    ("before", "target", "new", "after"),
    [
        ("x = a < b", "<", "<=", "x = a <= b"),
        ("x = a is b", "is", "is not", "x = a is not b"),
        ("x = a in b", "in", "not in", "x = a not in b"),
        ("x = 0 < a <= b", "<=", "<", "x = 0 < a < b"),
        ("x = a and b", "and", "or", "x = a or b"),
        ("x = a / b", "/", "*", "x = a * b"),
        ("x += b", "+=", "-", "x -= b"),
    ],
)
def test_operator(before: str, target: str, new: str, after: str) -> None:
    _check(before, Operator(target, new), after)


def test_text() -> None:
    _check("x = ('SELECT a'\n  ' FROM b')", Text("a FROM", "c FROM"), "x = 'SELECT c FROM b'")
    _check("x = f'a {b} c'", Text("c", "it\\'s"), 'x = f"a {b} it\\\\\'s"')
    _check("x = f'a {b} c'", Text("{b} c", "d"), "x = f'a d'")


@pytest.mark.parametrize(
    ("which", "new", "after"),
    [
        (0, "x", "f(x, b, c=1)"),
        (1, "2 * $0", "f(a, 2 * b, c=1)"),
        (1, None, "f(a, c=1)"),
        (2, "x", "f(a, b, x, c=1)"),
        ("c", "x", "f(a, b, c=x)"),
        ("c", None, "f(a, b)"),
        ("d", "x", "f(a, b, c=1, d=x)"),
    ],
)
def test_argument(which: int | str, new: str | None, after: str) -> None:
    _check("f(a, b, c=1)", Argument("f()", which, new), after)


def test_before_and_after() -> None:
    source = "if a:\n    x = b(1)"
    _check(source, Before("b()", "c\nd($1)"), "if a:\n    c\n    d(1)\n    x = b(1)")
    _check(source, After("b()", "c\nd($1)"), "if a:\n    x = b(1)\n    c\n    d(1)")


def test_swap() -> None:
    _check("a()\nb()\nx = c()", Swap("c()", "a()"), "x = c()\nb()\na()")


def test_a_call_can_be_left_unawaited() -> None:
    before = "async def f():\n    await g()"
    _check(before, Replace("await g()", "$1"), "async def f():\n    g()")


def test_several_operations_are_applied_in_order() -> None:
    _check("a(1)\nb()", (Drop("b()"), Replace("1", "2")), "a(2)")


def test_a_name_that_nothing_defines_is_found_in_any_scope() -> None:
    source = """
        import os
        limit = 1
        class A:
            size = limit
            def f(self, a):
                def g(): return a, size, os.sep, len(a), [b for b in a], item
                return g, A, __file__
    """
    assert undefined_names(dedent(source)) == {"size", "item"}


def test_changes_are_written_into_a_copy_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "a" / "b.py").write_text("y = 1\n")
    changes = [Change("a:x", Value("=", "2")), Change("a.b:y", Value("=", "3"))]

    plant(changes, tmp_path, fault="the fault")

    assert (tmp_path / "a" / "__init__.py").read_text() == "x = 2\n"
    assert (tmp_path / "a" / "b.py").read_text() == "y = 3\n"


# Errors -------------------------------------------------------------------------------------------

_SOURCE = """
def f():
    a = g(1)
    return g(2) if a else h(3)
"""


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (Drop("k()"), "'k()' matches 0 nodes; candidates: none"),
        (
            Replace("g() 4", "x"),
            "'g() 4' matches 0 nodes; candidates:\n  line 3: g(1)\n  line 4: g",
        ),
        (Replace("g()", "x"), "'g()' matches 2 nodes; candidates:\n  line 3: g(1)\n  line 4: g(2)"),
        (Replace("g()", "x", nth=3), "'g()' matches 2 nodes (expected: number 3); candidates:"),
        (Condition("b", True), "'condition b' matches 0 nodes; candidates:\n  line 4: a"),
        (Text("b", "c"), "'b' matches 0 nodes"),
        (Drop("g.h"), "'g.h' is no word of a selector"),
        (Drop("a", nth=1), "cannot be dropped: line 3: a"),
        (Value("h()", "x"), "'h()' has no value"),
        (Argument("h()", "x", None), "'h()' has no argument 'x', only [0]"),
        (Argument("h()", 2, "x"), "'h()' has no argument 2, only [0]"),
    ],
)
def test_the_error_of_an_invalid_anchor_names_the_fault_and_the_candidates(
    do: Operation, message: str
) -> None:
    with pytest.raises(NotPlanted) as caught:
        _applied(_SOURCE, do, "m:f")

    assert str(caught.value).startswith(f"the fault: m:f: {message}")


def test_the_error_of_a_missing_symbol_names_the_existing_symbols() -> None:
    with pytest.raises(NotPlanted, match=r"^the fault: m:f.g: there is no 'g', only a$"):
        _applied(_SOURCE, Drop("a"), "m:f.g")
