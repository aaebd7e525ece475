"""What docs/clients.md shows: its commands and its programs, as they stand."""

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTED_URL = "http://127.0.0.1:8088"


def documented(language, place):
    """A block of code of the page, by its place among those of its language."""
    page = (DOCS / "clients.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[place]


def said_twice(memory, run):
    """The programs say the same, once new and then known."""
    memory.http.delete("/v1/sessions/support-4711")
    for figures in ("1 new, 0 known", "0 new, 1 known"):
        done = run()
        assert done.returncode == 0, done.stderr
        told, messages = done.stdout.splitlines()
        assert told == figures
        assert ast.literal_eval(messages) == [{"role": "user", "content": "We take PostgreSQL."}]
