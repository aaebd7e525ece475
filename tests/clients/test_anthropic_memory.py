"""The anthropic package for Python: its memory tool's commands, its tool runner, its types of definitions."""

import json
import re
import threading
from typing import get_args

import anthropic
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool
from anthropic.types.beta import (
    BetaMemoryTool20250818Command,
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818Param,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
    BetaToolParam,
)
from pydantic import TypeAdapter

from tests.clients.anthropic_api import MessagesApi

MODEL = "claude-scripted"
QUESTION = {"role": "user", "content": "Remember that I like tea."}


def view(path, view_range=None):
    ranged = {} if view_range is None else {"view_range": view_range}
    return BetaMemoryTool20250818ViewCommand(command="view", path=path, **ranged)


def create(path, text):
    return BetaMemoryTool20250818CreateCommand(command="create", path=path, file_text=text)


def str_replace(path, old, new):
    return BetaMemoryTool20250818StrReplaceCommand(command="str_replace", path=path, old_str=old, new_str=new)


def insert(path, after, text):
    return BetaMemoryTool20250818InsertCommand(command="insert", path=path, insert_line=after, insert_text=text)


def delete(path):
    return BetaMemoryTool20250818DeleteCommand(command="delete", path=path)


def rename(old, new):
    return BetaMemoryTool20250818RenameCommand(command="rename", old_path=old, new_path=new)


TEA = "/memories/user/tea.md"
FILES = {"user/tea.md": "Green.\nNo sugar.\nÉvening.\n", "todo.md": "Nothing.\n"}
TODO = {"todo.md": "Nothing.\n"}

# Each command, and what it makes of the files.
COMMANDS = {
    "view the root": (view("/memories"), FILES),
    "view a directory": (view("/memories/user"), FILES),
    "view a file": (view(TEA), FILES),
    "view lines": (view(TEA, [2, 3]), FILES),
    "view to the end": (view(TEA, [2, -1]), FILES),
    "create": (create("/memories/a/b.md", "Ünïcode\n"), {**FILES, "a/b.md": "Ünïcode\n"}),
    "create empty": (create("/memories/a.md", ""), {**FILES, "a.md": ""}),
    "str_replace": (str_replace(TEA, "Green", "Black"), {**TODO, "user/tea.md": "Black.\nNo sugar.\nÉvening.\n"}),
    "str_replace by nothing": (str_replace(TEA, "No sugar.\n", ""), {**TODO, "user/tea.md": "Green.\nÉvening.\n"}),
    "insert first": (insert("/memories/todo.md", 0, "Buy tea."), {**FILES, "todo.md": "Buy tea.\nNothing.\n"}),
    "insert last": (insert("/memories/todo.md", 1, "Buy tea.\n"), {**FILES, "todo.md": "Nothing.\nBuy tea.\n"}),
    "delete a file": (delete(TEA), TODO),
    "delete a directory": (delete("/memories/user"), TODO),
    "rename a file": (rename(TEA, "/memories/drinks/tea.md"), {**TODO, "drinks/tea.md": FILES["user/tea.md"]}),
    "rename a directory": (rename("/memories/user", "/memories/her"), {**TODO, "her/tea.md": FILES["user/tea.md"]}),
}
REFUSED = {
    "view nothing": view("/memories/none.md"),
    "create again": create(TEA, "x"),
    "str_replace in nothing": str_replace("/memories/none.md", "a", "b"),
    "str_replace what is not there": str_replace(TEA, "Coffee", "x"),
    "str_replace what is there twice": str_replace(TEA, ".\n", "x"),
    "insert into nothing": insert("/memories/none.md", 0, "x"),
    "insert beyond the end": insert(TEA, 4, "x"),
    "insert before the start": insert(TEA, -1, "x"),
    "delete nothing": delete("/memories/none.md"),
    "delete the root": delete("/memories"),
    "rename nothing": rename("/memories/none.md", "/memories/a.md"),
    "rename to what exists": rename(TEA, "/memories/todo.md"),
    "leave the root": view("/memories/../etc/passwd"),
}
DUMPS = {
    "to_json": lambda command: command.to_json(),
    "to_dict": lambda command: json.dumps(command.to_dict()),
    "all fields": lambda command: json.dumps(command.model_dump(mode="json")),
}

