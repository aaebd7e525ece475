"""Archives of a memory store: as large as a store can be, from any program, damaged in any way."""

import io
import os
import random
import stat
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import MemoryRefused
from app.domain.memory_archives import largest_archive, packed, unpacked
from app.domain.memory_trees import Limits
from tests.api.test_memory_tools import INSIDE

CASES = int(os.environ.get("TURNKEEPER_TEST_CASES", "60"))
ARCHIVE = "/v1/memories/{}/archive"
FILES = {"MEMORY.md": "- [tea](user/tea.md)\n", "user/tea.md": "Green, é.\n" * 20, "empty.md": ""}
LIMITS = Limits(max_file_bytes=10_000, max_files=20, max_store_bytes=50_000)


def zipped(*entries, method=zipfile.ZIP_DEFLATED):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return target.getvalue()


def entry(name, mode):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def unsaid(archive):
    """The archive without the flags that say that a name is in UTF-8."""
    for signature, where in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = archive.index(signature) + where
        archive = archive[:at] + bytes(2) + archive[at + 2 :]
    return archive


def as_said(archive, *, size=None, flags=None, method=None, offset=None, place=0):
    """The archive with other words about one of its files, in the central directory."""
    data = bytearray(archive)
    at = -1
    for _ in range(place + 1):
        at = data.index(b"PK\1\2", at + 1)
    for where, kind, value in ((24, "<L", size), (8, "<H", flags), (10, "<H", method), (42, "<L", offset)):
        if value is not None:
            struct.pack_into(kind, data, at + where, value)
    return bytes(data)


ONE = zipped(("a.md", "x" * 1_000))
TWO = zipped(("a.md", "same"), ("b.md", "same"))
REFUSED = {
    "nothing": (b"", "no zip archive"),
    "no zip": (b"PK" * 100, "no zip archive"),
    "an encrypted file": (as_said(ONE, flags=1), "without a password"),
    "strong encryption": (as_said(ONE, flags=0x40), "no zip archive"),
    "a patch": (as_said(ONE, flags=0x20), "no zip archive"),
    "bzip2": (zipped(("a", "x"), method=zipfile.ZIP_BZIP2), "by deflate"),
    "lzma": (zipped(("a", "x"), method=zipfile.ZIP_LZMA), "by deflate"),
    "a method of no program": (as_said(ONE, method=77), "by deflate"),
    "deflate that is none": (as_said(zipped(("a", "\x7f" * 9), method=0), method=8), "no zip archive"),
    "a size too small": (as_said(ONE, size=10), "zip archive"),
    "a size too large": (as_said(ONE, size=1_001), "another size"),
    "files that share bytes": (as_said(TWO, offset=0, place=1), "zip archive"),
    "a name that is not UTF-8": (
        zipped(("é", "x")).replace("é".encode(), b"\xff\xff"),
        "no zip archive",
    ),
    "a name with NUL": (zipped(("aXb", "x")).replace(b"aXb", b"a\0b"), "U+0000"),
    "a directory outside": (zipped(("../", ""), ("a", "x")), "'..' is not allowed"),
    "a name of both compositions": (zipped(("\u00e9", "1"), ("e\u0301", "2")), "twice"),
    "a device": (zipped((entry("a", stat.S_IFCHR), "x")), "no ordinary file"),
    "an entry for every file there could be": (zipped(*((f"d{n}/", "") for n in range(5_200))), "5,200 entries"),
    "more files": (zipped(*((str(n), "x") for n in range(1_001))), "at most 1,000"),
}


@pytest.mark.parametrize(("archive", "told"), REFUSED.values(), ids=REFUSED)
async def test_an_archive_that_cannot_be_taken_is_told_why_and_changes_nothing(client, archive, told):
    assert (await client.put(ARCHIVE.format("alice"), content=packed(FILES))).status_code == 200
    refused = await client.put(ARCHIVE.format("alice"), content=archive)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]
    assert not INSIDE.search(refused.json()["detail"])
    assert (await client.get(ARCHIVE.format("alice"))).content == packed(FILES)


TAKEN = {
    "stored": (zipped(("a.md", "x"), method=zipfile.ZIP_STORED), {"a.md": "x"}),
    "names in UTF-8 that do not say so": (unsaid(zipped(("日記/é.md", "x"))), {"日記/é.md": "x"}),
    "what macOS adds": (
        zipped(("__MACOSX/", ""), ("__MACOSX/._a", b"\0\5\x16\xff"), ("d/.DS_Store", b"\0\xff"), ("d/a", "x")),
        {"d/a": "x"},
    ),
    "directories": (zipped(("./", ""), ("d/", ""), (entry("e", stat.S_IFDIR), ""), ("d/a", "x")), {"d/a": "x"}),
    "decomposed names": (zipped(("e\u0301.md", "x")), {"\u00e9.md": "x"}),
    "names that differ in case": (zipped(("A.md", "1"), ("a.md", "2")), {"A.md": "1", "a.md": "2"}),
    "a program before it": (b"#!/bin/sh\n" + zipped(("a", "x")), {"a": "x"}),
    "no files": (zipped(), {}),
}


