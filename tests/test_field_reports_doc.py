"""docs/field-tests.md: every row has its public reports, and every test that it names exists."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.peers import ROOT

TABLE_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$")
# The number that is read is the number that is opened.
REPORT = re.compile(r"\[(?:[\w.-]+ )?(\d+)\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\1\)")
TEST = re.compile(r"`(test_\w+\.py)((?:::\w+)+)`")

LINES = (ROOT / "docs" / "field-tests.md").read_text(encoding="utf-8").splitlines()
ROWS = [match.groups() for line in LINES if (match := TABLE_ROW.match(line))]


@functools.cache
def defined_tests(file: Path) -> frozenset[str]:
    """Names that pytest would collect: "function" and "Class::method"."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))


def test_rows_are_numbered_and_none_is_overlooked():
    assert [int(number) for number, *_ in ROWS] == list(range(1, len(ROWS) + 1))
    headings = LINES.count("| # | public reports | what went wrong there | tests |")
    assert headings > 1 and len(ROWS) == sum(line.startswith("|") for line in LINES) - 2 * headings


@pytest.mark.parametrize(("number", "reports", "fault", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_reports_and_tests_that_exist(number, reports, fault, tests):
    links = reports.split(", ")
    for link in links:
        assert REPORT.fullmatch(link), link
    assert fault.endswith(".")
    cells = tests.split(" ")
    for cell in cells:
        found = TEST.fullmatch(cell)
        assert found, cell
        assert found[2].removeprefix("::") in defined_tests(ROOT / "tests" / found[1]), cell
    assert len(set(links)) == len(links) and len(set(cells)) == len(cells)


def test_a_name_that_no_file_has_would_be_noticed():
    known = defined_tests(Path(__file__))
    assert "test_a_name_that_no_file_has_would_be_noticed" in known
    assert not known & {"defined_tests", "test_of_nothing"}
