"""Memory stores over HTTP, for models and programs, and in chats."""

import io
import json
import stat
import zipfile

import pytest

from app.config import Settings, SettingsError
from app.domain.memory_prompts import REMINDER
from app.importing.records import Origin
from app.importing.turnkeeper import parse
from app.main import create_app
from app.services.importing import Tally, import_records
from tests.api.chatting import chatting
from tests.conftest import database_at
from tests.upstream import Answer

FILE = "/v1/memories/alice/file"
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ORIGIN = Origin(stem="export", count_tokens=lambda _: 1)
LONG_TERM = {"long_term": True}


async def put(client, path, text, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.put(FILE, params={"path": path}, content=text.encode(), headers=names)


async def text_of(client, path):
    return (await client.get(FILE, params={"path": path})).text


async def test_a_file_is_written_read_and_deleted(client):
    created = await put(client, "notes/a.md", "é\n")
    assert (created.status_code, created.json()["size"]) == (201, 3)
    replaced = await put(client, "notes/a.md", "new")
    assert replaced.status_code == 200
    read = await client.get(FILE, params={"path": "/memories/notes/a.md"})
    assert (read.text, read.headers["content-type"]) == ("new", "text/plain; charset=utf-8")
    assert read.headers["ETag"] == replaced.headers["ETag"] != created.headers["ETag"]
    listed = (await client.get("/v1/memories/alice/files", params={"prefix": "notes"})).json()["items"]
    assert [file["path"] for file in listed] == ["notes/a.md"]
    assert (await client.delete(FILE, params={"path": "notes"})).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await client.request(method, FILE, params={"path": "notes/a.md"})).status_code == 404


async def test_conditions_are_honoured(client):
    etag = (await put(client, "a", "1", If_None_Match="*")).headers["ETag"]
    assert (await put(client, "a", "2", If_None_Match="*")).status_code == 412
    assert (await put(client, "a", "2", If_Match='"999"')).status_code == 412
    assert (await put(client, "a", "2", If_Match=etag)).status_code == 200
    assert (await client.delete(FILE, params={"path": "a"}, headers={"If-Match": etag})).status_code == 412
    assert await text_of(client, "a") == "2"


async def test_every_version_can_be_brought_back_until_it_is_purged(client):
    for text in ("one", "two"):
        await put(client, "a", text)
    await client.delete(FILE, params={"path": "a"})
    kept = (await client.get(f"{FILE}/versions", params={"path": "a"})).json()["items"]
    assert [(one["deleted"], one["size"], one["tool"]) for one in kept] == [
        (True, None, "delete"),
        (False, 3, "put"),
        (False, 3, "put"),
    ]
    for one, text in ((kept[2], "one"), (kept[1], "two")):
        restored = await client.post(f"{FILE}/restore", params={"path": "a"}, json={"version": one["version"]})
        assert restored.status_code == 200
        assert await text_of(client, "a") == text
    gone = await client.post(f"{FILE}/restore", params={"path": "a"}, json={"version": kept[0]["version"]})
    assert gone.status_code == 404
    assert (await client.delete(FILE, params={"path": "a", "purge": True})).status_code == 204
    assert (await client.get(f"{FILE}/versions", params={"path": "a"})).status_code == 404


async def test_only_so_many_versions_are_kept(database_url):
    async with chatting(database_url, memory_max_versions=3) as chats:
        for number in range(6):
            await put(chats.http, "a", str(number))
        kept = (await chats.http.get(f"{FILE}/versions", params={"path": "a"})).json()["items"]
        assert len(kept) == 3


@pytest.mark.parametrize(
    ("path", "body"), [("../x", b"x"), ("", b"x"), ("a", b"\xff"), ("a", b"a\0b"), ("a", b"x" * 300_000)]
)
async def test_bad_files_are_refused(client, path, body):
    response = await client.put(FILE, params={"path": path}, content=body)
    assert response.status_code == 422
    assert (await client.get("/v1/memories/alice/files")).json()["items"] == []


@pytest.mark.parametrize("store", ["shared:team", "bob"])
async def test_stores_are_apart(client, store):
    await put(client, "a", "alice's")
    assert (await client.get(f"/v1/memories/{store}/files")).json()["items"] == []