every_command = pytest.mark.parametrize(("command", "left"), COMMANDS.values(), ids=COMMANDS)
every_refusal = pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)


class Store:
    """A user's memory, by both of its doors."""

    def __init__(self, http, user: str, door: str) -> None:
        self.http = http
        self.files_url = f"/v1/memories/{user}"
        self.url = f"/v1/{door}/{user}/tools/memory"

    def call(self, arguments: str) -> dict:
        response = self.http.post(self.url, content=arguments, headers={"Content-Type": "application/json"})
        assert response.status_code == 200, response.text
        return response.json()

    def fill(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            self._file("PUT", path, content=text.encode())

    def files(self) -> dict[str, str]:
        listed = self.http.get(f"{self.files_url}/files").json()["items"]
        return {file["path"]: self._file("GET", file["path"]).text for file in listed}

    def _file(self, method: str, path: str, **body):
        response = self.http.request(method, f"{self.files_url}/file", params={"path": path}, **body)
        assert response.is_success, response.text
        return response


class ServiceMemory(BetaAbstractMemoryTool):
    """What a program writes to have its runner keep the memory in the service."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def run(self, command):
        answer = self.store.call(command.to_json())
        if answer["is_error"]:
            raise ToolError(answer["content"])
        return answer["content"]

    view = create = str_replace = insert = delete = rename = run


@pytest.fixture(params=["users", "sessions"])
def store(memory, session, request):
    """The memory of a user who has the test's session, whose id is the user's, too."""
    memory.http.post("/v1/sessions", json={"id": session, "user_id": session}).raise_for_status()
    return Store(memory.http, session, request.param)


@pytest.fixture
def local(tmp_path):
    """The SDK's own store, a folder."""
    return BetaLocalFilesystemMemoryTool(str(tmp_path))


@pytest.fixture(params=["six", "single"])
def served(memory, request):
    """The definitions of the tools for Anthropic's models, with the six memory tools or with the SDK's own."""
    return memory.http.get("/v1/tools", params={"format": "anthropic", "memory": request.param}).json()["tools"]


@pytest.fixture
def api():
    with MessagesApi() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(api):
    with anthropic.Anthropic(base_url=api.url, api_key="upstream-key", max_retries=0) as made:
        yield made


def run(client, tool):
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=[QUESTION], tools=[tool], thread=False
    )
    return runner.until_done()


def fill(local, files):
    for path, text in files.items():
        local.execute(create(f"/memories/{path}", text))


def files_of(local):
    files = (path for path in local.memory_root.rglob("*") if path.is_file())
    return {path.relative_to(local.memory_root).as_posix(): path.read_bytes().decode() for path in files}


def test_the_commands_here_are_all_that_the_sdk_knows():
    models = get_args(get_args(BetaMemoryTool20250818Command)[0])
    assert {type(command) for command, _ in COMMANDS.values()} == set(models)


@every_command
@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_a_command_is_taken_as_the_sdk_writes_it(store, command, left, dump):
    store.fill(FILES)
    answer = store.call(dump(command))
    assert not answer["is_error"], answer["content"]
    assert answer["content"]
    assert store.files() == left


@every_command
def test_what_a_command_leaves_is_what_the_sdks_own_store_has_then(local, command, left):
    fill(local, FILES)
    local.execute(command)
    assert files_of(local) == left


@every_refusal
def test_a_command_that_the_sdks_own_store_refuses_is_refused(store, local, command):
    store.fill(FILES)
    fill(local, FILES)
    with pytest.raises(ToolError):
        local.execute(command)
    answer = store.call(command.to_json())
    assert answer["is_error"]
    assert answer["content"].startswith("Error: ")
    assert store.files() == FILES


