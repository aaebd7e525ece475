"""What the memory tools answer to calls that cannot be done: a sentence that says what to do next."""

import re

import pytest

from app.domain.memory_views import MAX_VIEW

FILES = {"notes/a.md": "one\ntwo\n", "b.md": ""}

# Nothing of these is a model's or a client's business.
INSIDE = re.compile(
    r"sql|asyncpg|postgres|SELECT|INSERT|relation|constraint|memory_(files|stores|versions)|transaction|Traceback|"
    r"Exception|Error:.*Error|\.py\b|site-packages|/(home|usr|var|tmp|work|root)\b|localhost|127\.0\.0\.1|0x[0-9a-f]{6}"
)

REFUSED = {
    "create a directory": (
        "MemoryCreate",
        {"path": "new/", "fileText": "x"},
        "name a file in it, such as new/notes.md",
    ),
    "create a file again": ("MemoryCreate", {"path": "b.md", "fileText": "x"}, "exists already as a file. View it"),
    "create where a directory is": (
        "MemoryCreate",
        {"path": "notes", "fileText": "x"},
        "exists already as a directory. Name a file in it, such as notes/notes.md",
    ),
    "create below a file": ("MemoryCreate", {"path": "b.md/c", "fileText": "x"}, "b.md is a file: nothing can be"),
    "create the root": ("MemoryCreate", {"path": "", "fileText": "x"}, "name a file or directory in it"),
    "create with an unseen character": (
        "MemoryCreate",
        {"path": "a\u202eb", "fileText": "x"},
        "U+202E: leave that out",
    ),
    "create with NUL": ("MemoryCreate", {"path": "x", "fileText": "a\0b"}, "a memory holds text. Leave it out"),
    "view nothing": ("MemoryView", {"path": "none"}, 'View the root (path "")'),
    "view below a file": ("MemoryView", {"path": "b.md/c"}, "b.md is a file. View that instead"),
    "view without a path": ("MemoryView", {}, 'path is missing: send the path, such as "notes.md"; "" is the root'),
    "view with a range misnamed": ("MemoryView", {"path": "b.md", "view_range": "1,2"}, "is called viewRange"),
    "view entries beyond": (
        "MemoryView",
        {"path": "", "viewRange": "9,9"},
        "/ has 3 entries. Send a start from 1 to 3",
    ),
    "replace in a directory": (
        "MemoryStrReplace",
        {"path": "notes", "oldStr": "a", "newStr": "b"},
        "notes is a directory. View it, and name a file in it",
    ),
    "replace without a new text": (
        "MemoryStrReplace",
        {"path": "notes/a.md", "oldStr": "one"},
        'newStr is missing: send what takes the place of the old text, or "" to delete that',
    ),
    "replace by null": (
        "MemoryStrReplace",
        {"path": "notes/a.md", "oldStr": "one", "newStr": None},
        "newStr is null: send",
    ),
    "replace with the new text misnamed": (
        "MemoryStrReplace",
        {"path": "notes/a.md", "oldStr": "one", "replacement": ""},
        "There is no argument replacement: what you sent as it is called newStr",
    ),
    "insert without a line": (
        "MemoryInsert",
        {"path": "notes/a.md", "insertText": "x"},
        "insertLine is missing. In notes/a.md, send a number from 0 (before the first line) to 2",
    ),
    "insert at no number": (
        "MemoryInsert",
        {"path": "notes/a.md", "insertText": "x", "insertLine": "end"},
        "insertLine is no whole number. In notes/a.md, send a number from 0",
    ),
    "insert beyond the end": (
        "MemoryInsert",
        {"path": "notes/a.md", "insertText": "x", "insertLine": 3},
        "Line 3 is outside of notes/a.md: send a number from 0 (before the first line) to 2",
    ),
    "insert nowhere in a directory": ("MemoryInsert", {"path": "notes", "insertText": "x"}, "notes is a directory"),
    "insert nowhere in nothing": ("MemoryInsert", {"path": "none", "insertText": "x"}, "does not exist"),
    "delete the root": ("MemoryDelete", {"path": "/"}, "name a file or directory in it"),
    "delete nothing": ("MemoryDelete", {"path": "none"}, "does not exist"),
    "rename a file to a directory": (
        "MemoryRename",
        {"oldPath": "b.md", "newPath": "notes/"},
        "name a file in it, such as notes/notes.md",
    ),
    "rename the root": ("MemoryRename", {"oldPath": "", "newPath": "x"}, "name what is in it"),
    "rename into itself": ("MemoryRename", {"oldPath": "notes", "newPath": "notes/x"}, "choose another path"),
    "rename onto another": ("MemoryRename", {"oldPath": "b.md", "newPath": "notes"}, "choose another path"),
    "rename with one path misnamed": ("MemoryRename", {"path": "b.md", "newPath": "c"}, "is called oldPath"),
    "no command": ("memory", {"path": "b.md"}, "command is missing: send what to do, such as view"),
    "an unknown command": ("memory", {"command": "append", "path": "b.md"}, "send one of view, create, str_replace"),
    "a command without its new text": (
        "memory",
        {"command": "str_replace", "path": "notes/a.md", "old_str": "one"},
        'new_str is missing: send what takes the place of the old text, or "" to delete that',
    ),
    "a command with an argument of the six tools": (
        "memory",
        {"command": "create", "path": "c.md", "fileText": "x"},
        "There is no argument fileText: what you sent as it is called file_text",
    ),
}