async def test_the_tools_of_a_session_are_those_of_its_owner(client):
    await client.post("/v1/sessions", json={"id": "s", "user_id": "alice"})
    created = await client.post("/v1/sessions/s/tools/MemoryCreate", json={"path": "a.md", "fileText": "x"})
    assert created.json() == {"content": "Created a.md (1 bytes).", "is_error": False}
    seen = await client.post("/v1/users/alice/tools/memory", json={"command": "view", "path": "/memories"})
    assert "a.md (1 bytes)" in seen.json()["content"]
    kept = (await client.get(f"{FILE}/versions", params={"path": "a.md"})).json()["items"]
    assert (kept[0]["tool"], kept[0]["session_id"]) == ("MemoryCreate", "s")
    for session in ("nobody's", "s"):
        tool = "MemoryView" if session != "s" else "MemoryNope"
        assert (await client.post(f"/v1/sessions/{session}/tools/{tool}", json={"path": ""})).status_code == 404


async def test_erasing_a_user_erases_the_memory(client):
    await put(client, "a", "x")
    erased = (await client.delete("/v1/users/alice")).json()
    assert erased["memory_files"] == 1
    assert (await client.get("/v1/memories/alice/files")).json()["items"] == []


def zipped(*entries, **files):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*entries, *files.items()]:
            archive.writestr(name, content)
    return target.getvalue()


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


async def test_a_store_goes_out_and_in_as_a_zip(client):
    await put(client, "a/é.md", "é\r\n")
    await put(client, "b.md", "b")
    archive = (await client.get("/v1/memories/alice/archive")).content
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert {name: opened.read(name).decode() for name in opened.namelist()} == {"a/é.md": "é\r\n", "b.md": "b"}
    await put(client, "c.md", "will go")
    replaced = await client.put("/v1/memories/alice/archive", content=archive)
    assert [file["path"] for file in replaced.json()["items"]] == ["a/é.md", "b.md"]
    kept = (await client.get(f"{FILE}/versions", params={"path": "c.md"})).json()["items"]
    assert [one["deleted"] for one in kept] == [True, False]


BAD_ARCHIVES = {
    "no zip": b"PK no",
    "a path out of it": zipped(("../x", "x")),
    "an absolute path": zipped(("/etc/x", "x")),
    "a link": zipped((link("x"), "/etc/passwd")),
    "another encoding": zipped(("x", b"\xe9")),
    "a file twice": zipped(("x", "1"), ("./x", "2")),
    "a file as a directory": zipped(("x", "1"), ("x/y", "2")),
    "a bomb": zipped(("x", b"a" * 300_000)),
    "many bombs": zipped(*((str(number), b"a" * 262_144) for number in range(65))),
}


@pytest.mark.parametrize("archive", BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
async def test_a_bad_archive_changes_nothing(client, archive):
    await put(client, "kept.md", "x")
    response = await client.put("/v1/memories/alice/archive", content=archive)
    assert response.status_code == 422
    assert [file["path"] for file in (await client.get("/v1/memories/alice/files")).json()["items"]] == ["kept.md"]


async def test_the_prompt_names_the_root_and_the_tools(client):
    got = (await client.get("/v1/memories/alice/prompt")).json()
    assert got["reminder"] is None
    assert "/memories/MEMORY.md" in got["prompt"]
    assert "{store}" not in got["prompt"]
    assert "alice" not in got["prompt"]
    for tool in ("MemoryView", "MemoryCreate", "MemoryStrReplace", "MemoryInsert", "MemoryDelete", "MemoryRename"):
        assert tool in got["prompt"]


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url) as chats:
        yield chats


def systems(request):
    return [message["content"] for message in request["messages"] if message["role"] == "system"]


@BOTH
async def test_a_model_saves_in_two_steps_and_finds_it_in_the_next_session(chats, stream):
    saved = {"path": "user/diet.md", "fileText": "Alice eats no meat.\n"}
    indexed = {"path": "MEMORY.md", "fileText": "- [diet](user/diet.md): what she eats\n"}
    chats.upstream.reset(
        Answer(calls=[("m1", "MemoryCreate", json.dumps(saved))]),
        Answer(calls=[("m2", "MemoryCreate", json.dumps(indexed))]),
        Answer("I will remember that."),
    )
    reply = await chats.say("I eat no meat.", session="first", user_id="alice", memory=LONG_TERM, stream=stream)
    assert reply["content"] == "I will remember that."
    assert await text_of(chats.http, "user/diet.md") == saved["fileText"]
    assert await text_of(chats.http, "MEMORY.md") == indexed["fileText"]
    chats.upstream.reset(
        Answer(
            calls=[("m3", "MemoryView", '{"path": "MEMORY.md"}'), ("m4", "MemoryView", '{"path": "user/diet.md"}')]
        ),
        Answer("Pasta, then."),
    )
    await chats.say("What shall I cook?", session="second", user_id="alice", memory=LONG_TERM, stream=stream)
    assert "user/diet.md" in chats.sent[-2]
    assert "Alice eats no meat." in chats.sent[-1]


