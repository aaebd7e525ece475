"""Random edits of a memory by its tools against a dict of path to text, and editors at the same time."""

import asyncio
import io
import os
import zipfile
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import serving

CASES = int(os.environ.get("TURNKEEPER_TEST_CASES", "60"))
_users = count()

# What paths come to; None of what is no path at all. What ends in "/" is a directory's.
SPELLED = {
    "a": "a",
    "a/b": "a/b",
    "a/b/c": "a/b/c",
    "d.md": "d.md",
    "ü": "ü",
    "ü/é": "ü/é",
    "u\u0308/e\u0301": "ü/é",
    "/memories/a": "a",
    "/memories/ü/é": "ü/é",
    "./a/./b": "a/b",
    "a/": "a",
    "A": "A",
    "日記 😀.md": "日記 😀.md",
    "'; DROP TABLE memory_files; --": "'; DROP TABLE memory_files; --",
    "%": "%",
    "a_b": "a_b",
    "": "",
    ".": "",
    "/memories": "",
    "..": None,
    "../a": None,
    "a/../d.md": None,
    "/x": None,
    "/memories/../x": None,
    "a//b": None,
    "a\\b": None,
    "a\0b": None,
    "a\n": None,
    "a\u202eb": None,
    "a\u200d": None,
    "x" * 256: None,
}
paths = st.sampled_from(sorted(SPELLED))
characters = [
    "a",
    "b",
    "\n",
    "é",
    "e\u0301",
    "\u0301",
    "😀",
    "日",
    "\u2028",
    "\x85",
    "\x0b",
    "\t",
    "%",
    "'",
    "\\",
    "\u202e",
]
texts = st.lists(st.sampled_from(characters), max_size=12).map("".join)
edits = st.one_of(
    st.tuples(st.just("MemoryCreate"), paths, texts),
    st.tuples(st.just("MemoryStrReplace"), paths, texts, texts),
    st.tuples(st.just("MemoryInsert"), paths, st.integers(-1, 6), texts),
    st.tuples(st.just("MemoryDelete"), paths),
    st.tuples(st.just("MemoryRename"), paths, paths),
)
ARGUMENTS = {
    "MemoryCreate": ("path", "fileText"),
    "MemoryStrReplace": ("path", "oldStr", "newStr"),
    "MemoryInsert": ("path", "insertLine", "insertText"),
    "MemoryDelete": ("path",),
    "MemoryRename": ("oldPath", "newPath"),
}


class Memory:
    """A user's memory over HTTP."""

    def __init__(self, http, user):
        self.http = http
        self.user = user
        self.store = f"/v1/memories/{user}"

    async def call(self, tool, *values):
        arguments = dict(zip(ARGUMENTS[tool], values, strict=True))
        response = await self.http.post(f"/v1/users/{self.user}/tools/{tool}", json=arguments)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["is_error"] == answer["content"].startswith("Error: ")
        return answer

    async def files(self):
        archive = (await self.http.get(f"{self.store}/archive")).content
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return {name: opened.read(name) for name in opened.namelist()}

    async def versions(self):
        """The newest version of each file."""
        listed = (await self.http.get(f"{self.store}/files")).json()["items"]
        return {file["path"]: file["version"] for file in listed}


def edited(files, edit):
    """The files after an edit, by rules of this test's own; None where it has to be refused."""
    tool, given_path, *rest = edit
    path = SPELLED[given_path]
    if not path:
        return None
    if tool == "MemoryDelete":
        inside = _inside(files, path)
        return _without(files, inside) if inside else None
    if tool == "MemoryRename":
        return _renamed(files, path, rest[0])
    if given_path.endswith("/"):
        return None
    if tool == "MemoryCreate":
        return {**files, path: rest[0]} if _is_free(files, path, files) else None
    return _changed(files, tool, path, *rest) if path in files else None


def _renamed(files, path, given_new):
    new, inside = SPELLED[given_new], _inside(files, path)
    if not new or not inside or (path in files and given_new.endswith("/")):
        return None
    left = _without(files, inside)
    if new == path or new.startswith(f"{path}/") or not _is_free(files, new, left):
        return None
    return left | {new + one.removeprefix(path): files[one] for one in inside}


def _changed(files, tool, path, what, new):
    text = files[path]
    if tool == "MemoryStrReplace":
        places = sum(text.startswith(what, at) for at in range(len(text))) if what else 0
        return {**files, path: text.replace(what, new)} if places == 1 else None
    lines = [f"{line}\n" for line in text.split("\n")]
    lines = lines[:-1] if lines[-1] == "\n" else [*lines[:-1], lines[-1].removesuffix("\n")]
    if not 0 <= what <= len(lines):
        return None
    added = [f"{one}\n" for one in new.removesuffix("\n").split("\n")]
    if what == len(lines) and text and not text.endswith("\n"):
        return {**files, path: text + "".join(f"\n{one[:-1]}" for one in added)}
    return {**files, path: "".join([*lines[:what], *added, *lines[what:]])}