async def call(client, user, tool, arguments):
    response = await client.post(f"/v1/users/{user}/tools/{tool}", json=arguments)
    assert response.status_code == 200, response.text
    return response.json()


async def fill(client, user, files):
    for path, text in files.items():
        put = await client.put(f"/v1/memories/{user}/file", params={"path": path}, content=text.encode())
        assert put.status_code in {200, 201}, put.text


async def files_of(client, user):
    listed = (await client.get(f"/v1/memories/{user}/files")).json()["items"]
    return {
        file["path"]: (await client.get(f"/v1/memories/{user}/file", params={"path": file["path"]})).text
        for file in listed
    }


@pytest.mark.parametrize(("tool", "arguments", "told"), REFUSED.values(), ids=REFUSED)
async def test_a_call_that_cannot_be_done_is_told_what_to_do_and_changes_nothing(client, tool, arguments, told):
    await fill(client, "alice", FILES)
    answer = await call(client, "alice", tool, arguments)
    assert answer["is_error"]
    assert answer["content"].startswith("Error: ")
    assert told in answer["content"]
    assert not INSIDE.search(answer["content"].removeprefix("Error: "))
    assert await files_of(client, "alice") == FILES


EMPTY = {
    "MemoryView": {"path": "MEMORY.md"},
    "MemoryInsert": {"path": "MEMORY.md", "insertLine": 0, "insertText": "x"},
    "MemoryStrReplace": {"path": "MEMORY.md", "oldStr": "a", "newStr": "b"},
    "MemoryDelete": {"path": "notes"},
    "MemoryRename": {"oldPath": "a", "newPath": "b"},
}


@pytest.mark.parametrize(("tool", "arguments"), EMPTY.items(), ids=EMPTY)
async def test_in_an_empty_memory_there_is_nothing_to_look_for(shared_client, tool, arguments):
    """A model that reads its index first would look at the root next, in vain."""
    answer = await call(shared_client, "newcomer", tool, arguments)
    assert answer["content"].endswith("does not exist: nothing is saved yet. Create a file once there is a reason.")
    seen = await call(shared_client, "newcomer", "MemoryView", {"path": "/memories"})
    assert seen["content"] == "Contents of /:\n\n(Nothing is saved yet.)"


@pytest.mark.parametrize("tool", ["MemoryView", "memory", "cross_session_search"])
@pytest.mark.parametrize(
    "body", ["", "{", "[1]", '{"path": NaN}', '{"path": 1e99999999999999999999}', '{"path": "\\ud800"}']
)
async def test_a_model_that_sends_no_arguments_object_is_not_told_of_a_body(shared_client, tool, body):
    """In a chat it sent none."""
    response = await shared_client.post(f"/v1/users/newcomer/tools/{tool}", content=body)
    answer = response.json()
    assert answer["is_error"]
    assert "body" not in answer["content"].lower()
    assert "JSON object, such as {" in answer["content"]


async def test_a_file_with_crlf_is_edited_as_it_is_shown(client):
    await fill(client, "alice", {"a.md": "# Tea\r\n- green\r\n- black\r\n"})
    view = (await call(client, "alice", "MemoryView", {"path": "a.md"}))["content"]
    assert "\r" not in view
    edit = {"path": "a.md", "oldStr": "- green\n- black", "newStr": "- green\n- white\n- black"}
    assert not (await call(client, "alice", "MemoryStrReplace", edit))["is_error"]
    assert (await files_of(client, "alice"))["a.md"] == "# Tea\r\n- green\r\n- white\r\n- black\r\n"