async def test_the_prompt_is_appended_to_the_last_system_message_of_the_request(chats):
    await chats.http.post("/v1/sessions", json={"id": "s", "user_id": "alice", "allow_system_messages": True})
    await chats.store("s: Stored.")
    await chats.say("s: One.", "s: Two.", "q", memory=LONG_TERM)
    stored, one, two = systems(chats.upstream.requests[-1])
    assert (stored, one) == ("Stored.", "One.")
    assert two.startswith("Two.\n\n# Long-term memory")
    await chats.say("q2", memory=LONG_TERM)
    stored, prompt = systems(chats.upstream.requests[-1])
    assert (stored, prompt[:18]) == ("Stored.", "# Long-term memory")
    await chats.say("s: Stored.", "q3", memory=LONG_TERM)
    assert systems(chats.upstream.requests[-1])[0] == "Stored."
    names = [tool["function"]["name"] for tool in chats.upstream.requests[-1]["tools"]]
    assert len(names) == len(set(names)) == 6


async def test_r9_prompt_and_tools_are_there_once_and_a_clients_tool_stays(chats):
    own = {"type": "function", "function": {"name": "MemoryView", "description": "Mine."}}
    chats.upstream.reset(Answer(calls=[("m1", "MemoryCreate", '{"path": "a", "fileText": "x"}')]), Answer("Done."))
    await chats.say("q", memory={**LONG_TERM, "recall": True}, tools=[own])
    for request in chats.upstream.requests:
        assert "".join(systems(request)).count("# Long-term memory") == 1
        assert [tool for tool in request["tools"] if tool["function"]["name"] == "MemoryView"] == [own]
        assert len(request["tools"]) == 7


async def test_a_request_that_wants_no_calls_gets_neither(chats):
    await chats.say("q", memory=LONG_TERM, tool_choice="none")
    assert systems(chats.upstream.requests[-1]) == []
    assert "tools" not in chats.upstream.requests[-1]


@pytest.mark.parametrize(
    "old", [{"functions": [{"name": "f", "parameters": {}}]}, {"function_call": "auto"}, {"function_call": "none"}]
)
async def test_a_request_of_the_old_style_gets_neither(chats, old):
    await chats.say("q", memory={**LONG_TERM, "recall": True}, **old)
    request = chats.upstream.requests[-1]
    assert systems(request) == []
    assert "tools" not in request
    assert {name: request[name] for name in old} == old


async def test_a_prompt_that_the_application_put_in_is_not_put_in_again(chats):
    await put(chats.http, "MEMORY.md", "- [tea](tea.md): green\n")
    served = await chats.http.get("/v1/memories/alice/prompt", params={"preload_index": True})
    own = f"You are a cook.\n\n{served.json()['prompt']}\n\nAnswer briefly."
    for asked in ({}, {"preload_index": True}):
        await chats.say(f"s: {own}", "q", user_id="alice", memory={**LONG_TERM, **asked})
        assert systems(chats.upstream.requests[-1]) == [own]
        assert len(chats.upstream.requests[-1]["tools"]) == 6
    await chats.say(f"s: {own}", "q", user_id="alice", memory={**LONG_TERM, "consolidate": True})
    assert systems(chats.upstream.requests[-1]) == [f"{own}\n\n{REMINDER}"]
    parts = [{"type": "text", "text": own}]
    await chats.say({"role": "system", "content": parts}, "q", user_id="alice", memory=LONG_TERM)
    assert systems(chats.upstream.requests[-1]) == [parts]


@pytest.mark.parametrize("empty", ["", [{"type": "text", "text": ""}]], ids=["text", "parts"])
async def test_an_empty_system_message_becomes_the_prompt(chats, empty):
    await chats.say({"role": "system", "content": empty}, "q", memory=LONG_TERM)
    assert systems(chats.upstream.requests[-1])[0].startswith("# Long-term memory")


