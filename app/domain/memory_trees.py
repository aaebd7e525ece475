"""A memory as a tree of files: what edits come to. Pure: the files that there are in, changes or a sentence out."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from app.domain.errors import MemoryRefused
from app.domain.memory_paths import is_within, parents_of, shown

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


def entries_of(sizes: Sizes, directory: str) -> list[str]:
    """Two levels of a directory, sorted, with sizes. Raises MemoryRefused when there is none."""
    if not is_directory(sizes, directory):
        raise not_found(sizes, directory)
    entries: dict[str, str] = {}
    prefix = f"{directory}/" if directory else ""
    for path, size in sizes.items():
        if is_within(path, directory):
            names = path.removeprefix(prefix).split("/")
            for depth in range(1, min(len(names) - 1, LEVELS) + 1):
                entries.setdefault("/".join(names[:depth]), "/")
            if len(names) <= LEVELS:
                entries["/".join(names)] = f" ({size} bytes)"
    return [f"{name}{kind}" for name, kind in sorted(entries.items())]


def require_free(sizes: Sizes, path: str) -> None:
    """Raises MemoryRefused when a file or directory has the path, or a file stands where a directory would be."""
    if path in sizes:
        raise MemoryRefused(
            f"{shown(path)} exists already as a file. View it and replace text in it or insert lines, or choose "
            "another path."
        )
    if is_directory(sizes, path):
        raise MemoryRefused(
            f"{shown(path)} exists already as a directory. Name a file in it, such as {path}/notes.md, or choose "
            "another path."
        )
    require_parents(sizes, path)


def require_parents(files: Container[str], path: str) -> None:
    if parent := _file_above(files, path):
        raise MemoryRefused(f"{shown(parent)} is a file: nothing can be stored below it. Choose another path.")


def below(sizes: Sizes, path: str) -> list[str]:
    """The file at a path, or the files of the directory there. Raises MemoryRefused when there is neither."""
    files = [path] if path in sizes else sorted(file for file in sizes if path and is_within(file, path))
    if not files:
        raise not_found(sizes, path)
    return files


def moved(sizes: Sizes, old: str, new: str) -> dict[str, str]:
    """Which file gets which path. Raises MemoryRefused."""
    files = dict.fromkeys(below(sizes, old))
    if new == old or is_within(new, old):
        raise MemoryRefused(
            f"{shown(old)} cannot be moved to {shown(new)}, which is itself or inside of it: choose another path."
        )
    rest = {path: size for path, size in sizes.items() if path not in files}
    if new in sizes or is_directory(sizes, new):
        raise MemoryRefused(f"{shown(new)} exists already: choose another path, or delete it first.")
    require_parents(rest, new)
    return {file: new + file.removeprefix(old) for file in files}


def require_room(sizes: Sizes, changes: Mapping[str, int | None], limits: Limits) -> None:
    """Raises MemoryRefused when the files would be too large or too many. `changes`: sizes, None for what goes."""
    for path, size in changes.items():
        if size is not None and size > max(limits.max_file_bytes, sizes.get(path, 0)):
            raise MemoryRefused(
                f"{shown(path)} would have {size:,} bytes; a file has at most {limits.max_file_bytes:,}. "
                "Split it, or keep what matters."
            )
    after = {path: size for path, size in {**sizes, **changes}.items() if size is not None}
    # Where the limits were lowered, what takes no more than before goes on.
    if len(after) > max(limits.max_files, len(sizes)):
        raise MemoryRefused(
            f"The memory would have {len(after):,} files; it has at most {limits.max_files:,}. "
            "Delete some first, or write into one that there is."
        )
    if _total(after.values()) > max(limits.max_store_bytes, _total(sizes.values())):
        raise MemoryRefused(
            f"The memory would have {_total(after.values()):,} bytes; it has at most {limits.max_store_bytes:,}. "
            "Delete or shorten what is no longer needed."
        )


def not_found(sizes: Sizes, path: str) -> MemoryRefused:
    if parent := _file_above(sizes, path):
        return MemoryRefused(f"{shown(path)} does not exist: {shown(parent)} is a file. View that instead.")
    if not sizes:
        return MemoryRefused(
            f"{shown(path)} does not exist: nothing is saved yet. Create a file once there is a reason."
        )
    return MemoryRefused(f'{shown(path)} does not exist. View the root (path "") to see what there is.')


def _file_above(files: Container[str], path: str) -> str | None:
    return next((parent for parent in parents_of(path) if parent in files), None)


def _total(sizes: Iterable[int]) -> int:
    return sum(sizes)
