"""Edits and views of memory files: line ends, hostile sizes, what a model is shown."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import MemoryRefused
from app.domain.memory_lines import lines_of
from app.domain.memory_texts import inserted, replaced
from app.domain.memory_views import MAX_SNIPPET, MAX_VIEW, directory_view, file_view, snippet

LARGE = 262_144

# The first took 1.9 s at a quarter of the size and a range of 20,000 blanks 9 s, when the work was quadratic in it.
HOSTILE = {
    "an old text that overlaps itself everywhere": lambda: replaced("f", "a" * LARGE, "a" * (LARGE // 2), ""),
    "one that nearly occurs": lambda: replaced("f", "a" * LARGE, "a" * (LARGE // 2) + "b", ""),
    "one that nearly occurs, from its end": lambda: replaced("f", "a" * LARGE, "b" + "a" * (LARGE // 2), ""),
    "a short one": lambda: replaced("f", "a" * LARGE, "aa", ""),
    "one of blank lines": lambda: replaced("f", "\r\n" * (LARGE // 2), "\n" * 5_000, ""),
    "a range of blanks": lambda: file_view("f", "a", " " * LARGE),
    "a range of blanks behind a number": lambda: file_view("f", "a", "1" + " " * LARGE + "x"),
    "a range of brackets": lambda: file_view("f", "a", "[" * LARGE),
    "a line beyond": lambda: inserted("f", "\r" * LARGE, 10**9, "x"),
}


@pytest.mark.parametrize("attempt", HOSTILE.values(), ids=HOSTILE)
def test_hostile_sizes_are_refused_in_linear_time(attempt):
    began = time.thread_time()  # Of this thread's own work: a busy machine makes no difference.
    with pytest.raises(MemoryRefused):
        attempt()
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("text", "old", "told"),
    [
        ("aaa\na a", "a", r"5 times in f \(lines 1, 2\)"),
        ("aaa", "aa", r"2 times in f \(line 1\)"),
        ("x\n" * 50, "x", r"at least 10 times in f \(lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\)"),
        ("x\r\nx\rx", "x", r"3 times in f \(lines 1, 2, 3\)"),
    ],
)
def test_a_line_is_named_once_however_often_the_text_is_in_it(text, old, told):
    with pytest.raises(MemoryRefused, match=told):
        replaced("f", text, old, "")


def test_line_numbers_of_a_view_are_no_part_of_the_text():
    with pytest.raises(MemoryRefused, match="without the line numbers"):
        replaced("f", "one\ntwo\n", "     1\tone", "")


REPLACED = {
    "in a file with CRLF": ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n"),
    "in one line of it": ("a\r\nb\r\n", "b", "x\ny", "a\r\nx\r\ny\r\n"),
    "by a text with CRLF": ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
    "with the end of the line before": ("a\r\nb\r\n", "\nb", "", "a\r\n"),
    "with its own": ("a\r\nb\r\n", "a\n", "", "b\r\n"),
    "in a file with CR": ("a\rb\r", "a\nb", "x\ny", "x\ry\r"),
    "in one with both": ("a\nb\r\nc\r\n", "b\nc", "x\ny", "a\nx\r\ny\r\n"),
    "behind pairs": ("é\r\n\r\nb\r\nc", "b\nc", "", "é\r\n\r\n"),
    "in a file of one line": ("abc", "b", "1\r\n2", "a1\r\n2c"),
}


@pytest.mark.parametrize(("text", "old", "new", "after"), REPLACED.values(), ids=REPLACED)
def test_a_text_is_found_as_it_is_shown_and_line_ends_stay(text, old, new, after):
    assert replaced("f", text, old, new)[0] == after


lines = st.lists(st.text(st.sampled_from("aé "), max_size=3), min_size=1, max_size=6)


@given(lines, lines, lines, lines)
def test_a_file_with_crlf_is_edited_as_one_with_lf(before, old, after, new):
    text, old, new = "\n".join([*before, *old, *after]), "\n".join(old), "\n".join(new)

    def outcome(text):
        try:
            return replaced("f", text, old, new)
        except MemoryRefused as refused:
            return str(refused)

    plain, pairs = outcome(text), outcome(text.replace("\n", "\r\n"))
    if isinstance(plain, str) or "\n" not in text:
        assert pairs == plain
    else:
        assert pairs == (plain[0].replace("\n", "\r\n"), plain[1])


def test_a_view_of_a_large_file_says_how_to_read_on():
    text = "".join(f"line {number}\n" for number in range(1, 20_001))
    seen, start = [], 1
    while True:
        view = file_view("f", text, None if start == 1 else f"{start},-1")
        assert len(view) <= MAX_VIEW + 200
        head, *rest = view.split("\n")[1:]
        seen += [line.split("\t")[1] for line in rest if "\t" in line]
        if "are not shown" not in view:
            break
        start = int(view.split("view the range ")[1].split(",")[0])
        assert head == f"Lines {len(seen) - len(rest) + 4}-{start - 1} of 20000"
    assert seen == lines_of(text)


def test_a_line_that_is_too_long_alone_is_cut_and_said_to_be():
    text = f"short\n{'x' * 100_000}\nlast\n"
    view = file_view("f", text, None)
    assert view.endswith("     1\tshort\n\n(Lines 2 to 3 are not shown: view the range 2,3 to read on.)")
    view = file_view("f", text, "2,3")
    assert len(view) <= MAX_VIEW + 500
    assert "Line 2 is cut here: it has 100,000 characters" in view
    assert "view the range 3,3" in view
    assert file_view("f", text, "3,3") == "File: f\nLines 3-3 of 3\n\n     3\tlast"


def test_a_view_of_a_large_directory_says_how_to_read_on():
    entries = [f"{number:05d}{'n' * 200}.md (1 bytes)" for number in range(1_000)]
    view = directory_view("d", entries, None)
    assert len(view) <= MAX_VIEW + 200
    start = int(view.split("view the range ")[1].split(",")[0])
    assert directory_view("d", entries, f"{start},{start}") == f"Contents of /d:\n\n  {entries[start - 1]}"


def test_a_snippet_shows_the_place_in_a_long_line():
    changed, shown = replaced("f", f"{'a' * 100_000}old{'b' * 100_000}", "old", "new")
    assert len(changed) == 200_003
    assert "anewb" in shown
    assert len(shown) < 600
    _, shown = replaced("f", "x", "x", "many\n" * 50_000)
    assert len(shown) < MAX_SNIPPET + 200
    assert "view the range" in shown
    assert snippet("a" * 100_000, 1, 1).endswith("a…")


@pytest.mark.parametrize(
    ("text", "given_range", "told"),
    [
        ("a\nb\n", "3,-1", "f has 2 lines. Send a start from 1 to 2"),
        ("a\nb\n", "2,1", "an end that is not before it"),
        ("a\n", "5,-1", "f has 1 line. "),
        ("", "1,1", "f has 0 lines. Leave it out"),
        ("a", "one", "such as 1,20"),
    ],
)
def test_a_range_that_does_not_fit_is_told_what_does(text, given_range, told):
    with pytest.raises(MemoryRefused, match=told):
        file_view("f", text, given_range)
    assert file_view("f", "", "1,-1") == file_view("f", "", None)