async def test_paths_are_the_same_in_any_composition(client):
    await fill(client, "alice", {"caf\u00e9.md": "x"})
    seen = await call(client, "alice", "MemoryView", {"path": "cafe\u0301.md"})
    assert seen["content"].startswith("File: caf\u00e9.md")
    again = await call(client, "alice", "MemoryCreate", {"path": "cafe\u0301.md", "fileText": "y"})
    assert "exists already" in again["content"]


async def test_what_is_large_is_shown_in_parts(client):
    await fill(client, "alice", {"a.md": "word\n" * 50_000})
    for tool, arguments, named in (
        ("MemoryView", {"path": "a.md"}, {"viewRange": "9,12"}),
        ("memory", {"command": "view", "path": "a.md"}, {"view_range": [9, 12]}),
    ):
        first = (await call(client, "alice", tool, arguments))["content"]
        assert len(first) < MAX_VIEW + 500
        assert re.search(r"\(Lines \d+ to 50000 are not shown: view the range \d+,50000 to read on\.\)$", first)
        lines = (await call(client, "alice", tool, arguments | named))["content"]
        assert lines.split("\n")[1] == "Lines 9-12 of 50000"


async def test_entries_of_a_directory_can_be_read_on(client):
    await fill(client, "alice", {f"{letter}.md": letter for letter in "abcd"})
    seen = (await call(client, "alice", "MemoryView", {"path": "", "viewRange": "2,3"}))["content"]
    assert seen == "Contents of /:\n\n  b.md (1 bytes)\n  c.md (1 bytes)"


@pytest.mark.parametrize(
    ("method", "params", "status", "told"),
    [
        ("GET", {"path": "notes"}, 404, "notes is a directory"),
        ("GET", {"path": "none"}, 404, "none"),
        ("GET", {"path": "b.md/"}, 422, "name a file in it"),
        ("PUT", {"path": "notes/"}, 422, "name a file in it"),
        ("PUT", {"path": "notes"}, 422, "exists already as a directory"),
        ("PUT", {"path": "b.md/c"}, 422, "b.md is a file"),
        ("DELETE", {"path": ""}, 422, "name a file or directory in it"),
        ("DELETE", {"path": "none"}, 404, "none"),
    ],
)
async def test_a_program_is_told_as_well(client, method, params, status, told):
    await fill(client, "alice", FILES)
    response = await client.request(method, "/v1/memories/alice/file", params=params, content=b"x")
    assert response.status_code == status
    assert told in response.json()["detail"]
    assert not INSIDE.search(response.json()["detail"])


async def test_a_directory_may_be_deleted_with_a_slash_behind_it(client):
    await fill(client, "alice", FILES)
    assert (await client.delete("/v1/memories/alice/file", params={"path": "notes/"})).status_code == 204
    assert await files_of(client, "alice") == {"b.md": ""}


SIX = {"MemoryView", "MemoryCreate", "MemoryStrReplace", "MemoryInsert", "MemoryDelete", "MemoryRename"}


@pytest.mark.parametrize(
    ("asked", "names"), [({}, SIX), ({"memory": "six"}, SIX), ({"memory": "single"}, {"memory"})]
)
@pytest.mark.parametrize("scope", [{}, {"scope": "session"}, {"scope": "user"}], ids=str)
async def test_a_caller_gets_one_set_of_memory_tools(shared_client, asked, names, scope):
    tools = (await shared_client.get("/v1/tools", params={"format": "anthropic", **asked, **scope})).json()["tools"]
    assert {tool["name"] for tool in tools if not tool["name"].endswith("_search")} == names
    assert len(tools) == len(names) + (1 if scope else 2)


@pytest.mark.parametrize("shape", ["openai", "mcp"])
async def test_the_single_tool_is_there_for_anthropics_api_only(shared_client, shape):
    refused = await shared_client.get("/v1/tools", params={"format": shape, "memory": "single"})
    assert refused.status_code == 422
    assert "format=anthropic" in refused.text
    assert (await shared_client.get("/v1/tools", params={"format": "anthropic", "memory": "all"})).status_code == 422
