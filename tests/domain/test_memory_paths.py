"""Paths in a memory: one spelling of each, and nothing in them that is not seen."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import MemoryRefused
from app.domain.memory_paths import entry_path, file_path, normalised

REFUSED = {
    "absolute": ("/etc/x", "absolute"),
    "upwards": ("a/../b", r"'\.\.' is not allowed"),
    "an empty name": ("a//b", "empty name"),
    "an empty name below the root": ("/memories//x", "empty name"),
    "a backslash": ("a\\b", "backslash"),
    "too long": ("a" * 600, "shorten it"),
    "a name too long": ("a" * 256 + "/b", "shorten it"),
    "far too long": ("e\u0301" * 5_000_000, "shorten it"),
    "NUL": ("a\0b", r"U\+0000"),
    "a newline": ("a\n", r"U\+000A"),
    "a line separator": ("a\u2028b", r"U\+2028"),
    "right to left": ("a\u202egpj.md", r"U\+202E"),
    "an isolate": ("a\u2066b", r"U\+2066"),
    "no width": ("a\u200bb", r"U\+200B"),
    "a byte order mark": ("\ufeffa", r"U\+FEFF"),
    "half a pair": ("a\ud800", r"U\+D800"),
}


@pytest.mark.parametrize(("path", "told"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_path_is_refused_by_a_sentence(path, told):
    with pytest.raises(MemoryRefused, match=told) as refused:
        normalised(path)
    sentence = str(refused.value)
    assert len(sentence) < 500
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("path", "usable"),
    [
        ("/memories", ""),
        ("/memories/", ""),
        ("/", ""),
        ("./a/./b", "a/b"),
        ("/memories/a/", "a"),
        ("A.md", "A.md"),
        ("e\u0301.md", "\u00e9.md"),
        ("\u212b", "\u00c5"),
    ],
)
def test_a_path_has_one_spelling(path, usable):
    assert normalised(path) == usable


@pytest.mark.parametrize("path", ["new/", "new/.", "/memories/new/"])
def test_a_path_of_a_directory_is_none_of_a_file(path):
    with pytest.raises(MemoryRefused, match=r"name a file in it, such as new/notes\.md"):
        file_path(path)
    assert entry_path(path) == "new"


@pytest.mark.parametrize("path", ["", "/", ".", "/memories/"])
def test_the_root_is_neither_file_nor_entry(path):
    for kind in (file_path, entry_path):
        with pytest.raises(MemoryRefused, match="is the root"):
            kind(path)


@given(st.text(max_size=40))
def test_a_path_is_refused_or_normalised_for_good(path):
    try:
        usable = normalised(path)
    except MemoryRefused:
        return
    assert normalised(usable) == usable == unicodedata.normalize("NFC", usable)
    assert not {"", ".", ".."} & set(usable.split("/")) or usable == ""
