"""A memory as a tree of files: what edits come to. Pure: the files that there are in, changes or a sentence out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.errors import MemoryRefused
from app.domain.memory_paths import is_within, shown

# How deep a view of a directory goes.
LEVELS = 2

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes of UTF-8, and files."""

    max_file_bytes: int
    max_files: int
    max_store_bytes: int


def size_of(text: str) -> int:
    return len(text.encode())


def is_directory(sizes: Sizes, path: str) -> bool:
    """Whether there are files below; the root always is one."""
    return not path or any(is_within(file, path) for file in sizes)


def listing(sizes: Sizes, directory: str) -> str:
    """Two levels of a directory, sorted, with sizes. Raises MemoryRefused when there is none."""
    if not is_directory(sizes, directory):
        raise not_found(directory)
    entries: dict[str, str] = {}
    prefix = f"{directory}/" if directory else ""
    for path, size in sizes.items():
        if is_within(path, directory):
            names = path.removeprefix(prefix).split("/")
            for depth in range(1, min(len(names) - 1, LEVELS) + 1):
                entries.setdefault("/".join(names[:depth]), "/")
            if len(names) <= LEVELS:
                entries["/".join(names)] = f" ({size} bytes)"
    head = f"Contents of /{directory}:\n"
    return "\n".join([head, *(f"  {name}{kind}" for name, kind in sorted(entries.items()))])


def require_free(sizes: Sizes, path: str) -> None:
    """Raises MemoryRefused when a file or directory has the path, or a file stands where a directory would be."""
    if path in sizes or is_directory(sizes, path):
        kind = "file" if path in sizes else "directory"
        raise MemoryRefused(
            f"{shown(path)} exists already as a {kind}. Replace text in a file or insert lines into it, "
            "or choose another path."
        )
    require_parents(sizes, path)


def require_parents(sizes: Sizes, path: str) -> None:
    names = path.split("/")
    for depth in range(1, len(names)):
        parent = "/".join(names[:depth])
        if parent in sizes:
            raise MemoryRefused(f"{shown(parent)} is a file: nothing can be stored below it.")


def below(sizes: Sizes, path: str) -> list[str]:
    """The file at a path, or the files of the directory there. Raises MemoryRefused when there is neither."""
    files = [path] if path in sizes else sorted(file for file in sizes if path and is_within(file, path))
    if not files:
        raise not_found(path)
    return files


def moved(sizes: Sizes, old: str, new: str) -> dict[str, str]:
    """Which file gets which path. Raises MemoryRefused."""
    files = below(sizes, old)
    if new == old or is_within(new, old):
        raise MemoryRefused(f"{shown(old)} cannot be moved to {shown(new)}, which is itself or inside of it.")
    rest = {path: size for path, size in sizes.items() if path not in files}
    if new in sizes or is_directory(sizes, new):
        raise MemoryRefused(f"{shown(new)} exists already: choose another path, or delete it first.")
    require_parents(rest, new)
    return {file: new + file.removeprefix(old) for file in files}


def require_room(sizes: Sizes, changes: Mapping[str, int | None], limits: Limits) -> None:
    """Raises MemoryRefused when the files would be too large or too many. `changes`: sizes, None for what goes."""
    for path, size in changes.items():
        if size is not None and size > limits.max_file_bytes:
            raise MemoryRefused(
                f"{shown(path)} would have {size:,} bytes; a file has at most {limits.max_file_bytes:,}. "
                "Split it, or keep what matters."
            )
    after = {path: size for path, size in {**sizes, **changes}.items() if size is not None}
    grows = len(after) > len(sizes) or _total(after.values()) > _total(sizes.values())
    if grows and len(after) > limits.max_files:
        raise MemoryRefused(f"The memory would have {len(after):,} files; it has at most {limits.max_files:,}.")
    if grows and _total(after.values()) > limits.max_store_bytes:
        raise MemoryRefused(
            f"The memory would have {_total(after.values()):,} bytes; it has at most {limits.max_store_bytes:,}. "
            "Delete or shorten what is no longer needed."
        )


def not_found(path: str) -> MemoryRefused:
    return MemoryRefused(f'{shown(path)} does not exist. View the root (path "") to see what there is.')


def _total(sizes: Iterable[int]) -> int:
    return sum(sizes)
