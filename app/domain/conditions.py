"""Conditional requests (RFC 9110, section 13): what has to hold of a file before it is read or written."""

from dataclasses import dataclass

from app.domain.errors import FileVersionMismatch
from app.domain.memory_files import MemoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Entity tags that a request names; `any`: a file, whichever."""

    any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    def match(self, file: MemoryFile | None, *, weakly: bool = False) -> bool:
        """Whether one of them is the file's. A version by itself, as lists tell it, does as well."""
        if file is None:
            return False
        named = self.strong | self.weak if weakly else self.strong
        return self.any or not named.isdisjoint({file.tag, str(file.version)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """None: nothing is asked."""

    match: Tags | None = None
    none_match: Tags | None = None

    def check(self, file: MemoryFile | None) -> None:
        """Before a write. Raises FileVersionMismatch."""
        self.check_match(file)
        if self.none_match is not None and self.none_match.match(file, weakly=True):
            raise _mismatch(file)

    def check_match(self, file: MemoryFile | None) -> None:
        if self.match is not None and not self.match.match(file):
            raise _mismatch(file)

    def is_known(self, file: MemoryFile) -> bool:
        """Whether who reads it has it already."""
        return self.none_match is not None and self.none_match.match(file, weakly=True)


def _mismatch(file: MemoryFile | None) -> FileVersionMismatch:
    return FileVersionMismatch(None if file is None else file.version)
