"""The programs of examples/README.md, each as it stands: only the address, the key and the model are the test's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import KEY
from tests.upstream import Answer

pytest.importorskip("agents", reason="the group `examples` is not installed: ./run test does that")

EXAMPLES = Path(__file__).parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text()
PROGRAMS = dict(re.findall(r"^## ([\w ]+)\n.*?```python\n(.*?)```", README, re.MULTILINE | re.DOTALL))
(CONNECTION,) = re.findall(r"```python\n(from session_log .*?)```", README, re.DOTALL)

# What the page leaves to its reader: a model, before the program, and a use of what it defines, after it.
BEFORE = {
    "OpenAI Agents SDK": """
import agents
agents.set_default_openai_api("chat_completions")
agents.set_tracing_disabled(True)
""",
    "LangChain": """
from langchain_core.language_models import GenericFakeChatModel
model = GenericFakeChatModel(messages=iter(["Lisbon.", "To Lisbon, in May."]))
""",
    "Pydantic AI": """
from pydantic_ai.models.test import TestModel
model = TestModel(custom_output_text="To Lisbon, in May.")
""",
    "Google ADK": """
from google.adk.models import BaseLlm, LlmResponse
from google.genai.types import Content, Part
class Model(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=Content(role="model", parts=[Part(text="To Lisbon, in May.")]))
model = Model(model="scripted")
""",
}
AFTER = {
    "Pydantic AI": """
import asyncio
for text in ("I am planning a trip to Lisbon in May.", "Where?"):
    print(asyncio.run(ask(text)))
""",
    "Google ADK": """
for text in ("I am planning a trip to Lisbon in May.", "Where?"):
    message = Content(role="user", parts=[Part(text=text)])
    for event in runner.run(user_id="alice", session_id="trip", new_message=message):
        print(event.content.parts[0].text)
""",
}
SESSIONS = {"Google ADK": "travel:alice:trip"}


def test_every_adapter_has_its_program():
    assert PROGRAMS.keys() == BEFORE.keys()


@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_program_of_the_page_runs(framework, memory, script):
    session = SESSIONS.get(framework, "trip")
    memory.http.delete(f"/v1/sessions/{session}")
    script.reset(Answer(text="Lisbon."), Answer(text="To Lisbon, in May."))
    connection = CONNECTION.replace("http://127.0.0.1:8088", memory.url.removesuffix("/v1")).replace("your-key", KEY)
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "\n".join([BEFORE[framework], connection, PROGRAMS[framework], AFTER.get(framework, "")]),
        ],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES), "OPENAI_BASE_URL": script.url, "OPENAI_API_KEY": "unused"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "To Lisbon, in May."
    said = memory.said(session)
    assert [role for role, _ in said] == ["user", "assistant"] * 2
    assert said[0] == ("user", "I am planning a trip to Lisbon in May.")
