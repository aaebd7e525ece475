"""The commands and short programs of the documentation, run as they stand on a service without keys."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.process import service
from tests.upstream import MODELS, Answer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
# What the documentation has a reader start.
ADDRESS = "http://127.0.0.1:8088"


def blocks(language, beginning):
    """All that a page has of a language, in their order, as parameters of a test."""
    found = []
    for page in PAGES:
        code = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        if chosen := [block for block in code if block.startswith(beginning)]:
            found.append(pytest.param(chosen, id=page.name))
    assert found, "a page that shows how to call the service"
    return found


@pytest.fixture(scope="module")
def url(_script, shared_database_url):
    settings = {"upstream_url": _script.url, "upstream_model": MODELS[0]}
    with service(database_url=shared_database_url, **settings) as running:
        yield running.url()


@pytest.fixture(autouse=True)
def answering(script):
    script.reset(Answer(text="To Lisbon, in May."))


def run(command, url, code, cwd=None):
    command = [*command, code.replace(ADDRESS, url)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("commands", blocks("sh", "curl"))
def test_each_curl_command_is_answered(commands, url):
    for command in commands:
        answer = run(["sh", "-c"], url, command)
        for line in filter(None, answer.splitlines()):
            assert json.loads(line).get("status", 200) < 400, f"{command}\n{answer}"


@pytest.mark.parametrize("programs", blocks("python", "import openai"))
def test_each_short_program_prints_what_the_model_says(programs, url):
    for program in programs:
        assert "To Lisbon, in May." in run([sys.executable, "-c"], url, program)


@pytest.mark.parametrize("programs", blocks("ts", "import OpenAI"))
def test_each_program_in_typescript_does(programs, url, packages):
    """They use no types, so that node runs them as they stand."""
    for program in programs:
        command = ["node", "--input-type=module", "--eval"]
        assert "To Lisbon, in May." in run(command, url, program, cwd=packages)


def test_the_readme_shows_what_its_search_answers(url):
    """Of a user who said nothing in the other tests."""
    shown = re.findall(r"^```(python|sh|json)\n(.*?)^```", PAGES[0].read_text(), re.DOTALL | re.MULTILINE)
    program, search, answer = [code.replace("alice", "ada").replace("trip", "tour") for _, code in shown[-3:]]
    run([sys.executable, "-c"], url, program)
    assert without_ids(run(["sh", "-c"], url, search)) == without_ids(answer)


def without_ids(answer):
    [result] = json.loads(answer)["results"]
    return {**json.loads(answer), "results": [result | {"event_id": "", "timestamp": ""}]}
