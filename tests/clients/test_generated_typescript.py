"""Types that openapi-typescript generates from the document: compiled strictly, and used on the running service."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import KEY
from tests.clients.documented import DOCUMENTED_URL, documented, said_twice
from tests.upstream import Answer

PROGRAM = Path(__file__).parent / "programs" / "generated.ts"
TSCONFIG = {
    "compilerOptions": {
        "strict": True,
        "noEmitOnError": True,
        "noUncheckedIndexedAccess": True,
        "target": "es2022",
        "module": "nodenext",
        "types": ["node"],
        "skipLibCheck": True,
    },
    "files": ["turnkeeper.ts", "generated.ts", "documented.ts"],
}
MESSAGES = [
    {"role": "user", "content": "We take PostgreSQL."},
    {"role": "assistant", "content": "Noted.", "refusal": None, "reasoning": ["kept", "too"]},
]


def run(*command, folder, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def compiled(memory, packages, tmp_path_factory):
    """The folder with the types and the program, compiled to JavaScript."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "node_modules").symlink_to(packages / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps(TSCONFIG))
    shutil.copy(PROGRAM, folder)
    (folder / "documented.ts").write_text(documented("ts", 0))
    command = documented("sh", 1).replace(DOCUMENTED_URL, memory.url.removesuffix("/v1"))
    generated = run(
        *command.replace("npx openapi-typescript@7", "node_modules/.bin/openapi-typescript").split(), folder=folder
    )
    assert generated.returncode == 0, generated.stdout + generated.stderr
    checked = run("node_modules/.bin/tsc", "--strict", folder=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return folder


@pytest.fixture
def told(compiled, memory, session):
    """What a program of the name tells."""

    def tell(name, messages=()):
        variables = {"BASE_URL": memory.url.removesuffix("/v1"), "API_KEY": KEY, "SESSION": session}
        done = run("node", "generated.js", name, folder=compiled, **variables, MESSAGES=json.dumps(messages))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return tell


def test_a_use_that_the_document_does_not_allow_does_not_compile(compiled):
    wrong = (compiled / "generated.ts").read_text().replace('user_id: "ada" } }', "user_id: 7 } }")
    (compiled / "wrong.ts").write_text(wrong)
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--skipLibCheck"]
    checked = run("node_modules/.bin/tsc", *options, "wrong.ts", folder=compiled)
    assert checked.returncode != 0
    assert "Type 'number' is not assignable to type 'string'" in checked.stdout


def test_a_session_is_created(told, session):
    made = told("create")
    assert (made["id"], made["user_id"], made["event_version"]) == (session, "ada", 0)


def test_messages_go_through_it_as_they_are(told, memory, session):
    assert told("append", MESSAGES)["appended"] == len(MESSAGES)
    assert [event["message"] for event in memory.log(session)] == MESSAGES
    assert told("context") == MESSAGES


def test_windows_and_searches_find_what_was_said(told):
    told("append", MESSAGES)
    assert told("window") == ["We take PostgreSQL.", "Noted."]
    assert told("search") == ["We take PostgreSQL."]


def test_a_chat_is_answered(told, script, memory, session):
    script.reset(Answer(text="PostgreSQL."))
    assert told("chat") == ["PostgreSQL."]
    assert memory.said(session) == [("user", "What do we take?"), ("assistant", "PostgreSQL.")]


def test_a_chat_is_streamed(told, script):
    script.reset(Answer(text="PostgreSQL."))
    assert told("stream") == "PostgreSQL."


def test_a_memory_file_is_put_and_got(told):
    assert told("memory") == {"size": 20, "content": "We take PostgreSQL.\n"}


def test_errors_are_problems(told):
    missing, refused = told("missing"), told("refused")
    assert (missing["status"], missing["type"]) == (404, "urn:turnkeeper:problem:session-not-found")
    assert (refused["status"], refused["errors"][0]["loc"]) == (422, ["body", "query"])


def test_the_documented_program_does_what_it_says(compiled, memory):
    variables = {"TURNKEEPER": memory.url.removesuffix("/v1"), "KEY": KEY}
    said_twice(memory, lambda: run("node", "documented.js", folder=compiled, **variables))
