"""Folding: what matches whatever, and that no text makes it crawl."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from app.domain.text import contains, fold


@given(st.text())
def test_folding_is_case_folding_under_canonical_composition(text):
    """But for runs of combining marks that no writing has (hypothesis does not make up any)."""
    nfc = unicodedata.normalize("NFC", text)
    assert fold(text) == unicodedata.normalize("NFC", nfc.casefold())
    assert fold(fold(text)) == fold(text)


def test_the_specified_pairs_match():
    for term, text in [("ÉCOLE", "école"), ("STRASSE", "Straße"), ("e\u0301", "\u00e9"), ("ΣΑΣ", "σας")]:
        assert contains(text, term)
        assert contains(f"before {text} after", term)


def test_no_run_of_combining_marks_is_long_when_it_is_normalised():
    """Normalising takes time in the square of a run: 80 KB of marks took seconds, 2 MB minutes."""
    folded = fold("a" + "\u0315\u0300" * 200_000)
    assert max(map(len, folded.split("\u034f"))) <= 31
