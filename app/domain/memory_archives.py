"""A memory as a zip of its files: written as it is, read with suspicion."""

import io
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from app.domain.errors import MemoryRefused
from app.domain.memory_paths import MAX_PATH_LENGTH, file_path, normalised, quoted
from app.domain.memory_trees import Limits

# Every archive of the same files is the same: no times are in it but the earliest that the format knows.
_TIME = (1980, 1, 1, 0, 0, 0)

# What a zip has beside the content of a file: headers of 30 and 46 bytes, its name in both, fields that programs add.
_BYTES_BESIDE = 30 + 46 + 2 * 4 * MAX_PATH_LENGTH + 200

# Each central header begins so; other entries than files that are kept may be a few times as many as those.
_CENTRAL_HEADER = b"PK\1\2"
_ENTRIES_PER_FILE = 5

_LOCAL_HEADER = 30
_ENCRYPTED = 0x1
_NAME_IN_UTF8 = 0x800

# Of these the library decompresses no more than it is asked for.
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}

_UNREADABLE = "This is no zip archive that can be read, or a damaged one: send a plain zip of text files."


def packed(files: Mapping[str, str]) -> bytes:
    """The zip of files by their paths."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _TIME), content.encode(), zipfile.ZIP_DEFLATED)
    return target.getvalue()


def largest_archive(limits: Limits) -> int:
    """Bytes that a zip of a full store can have, whichever of the methods it uses."""
    # Deflate adds 5 bytes to each block of 16 KiB or more that it cannot compress.
    return limits.max_store_bytes + limits.max_store_bytes // 1024 + (limits.max_files + 1) * _BYTES_BESIDE


def unpacked(data: bytes, limits: Limits) -> dict[str, str]:
    """The files of a zip by their paths. Raises MemoryRefused for anything else than text files within the limits."""
    _require_few_entries(data, limits)
    with _reading():
        archive = zipfile.ZipFile(io.BytesIO(data))
    with archive:
        entries = [entry for entry in archive.infolist() if _is_kept(entry)]
        if len(entries) > limits.max_files:
            raise MemoryRefused(f"The archive has {len(entries):,} files; at most {limits.max_files:,} are kept.")
        _require_apart(entries)
        files: dict[str, str] = {}
        left = limits.max_store_bytes
        for entry in entries:
            path = file_path(_name(entry))
            if path in files:
                raise MemoryRefused(f"The archive holds {quoted(path)} twice: leave out one of both.")
            content = _content(archive, entry, path, min(left, limits.max_file_bytes))
            left -= len(content)
            files[path] = _text(path, content)
        return files


@contextmanager
def _reading() -> Iterator[None]:
    """Around the library: whatever it raises comes from what it reads."""
    try:
        yield
    except Exception as error:
        # Of damaged bytes: BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
        # ValueError (UnicodeDecodeError, seeks before the start), OverflowError, OSError; more with each release.
        raise MemoryRefused(_UNREADABLE) from error


def _require_few_entries(data: bytes, limits: Limits) -> None:
    """The library builds an object for each entry before anybody can look: for hundreds of thousands if need be."""
    count = data.count(_CENTRAL_HEADER)
    if count > _ENTRIES_PER_FILE * limits.max_files + 100:
        raise MemoryRefused(f"The archive has {count:,} entries; at most {limits.max_files:,} files are kept.")


def _is_kept(entry: zipfile.ZipInfo) -> bool:
    """Whether it is a file, and none that an operating system adds."""
    name = _name(entry)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    names = name.rstrip("/").split("/")
    if names[0] == "__MACOSX" or names[-1] == ".DS_Store":
        return False
    if name.endswith("/") or kind == stat.S_IFDIR:
        normalised(name)
        return False
    if kind not in {0, stat.S_IFREG}:
        raise MemoryRefused(f"{quoted(name)} is no ordinary file: links and such are not kept. Leave it out.")
    if entry.flag_bits & _ENCRYPTED:
        raise MemoryRefused(f"{quoted(name)} is encrypted: send the archive without a password.")
    if entry.compress_type not in _METHODS:
        raise MemoryRefused(f"{quoted(name)} is compressed by a rare method: send it stored, or by deflate.")
    return True


def _name(entry: zipfile.ZipInfo) -> str:
    """The name as it is in the archive: the library cuts it at a NUL. Many programs write UTF-8 without saying so."""
    name = entry.orig_filename
    if entry.flag_bits & _NAME_IN_UTF8:
        return name
    try:
        return name.encode("cp437").decode()
    except UnicodeError:
        return name


def _require_apart(entries: Sequence[zipfile.ZipInfo]) -> None:
    """Entries that share their bytes are how a small archive makes much work."""
    end = 0
    for entry in sorted(entries, key=lambda one: one.header_offset):
        if entry.header_offset < end:
            raise MemoryRefused(f"{quoted(_name(entry))} shares its bytes with another file. {_UNREADABLE}")
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str, most: int) -> bytes:
    """Never more than may be kept, whatever the archive says of its sizes."""
    with _reading(), archive.open(entry) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise MemoryRefused(f"{quoted(path)} is too large: at most {most:,} bytes are left for it.")
    if len(content) != entry.file_size:
        raise MemoryRefused(f"{quoted(path)} has another size than the archive says. {_UNREADABLE}")
    return content


def _text(path: str, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise MemoryRefused(f"{quoted(path)} is not text in UTF-8: convert it, or leave it out.") from None
    if "\0" in text:
        raise MemoryRefused(f"{quoted(path)} holds a NUL character: a memory holds text. Leave it out.")
    return text
