"""EventFilter: which events of a log are read. `apply` is the definition; SQL has to agree with it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, Self

import re2

from app.domain.errors import Fault, InvalidInput
from app.domain.events import Event
from app.domain.text import contains, is_blank
from app.domain.turns import newest_whole_turns

MAX_KEYWORDS = 20
MAX_TERM_LENGTH = 1_000
MAX_PATTERN_LENGTH = 1_000

MatchMode = Literal["any", "all"]

_WINDOW_FIELDS = ("last_n", "page", "page_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Criteria that all have to hold, and at most one way to cut: a window (`last_n`) or a page.

    `from_` and `to` are inclusive instants, `after_seq` and `before_seq` exclusive bounds. An empty or blank
    criterion is none. Raises InvalidInput, which names the field.
    """

    from_: datetime | None = None
    to: datetime | None = None
    types: frozenset[str] | None = None
    exclude_synthetic: bool = False
    exclude_archived: bool = False
    after_seq: int | None = None
    before_seq: int | None = None
    last_n: int | None = None
    keyword: str | None = None
    keywords: tuple[str, ...] | None = None
    match_mode: MatchMode | None = None
    pattern: str | None = None
    page: int | None = None
    page_size: int | None = None

    def __post_init__(self) -> None:
        self._set("types", self.types or None)
        self._set("keyword", _usable_term("keyword", self.keyword))
        self._set("keywords", _usable_terms(self.keywords))
        self._set("match_mode", (self.match_mode or "any") if self.keywords else None)
        if self.page is None and self.page_size is not None:
            self._set("page", 0)
        self._check_window()
        if self.pattern is not None:
            compile_pattern(self.pattern)

    @property
    def is_text_search(self) -> bool:
        return not (self.keyword is None and self.keywords is None and self.pattern is None)

    @property
    def is_bounded(self) -> bool:
        """Whether a read of one session touches little more than it returns: only places in the log matter to it."""
        asks = (self.types, self.from_, self.to, self.page_size)
        return not self.is_text_search and not self.exclude_synthetic and all(value is None for value in asks)

    @property
    def keeps_turns_whole(self) -> bool:
        """A search result is not a prompt: only a window without a text criterion is extended."""
        return self.last_n is not None and not self.is_text_search

    @property
    def terms(self) -> tuple[str, ...]:
        return self.keywords or ()

    def merge(self, other: Self) -> Self:
        """This filter, overridden by what `other` sets; a window or page is replaced as one unit."""
        changes: dict[str, Any] = {
            field.name: value
            for field in fields(other)
            if field.name not in _WINDOW_FIELDS and (value := getattr(other, field.name)) is not None
        }
        changes["exclude_synthetic"] = self.exclude_synthetic or other.exclude_synthetic
        changes["exclude_archived"] = self.exclude_archived or other.exclude_archived
        if other.last_n is not None or other.page_size is not None:
            changes |= {name: getattr(other, name) for name in _WINDOW_FIELDS}
        return replace(self, **changes)

    def apply(self, log: Sequence[Event]) -> list[Event]:
        """What a read of one session's log (in `seq` order) returns."""
        return self._cut([event for event in log if self.matches(event)], whole_turns=True)

    def apply_across(self, log: Sequence[Event]) -> list[Event]:
        """What a read of events of several sessions returns: there, windows are plain."""
        ordered = sorted(log, key=lambda event: (event.timestamp, event.session_id.encode(), event.seq))
        return self._cut([event for event in ordered if self.matches(event)], whole_turns=False)

    def matches(self, event: Event) -> bool:
        return self._matches_place(event) and self._matches_kind(event) and self.matches_text(event.text)

    def matches_text(self, text: str | None) -> bool:
        return (
            (self.keyword is None or contains(text, self.keyword))
            and (self.keywords is None or _match(self.match_mode)(contains(text, term) for term in self.keywords))
            and self.matches_pattern(text)
        )

    def matches_pattern(self, text: str | None) -> bool:
        if self.pattern is None:
            return True
        return bool(text) and compile_pattern(self.pattern).search(text) is not None

    def _matches_place(self, event: Event) -> bool:
        return (
            (self.from_ is None or event.timestamp >= self.from_)
            and (self.to is None or event.timestamp <= self.to)
            and (self.after_seq is None or event.seq > self.after_seq)
            and (self.before_seq is None or event.seq < self.before_seq)
        )

    def _matches_kind(self, event: Event) -> bool:
        return (
            (self.types is None or event.type in self.types)
            and not (self.exclude_synthetic and event.synthetic)
            and not (self.exclude_archived and event.archived)
        )

    def _cut(self, matching: list[Event], *, whole_turns: bool) -> list[Event]:
        if self.last_n is not None:
            if whole_turns and self.keeps_turns_whole:
                return list(newest_whole_turns(matching, self.last_n))
            return matching[-self.last_n :]
        if self.page_size is not None and self.page is not None:
            return matching[self.page * self.page_size :][: self.page_size]
        return matching

    def _check_window(self) -> None:
        if self.last_n is not None and self.last_n <= 0:
            raise _invalid("last_n", "A window has at least 1 event: last_n > 0.")
        if self.page_size is not None and self.page_size <= 0:
            raise _invalid("page_size", "A page has at least 1 event: page_size > 0.")
        if self.page is not None and self.page < 0:
            raise _invalid("page", "Pages are counted from 0.")
        if self.page is not None and self.page_size is None:
            raise _invalid("page", "A page needs a page_size.")
        if self.last_n is not None and self.page_size is not None:
            raise _invalid("last_n", "last_n and page_size exclude each other: ask for a window or for a page.")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """RE2: linear time, so that a caller's expression may be run at all. Raises InvalidInput."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _invalid("pattern", f"A pattern has at most {MAX_PATTERN_LENGTH:,} characters.")
    _refuse_nul("pattern", pattern)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _invalid("pattern", f"RE2 does not accept the pattern: {reason}.") from None


def _usable_terms(terms: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if terms is not None and len(terms) > MAX_KEYWORDS:
        raise _invalid("keywords", f"At most {MAX_KEYWORDS} keywords; these are {len(terms)}.")
    return tuple(term for term in terms or () if _usable_term("keywords", term) is not None) or None


def _usable_term(name: str, term: str | None) -> str | None:
    if term is None or is_blank(term):
        return None
    if len(term) > MAX_TERM_LENGTH:
        raise _invalid(name, f"A search term has at most {MAX_TERM_LENGTH:,} characters.")
    _refuse_nul(name, term)
    return term


def _refuse_nul(name: str, term: str) -> None:
    if "\0" in term:
        raise _invalid(name, "A search term holds no NUL character; a search sees U+FFFD in its place.")


def _match(mode: MatchMode | None) -> Any:
    return all if mode == "all" else any


def _invalid(field: str, msg: str) -> InvalidInput:
    return InvalidInput(Fault((field,), msg))


ACTIVE = EventFilter(exclude_archived=True)
