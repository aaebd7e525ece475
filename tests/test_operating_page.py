"""docs/operating.md says what there is."""

import re
from pathlib import Path

from app.api.rate_limits import UNLIMITED_PATHS
from app.config import setting_names
from app.metrics import Metrics

PAGE = (Path(__file__).parents[1] / "docs" / "operating.md").read_text()


def figures_table():
    rows = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} "
        f"| {', '.join(f'`{label}`' for label in collector._labelnames)} | {family.documentation} |"
        for collector in Metrics().registry._collector_to_names
        for family in collector.collect()
    ]
    return "\n".join(["| metric | type | labels | |", "|---|---|---|---|", *rows])


def test_every_metric_is_in_the_table_as_it_is():
    assert figures_table() in PAGE, f"put this table into docs/operating.md:\n{figures_table()}"


def test_no_metric_is_named_that_there_is_not():
    there = set(re.findall(r"`(turnkeeper_\w+)`", figures_table()))
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bturnkeeper_\w+", PAGE)}
    assert named <= there | {"turnkeeper_restored"}


def test_every_setting_that_is_named_is_one():
    assert set(re.findall(r"`(TURNKEEPER_\w+)`", PAGE)) <= set(setting_names())


def test_the_paths_without_a_limit_are_named():
    assert all(f"`{path}`" in PAGE for path in UNLIMITED_PATHS)
