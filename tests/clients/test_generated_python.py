"""A client that openapi-python-client generates from the document: type-checked, and used on the running service."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given

from tests.api.odd_messages import legal_messages
from tests.clients.conftest import KEY
from tests.clients.documented import DOCS, DOCUMENTED_URL, documented, said_twice
from tests.upstream import Answer

PROGRAM = Path(__file__).parent / "programs" / "generated.py"
# What the generator writes itself, the same for any document, is not strict in one module.
MYPY_INI = "[mypy]\nstrict = true\n[mypy-turnkeeper_client.client]\nignore_errors = true\n"
SCRIPTS = Path(sys.executable).parent


def run(*command, folder, **variables):
    # The generator formats with the ruff that it finds.
    environment = {**os.environ, **variables, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def generated(memory, tmp_path_factory):
    """The folder with the client and the programs, and what the generator said."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "docs").symlink_to(DOCS)
    _, *command = documented("sh", 0).replace(DOCUMENTED_URL, memory.url.removesuffix("/v1")).split()
    done = run(*command, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "program.py").write_text(PROGRAM.read_text())
    (folder / "documented.py").write_text(documented("python", 0))
    return folder, done.stderr


@pytest.fixture(scope="module")
def program(generated):
    folder, _ = generated
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("program")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.split(".")[0] in {"program", "turnkeeper_client"}]:
            del sys.modules[name]


@pytest.fixture
def client(program, memory):
    with program.connect(memory.url.removesuffix("/v1"), KEY) as made:
        yield made


def test_every_operation_is_generated(generated, memory):
    folder, said = generated
    operations = memory.http.get("/openapi.json").json()["paths"].values()
    names = {operation["operationId"] for methods in operations for operation in methods.values()}
    assert {path.stem for path in folder.glob("turnkeeper_client/api/*/*.py")} - {"__init__"} == names
    # A file may be sent as text/plain too; the generator takes the other type, application/octet-stream.
    warnings = [line for line in said.splitlines() if line.startswith(("WARNING", "Unsupported", "Cannot"))]
    assert warnings == [
        "WARNING parsing PUT /v1/memories/{store}/file within memory.",
        "Unsupported content type text/plain",
    ]


def test_client_and_program_are_typed(generated):
    folder, _ = generated
    (folder / "mypy.ini").write_text(MYPY_INI)
    checked = run(sys.executable, "-m", "mypy", "turnkeeper_client", "program.py", "documented.py", folder=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_session_is_created(program, client, session):
    made = program.create(client, session)
    assert (made.id, made.user_id, made.event_version) == (session, "ada", 0)


def test_messages_go_through_it_as_they_are(program, client, memory, session):
    appended = program.append(client, session)
    assert appended.appended == len(program.MESSAGES)
    assert [event["message"] for event in memory.log(session)] == program.MESSAGES
    assert [event.message.to_dict() for event in appended.events] == program.MESSAGES


@given(legal_messages)
def test_any_message_goes_through_it_as_it_is(program, message):
    body = {"events": [{"message": message, "metadata": {}, "synthetic": False}]}
    assert program.AppendRequest.from_dict(body).to_dict() == body


def test_windows_are_read_as_events_and_as_a_prompt(program, client, session):
    program.append(client, session)
    assert [event.message.to_dict() for event in program.window(client, session).events] == program.MESSAGES
    context = program.context(client, session)
    assert [message.to_dict() for message in context.messages] == program.MESSAGES
    assert context.total_tokens == context.tokens


def test_a_word_is_found(program, client, session):
    program.append(client, session)
    found = program.search(client, session)
    assert [result.text for result in found.results] == ["We take PostgreSQL."]
    assert not found.has_more


def test_a_chat_is_answered(program, client, memory, script, session):
    script.reset(Answer(text="PostgreSQL."))
    assert program.ask(client, session).choices[0].message.content == "PostgreSQL."
    assert memory.said(session) == [("user", "What do we take?"), ("assistant", "PostgreSQL.")]


def test_a_memory_file_is_put_and_got(program, client, session):
    text = "We take PostgreSQL.\nÄ\r\n"
    assert program.remember(client, session, text).size == len(text.encode())
    assert program.recollect(client, session) == text


def test_an_archive_and_an_export_come_whole(program, client, session):
    program.remember(client, session, "PostgreSQL")
    (moved,) = program.move_archive(client, session, f"{session}-copy").items
    assert moved.path == "notes/db.md"
    assert "PostgreSQL" in program.export(client, session)


def test_errors_are_problems(program, client, memory, session):
    missing = program.missing(client, session)
    assert (missing.status, missing.type_) == (404, "urn:turnkeeper:problem:session-not-found")
    refused = program.refused(client, session)
    assert (refused.status, refused.errors[0].loc) == (422, ["body", "query"])


def test_the_documented_program_does_what_it_says(generated, memory):
    folder, _ = generated
    variables = {"TURNKEEPER": memory.url.removesuffix("/v1"), "KEY": KEY}
    said_twice(memory, lambda: run(sys.executable, "documented.py", folder=folder, **variables))
