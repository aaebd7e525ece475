"""What the documentation says is what the code does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.error_catalogue import MEANINGS, errors_page, problem_types
from app.config import settings_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *ROOT.glob("*/README.md"), *DOCS.rglob("*.md")]


def test_the_settings_are_documented():
    assert settings_page() == (DOCS / "settings.md").read_text(), "run `make docs` and commit docs/settings.md"


def test_every_error_has_a_meaning():
    answered = {slug for _, slug in problem_types()}
    assert answered == MEANINGS.keys(), "say in app/api/error_catalogue.py what it means and what to do"


def test_the_errors_are_documented():
    assert errors_page() == (DOCS / "errors.md").read_text(), "run `make docs` and commit docs/errors.md"


def test_no_error_is_answered_that_is_in_no_table():
    written = {slug for file in (ROOT / "app").rglob("*.py") for slug in _slugs_in_calls(ast.parse(file.read_text()))}
    assert written <= MEANINGS.keys()


def _slugs_in_calls(tree: ast.AST) -> Iterator[str]:
    """The slugs that calls of `problem(scope, status, slug, …)` name as they are."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="problem"), args=[_, _, ast.Constant(value=slug), *_]):
                yield slug


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_statement_is_placed_on_one_shard_or_on_all():
    table = re.findall(r"^\| `(\w+)` \|(.*)\|$", (DOCS / "scaling.md").read_text(), re.MULTILINE)
    placed = {module: set(re.findall(r"`(\w+)`", cells)) for module, cells in table}
    for module in (ROOT / "app" / "storage").glob("*.py"):
        functions = {
            node.name for node in ast.parse(module.read_text()).body if isinstance(node, ast.AsyncFunctionDef)
        }
        public = {name for name in functions if not name.startswith("_")}
        if module.stem not in ("database", "fitness", "migrations") and not module.stem.startswith("memor"):
            assert public <= placed.get(module.stem, set()), f"say in docs/scaling.md where {module.stem} would run"
        assert placed.get(module.stem, set()) <= functions, module.stem


def test_each_failure_has_the_test_that_it_names():
    rows = re.findall(
        r"^\| (G\d+) \|.*\| `([\w/]+\.py)::(\w+)` \|$", (DOCS / "failures.md").read_text(), re.MULTILINE
    )
    assert [number for number, *_ in rows] == [f"G{number}" for number in range(1, len(rows) + 1)]
    assert len(rows) == len(re.findall(r"^\| G\d+ ", (DOCS / "failures.md").read_text(), re.MULTILINE))
    for number, file, name in rows:
        module = ast.parse((ROOT / "tests" / file).read_text())
        functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, number
