"""Message filters: which messages of a chat are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.messages import says_nothing, text_of, type_of
from app.domain.text import contains

Message = Mapping[str, Any]

# What a reply may say although no prompt can hold it as a message.
_OTHER_CONTENT = ("reasoning", "reasoning_content", "reasoning_details", "function_call", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptAll:
    def accepts(self, _: Message) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipEmpty:
    """Everything but replies without text, calls or other content; a blank question is stored."""

    def accepts(self, message: Message) -> bool:
        return not says_nothing(message) or any(message.get(name) for name in _OTHER_CONTENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTypes:
    types: frozenset[str]

    def accepts(self, message: Message) -> bool:
        return type_of(message) in self.types


@dataclass(frozen=True, slots=True, kw_only=True)
class Containing:
    """Messages whose text contains the term, caselessly."""

    term: str

    def accepts(self, message: Message) -> bool:
        return contains(text_of(message), self.term)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllOf:
    filters: "tuple[MessageFilter, ...]"

    def accepts(self, message: Message) -> bool:
        return all(one.accepts(message) for one in self.filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf:
    filters: "tuple[MessageFilter, ...]"

    def accepts(self, message: Message) -> bool:
        return any(one.accepts(message) for one in self.filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    negated: "MessageFilter"

    def accepts(self, message: Message) -> bool:
        return not self.negated.accepts(message)


MessageFilter = AcceptAll | SkipEmpty | OfTypes | Containing | AllOf | AnyOf | Not
