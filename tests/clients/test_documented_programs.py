"""The programs of the documentation, taken from its pages and run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import KEY
from tests.prompt_rules import require_valid
from tests.upstream import MODELS, Answer

DOCS = Path(__file__).parents[2] / "docs"


def program_of(page):
    [found] = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture
def run(memory, script):
    """Run a program as a reader would; what it printed, a line each."""

    def run(page):
        environment = {
            **os.environ,
            "MEMORY_URL": memory.url,
            "MEMORY_KEY": KEY,
            "OPENAI_BASE_URL": script.url,
            "OPENAI_API_KEY": "sk-none",
            "MODEL": MODELS[0],
        }
        command = [sys.executable, "-c", program_of(page)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        for request in script.requests:
            require_valid(request)
        return done.stdout.splitlines()

    return run


def calling(name, arguments):
    return Answer(text=None, calls=[("call-1", name, arguments)])


def test_an_application_that_calls_its_model_itself(run, script, memory):
    script.reset(
        calling("MemoryCreate", '{"path": "food.md", "fileText": "Alice eats no fish.\\n"}'),
        Answer(text="Noted: no fish."),
        calling("conversation_search", '{"innerThought": "When?", "query": "lisbon"}'),
        Answer(text="On 5 May."),
    )
    assert run("own-calls.md") == ["Noted: no fish.", "On 5 May.", "archived 0 events (trigger)"]
    system, *conversation = script.requests[-1]["messages"]
    assert system["content"].startswith("You are a travel agent.\n\n")
    assert "MEMORY.md" in system["content"]
    assert "We fly to Lisbon on 5 May." in conversation[-1]["content"], "what the search found"
    assert [role for role, _ in memory.said("trip")] == ["user", "assistant", "tool", "assistant"] * 2
    assert memory.http.get("/v1/memories/alice/file?path=food.md").text == "Alice eats no fish.\n"


def test_a_client_of_mcp(run, memory):
    listed, saved = run("mcp.md")
    assert listed.startswith("['cross_session_search', 'MemoryView', ")
    assert saved == "Created tea.md (15 bytes)."
    assert memory.http.get("/v1/memories/alice/file?path=tea.md").text == "Without sugar.\n"


def test_an_agent_that_works_over_all_sessions_of_a_user(run, script, memory):
    for session, text in [("breakfast", "I take my tea without sugar."), ("office", "We moved to Porto.")]:
        said = {"user_id": "bob", "events": [{"message": {"role": "user", "content": text}}]}
        assert memory.http.post(f"/v1/sessions/{session}/events", json=said).status_code == 201
    script.reset(
        calling("cross_session_search", '{"innerThought": "Since when?", "query": "porto"}'),
        calling("MemoryCreate", '{"path": "home.md", "fileText": "Bob lives in Porto.\\n"}'),
        Answer(text="Added where Bob lives."),
    )
    assert run("background-agent.md") == ["Added where Bob lives.", "home.md, version 1"]
    task, _, found, *_ = script.requests[-1]["messages"][1:]
    assert "[breakfast] user: I take my tea without sugar.\n[office] user: We moved to Porto." in task["content"]
    assert '"sessionId":"office"' in found["content"].replace(" ", "")
    edited = memory.http.get("/v1/memories/bob/file/versions?path=home.md").json()["items"]
    assert [version["tool"] for version in edited] == ["MemoryCreate"]