def _inside(files, path):
    return [one for one in files if one == path or one.startswith(f"{path}/")]


def _without(files, gone):
    return {path: text for path, text in files.items() if path not in gone}


def _is_free(files, path, above):
    """Whether a path has neither file nor directory, and no file stands above it."""
    return not _inside(files, path) and not any(path.startswith(f"{one}/") for one in above)


@settings(max_examples=CASES)
@given(st.lists(edits, max_size=12))
async def test_random_calls_agree_with_a_dict_and_every_version_can_be_brought_back(shared_client, made):
    memory = Memory(shared_client, f"random-{next(_users)}")
    files, written = {}, {}
    for edit in made:
        expected = edited(files, edit)
        answer = await memory.call(*edit)
        assert answer["is_error"] == (expected is None), (files, edit, answer)
        files = files if expected is None else expected
        assert await memory.files() == {path: text.encode() for path, text in files.items()}
        if expected is None:
            continue
        newest = await memory.versions()
        written |= {(path, newest[path]): text for path, text in files.items()}
    await _require_every_version(memory, written)


async def _require_every_version(memory, written):
    """Any version of any file, the deleted and renamed ones too, byte for byte."""
    await memory.http.put(f"{memory.store}/archive", content=_EMPTY)
    for (path, version), text in written.items():
        where = {"path": path}
        restored = await memory.http.post(f"{memory.store}/file/restore", params=where, json={"version": version})
        assert restored.status_code == 200, (path, restored.text)
        assert (await memory.http.get(f"{memory.store}/file", params=where)).content == text.encode()
        await memory.http.delete(f"{memory.store}/file", params=where)


_EMPTY = b"PK\5\6" + bytes(18)

EDITORS = 8


@pytest.fixture
async def patient_client(shared_database_url):
    """A service in which an edit waits for the others as long as it takes, on however busy a machine."""
    async with serving(shared_database_url, statement_timeout_ms=120_000) as http:
        yield http


async def test_editors_at_the_same_time_lose_nothing_of_one_another(patient_client):
    """Each replaces, inserts, creates, renames and deletes of its own, in files that all of them edit."""
    memory = Memory(patient_client, "together")
    marks = "".join(f"<{editor}:0>\n" for editor in range(EDITORS))
    await memory.call("MemoryCreate", "MEMORY.md", marks)

    async def work(editor):
        for step in range(4):
            for edit in (
                ("MemoryStrReplace", "MEMORY.md", f"<{editor}:{step}>", f"<{editor}:{step + 1}>"),
                ("MemoryInsert", "MEMORY.md", 0, f"- {editor} did {step}"),
                ("MemoryCreate", f"notes/{editor}/{step}.md", f"{editor}"),
                ("MemoryRename", f"notes/{editor}/{step}.md", f"kept/{editor}-{step}.md"),
            ):
                answer = await memory.call(*edit)
                assert not answer["is_error"], answer
        assert not (await memory.call("MemoryDelete", f"kept/{editor}-0.md"))["is_error"]

    await asyncio.gather(*map(work, range(EDITORS)))
    files = await memory.files()
    index = files.pop("MEMORY.md").decode().splitlines()
    assert sorted(index) == sorted(
        [f"<{editor}:4>" for editor in range(EDITORS)]
        + [f"- {editor} did {step}" for editor in range(EDITORS) for step in range(4)]
    )
    kept = {f"kept/{editor}-{step}.md": f"{editor}".encode() for editor in range(EDITORS) for step in range(1, 4)}
    assert files == kept
    history = await memory.http.get(f"{memory.store}/file/versions", params={"path": "MEMORY.md"})
    assert len(history.json()["items"]) == 50, "those that are kept, of 65"


async def test_of_two_changes_of_one_place_one_is_refused(shared_client):
    memory = Memory(shared_client, "one-place")
    await memory.call("MemoryCreate", "a.md", "old")
    answers = await asyncio.gather(*(memory.call("MemoryStrReplace", "a.md", "old", f"{n}") for n in range(6)))
    assert sorted(answer["is_error"] for answer in answers) == [False] + [True] * 5
    done = next(str(n) for n, answer in enumerate(answers) if not answer["is_error"])
    assert await memory.files() == {"a.md": done.encode()}


async def test_an_archive_has_a_file_that_is_moved_meanwhile_under_one_of_its_names(shared_client):
    """It is the store as it was at one moment: read in two statements, it lacked what moved between them."""
    memory = Memory(shared_client, "moving")
    await memory.call("MemoryCreate", "a", "kept")
    is_read = asyncio.Event()

    async def move():
        names = ["a", "b"]
        while not is_read.is_set():
            assert not (await memory.call("MemoryRename", *names))["is_error"]
            names.reverse()

    async def read():
        for _ in range(40):
            assert list((await memory.files()).values()) == [b"kept"]
        is_read.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(move())
        tasks.create_task(read())