@pytest.mark.parametrize(("archive", "files"), TAKEN.values(), ids=TAKEN)
def test_an_archive_of_any_program_is_taken(archive, files):
    assert unpacked(archive, LIMITS) == files


def test_a_name_in_the_oldest_encoding_is_read():
    archive = zipped(("b.md", "x")).replace(b"b.md", b"\x82.md")
    assert unpacked(archive, LIMITS) == {"é.md": "x"}


kinds = st.sampled_from(["flip", "cut", "insert", "zero"])
changes = st.lists(
    st.tuples(kinds, st.floats(0, 1), st.integers(1, 255), st.integers(1, 40)),
    min_size=1,
    max_size=4,
)


def damaged(archive, made):
    data = bytearray(archive)
    for kind, where, value, length in made:
        at = int(where * (len(data) - 1)) if data else 0
        if kind == "flip" and data:
            data[at] ^= value
        elif kind == "cut":
            del data[at : at + length]
        elif kind == "zero":
            data[at : at + length] = bytes(length)
        else:
            data[at:at] = random.Random(value).randbytes(length)
    return bytes(data)


methods = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])


@settings(max_examples=CASES * 5)
@given(methods, changes)
def test_a_damaged_archive_is_refused_or_holds_text_within_the_limits(method, made):
    try:
        files = unpacked(damaged(zipped(*FILES.items(), method=method), made), LIMITS)
    except MemoryRefused:
        return
    assert sum(len(text.encode()) for text in files.values()) <= LIMITS.max_store_bytes


@settings(max_examples=CASES)
@given(changes)
async def test_a_damaged_archive_is_refused_by_the_service_and_changes_nothing(shared_client, made):
    await shared_client.put(ARCHIVE.format("bob"), content=packed(FILES))
    before = (await shared_client.get("/v1/memories/bob/files")).json()
    answer = await shared_client.put(ARCHIVE.format("bob"), content=damaged(packed(FILES), made))
    assert answer.status_code in {200, 422}, answer.text
    if answer.status_code == 422:
        assert (await shared_client.get("/v1/memories/bob/files")).json() == before


def test_no_more_is_decompressed_than_is_kept(monkeypatch):
    """Whatever an archive says of its sizes."""
    read = []
    original = zipfile.ZipExtFile.read

    def counting(file, size=-1):
        content = original(file, size)
        read.append(len(content))
        return content

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting)
    bomb = zipped(*((str(number), "a" * 9_000) for number in range(6)), ("bomb", bytes(20_000_000)))
    with pytest.raises(MemoryRefused, match="too large"):
        unpacked(bomb, LIMITS)
    assert sum(read) <= LIMITS.max_store_bytes + 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
async def test_a_store_of_what_cannot_be_compressed_goes_out_and_in(client, method):
    """12 MiB: of 7 random bits in a byte, 11 MB are left when it is compressed, more than other bodies may have."""
    drawn = random.Random(1)
    table = bytes(max(1, value & 127) for value in range(256))
    files = {f"{number}.md": drawn.randbytes(262_144).translate(table).decode() for number in range(48)}
    archive = zipped(*files.items(), method=method)
    assert len(archive) > 10_485_760
    replaced = await client.put(ARCHIVE.format("alice"), content=archive)
    assert replaced.status_code == 200, replaced.text
    assert len(replaced.json()["items"]) == 48
    assert unpacked((await client.get(ARCHIVE.format("alice"))).content, FULL) == files


FULL = Limits(max_file_bytes=262_144, max_files=1_000, max_store_bytes=16_777_216)


def test_a_full_store_is_within_the_largest_archive():
    """16,777 bytes each, in files with the longest paths that there are."""
    names = [f"{number:04d}{'é' * 250}/{'é' * 250}.md" for number in range(1_000)]
    content = random.Random(1).randbytes(16_777)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert len(zipped(*((name, content) for name in names), method=method)) <= largest_archive(FULL)


async def test_what_is_over_that_is_refused_by_its_size(client):
    refused = await client.put(ARCHIVE.format("alice"), content=bytes(largest_archive(FULL) + 1))
    assert refused.status_code == 413
    assert f"{largest_archive(FULL):,}" in refused.json()["detail"]
    elsewhere = await client.post(ARCHIVE.format("alice"), content=bytes(10_485_761))
    assert elsewhere.status_code == 413