@pytest.mark.parametrize(
    "index", ["word " * 100_000, ("é" * 100 + "\n") * 400, "x\n" * 100_000], ids=["line", "bytes", "lines"]
)
async def test_of_a_large_index_the_beginning_is_put_in(chats, index):
    await put(chats.http, "MEMORY.md", index[:250_000])
    await chats.say("q", user_id="alice", memory=LONG_TERM)
    without = len(systems(chats.upstream.requests[-1])[0].encode())
    await chats.say("q", user_id="alice", memory={**LONG_TERM, "preload_index": True})
    prompt = systems(chats.upstream.requests[-1])[0]
    assert len(prompt.encode()) - without < 16_700
    assert len(prompt.splitlines()) < 200 + 70
    assert "View /memories/MEMORY.md" in prompt


async def test_a_reminder_comes_when_its_trigger_fires(database_url):
    async with chatting(database_url, memory_consolidation={"every_requests": 3}) as chats:
        for number in range(6):
            await chats.say(f"q{number}", session=f"s{number}", user_id="alice", memory=LONG_TERM)
        reminded = [REMINDER in systems(request)[0] for request in chats.upstream.requests]
        assert reminded == [False, False, True, False, False, True]
        await chats.say("q", user_id="alice", memory={**LONG_TERM, "consolidate": True})
        assert REMINDER in systems(chats.upstream.requests[-1])[0]


async def test_the_index_is_put_in_where_that_is_asked_for(chats):
    await put(chats.http, "MEMORY.md", "- [diet](user/diet.md): what she eats\n" + "line\n" * 300)
    await chats.say("q", user_id="alice", memory={**LONG_TERM, "preload_index": True})
    prompt = systems(chats.upstream.requests[-1])[0]
    assert "what she eats" in prompt
    assert prompt.count("\nline") == 199
    assert prompt.endswith("(The index goes on: it has 301 lines. View /memories/MEMORY.md.)")


async def test_another_store_may_be_named(chats):
    chats.upstream.reset(Answer(calls=[("m1", "MemoryCreate", '{"path": "a", "fileText": "x"}')]), Answer("Done."))
    await chats.say("q", user_id="alice", memory={**LONG_TERM, "store": "shared:team"})
    assert len((await chats.http.get("/v1/memories/shared:team/files")).json()["items"]) == 1
    assert (await chats.post("q", memory={**LONG_TERM, "store": "a/b"})).status_code == 422


def test_a_template_without_its_placeholder_stops_the_start(tmp_path):
    template = tmp_path / "prompt.md"
    template.write_text("Remember {things}.")
    with pytest.raises(SettingsError, match="MEMORY_PROMPT_FILE"):
        create_app(Settings(_env_file=None, memory_prompt_file=template), database_url="postgresql://nowhere/x")


@pytest.mark.parametrize("spelling", ["{store}", "{MEMORIES_ROOT_DIERCTORY}"])
async def test_a_template_of_ones_own_is_used(database_url, tmp_path, spelling):
    template = tmp_path / "prompt.md"
    template.write_text(f"Keep {{json: braces}} in {spelling}.")
    async with chatting(database_url, memory_prompt_file=template) as chats:
        await chats.say("q", memory=LONG_TERM)
        assert systems(chats.upstream.requests[-1]) == ["Keep {json: braces} in /memories."]


async def test_an_export_holds_the_memory_and_reads_back(client, database_url, tmp_path):
    for text in ("one", "two"):
        await put(client, "a.md", text)
    await put(client, "gone.md", "x")
    await client.delete(FILE, params={"path": "gone.md"})
    exported = (await client.get("/v1/users/alice/export")).content
    await client.delete("/v1/users/alice")
    db = database_at(database_url)
    for _ in range(2):  # running it again adds nothing
        bad, tally = [], Tally()
        await import_records(db, parse(io.BytesIO(exported), ORIGIN), tally, bad.append)
        assert bad == []
    assert tally.memory.added == 0
    await db.close()
    assert (await client.get("/v1/users/alice/export")).content == exported
    assert await text_of(client, "a.md") == "two"
    assert [file["path"] for file in (await client.get("/v1/memories/alice/files")).json()["items"]] == ["a.md"]
    await put(client, "a.md", "three")  # goes on where it was