def test_a_view_shows_the_lines_that_the_sdks_own_store_shows(store, local):
    store.fill(FILES)
    fill(local, FILES)
    # That one counts an empty line behind the last newline.
    for lines in ([1, 1], [1, 3], [2, 3], [2, -1]):
        command = view(TEA, lines)
        shown = [line for line in local.execute(command).splitlines()[1:] if line.split("\t")[1]]
        assert store.call(command.to_json())["content"].splitlines()[3:] == shown


def test_a_view_of_the_root_names_every_file(store):
    store.fill(FILES)
    seen = store.call(view("/memories").to_json())["content"]
    assert "user/tea.md" in seen
    assert "todo.md" in seen


def test_the_served_definition_of_the_memory_tool_is_the_sdks(memory, store):
    served = memory.http.get("/v1/tools", params={"format": "anthropic", "memory": "single"}).json()["tools"]
    definition = [tool for tool in served if tool["name"] == "memory"]
    assert definition == [ServiceMemory(store).to_dict()]
    assert TypeAdapter(BetaMemoryTool20250818Param).validate_python(definition[0]) == definition[0]


def test_the_other_served_definitions_have_the_sdks_type(served):
    others = [tool for tool in served if tool["name"] != "memory"]
    assert len(others) in {2, 8}
    # What the type does not know is left out by the validation.
    assert TypeAdapter(list[BetaToolParam]).validate_python(others) == others


def test_the_sdks_tool_runner_keeps_a_memory_in_the_service(client, api, store):
    commands = [
        view("/memories"),
        create(TEA, "Green.\n"),
        create("/memories/draft.md", "x"),
        insert(TEA, 1, "No sugar."),
        str_replace(TEA, "Green", "Black"),
        view(TEA, [1, -1]),
        rename(TEA, "/memories/drinks.md"),
        delete("/memories/draft.md"),
    ]
    api.calls = [command.to_dict() for command in commands]
    assert run(client, ServiceMemory(store)).content[0].text == "Noted."
    assert store.files() == {"drinks.md": "Black.\nNo sugar.\n"}
    assert all(request["tools"] == [{"type": "memory_20250818", "name": "memory"}] for request in api.requests)
    results = api.results()
    assert [result["tool_use_id"] for result in results] == [f"toolu_{number}" for number in range(1, 9)]
    assert not any(result.get("is_error") for result in results)
    assert "1\tBlack.\n     2\tNo sugar." in results[5]["content"]


def test_the_sdks_tool_runner_tells_the_model_what_was_refused(client, api, store):
    store.fill(FILES)
    api.calls = [create(TEA, "x").to_dict(), delete(TEA).to_dict()]
    run(client, ServiceMemory(store))
    refused, done = api.results()
    assert refused["is_error"]
    assert "exists already" in refused["content"]
    assert not done.get("is_error")
    assert store.files() == TODO


def test_definitions_and_calls_go_through_the_client_unchanged(client, api, served, store):
    api.calls = [create(TEA, "Green.\n").to_dict()]
    message = client.beta.messages.create(model=MODEL, max_tokens=100, messages=[QUESTION], tools=served)
    assert api.requests[0]["tools"] == served
    assert not store.call(json.dumps(message.content[0].input))["is_error"]
    assert store.files() == {"user/tea.md": "Green.\n"}


def test_a_refusal_speaks_of_the_arguments_that_the_tool_has(store):
    store.fill(FILES)
    answers = [store.call(command.to_json())["content"] for command in [*REFUSED.values(), view(TEA, [9, 9])]]
    assert [answer for answer in answers if re.search("Memory[A-Z]|[a-z][A-Z]", answer)] == []


def test_a_path_that_an_answer_names_can_be_sent_back(store):
    created = store.call(create(TEA, "Green.\n").to_json())["content"]
    path = re.search(r"Created (\S+)", created)[1]
    assert "Green." in store.call(view(path).to_json())["content"]
