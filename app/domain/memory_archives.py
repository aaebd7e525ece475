"""A memory as a zip of its files: written as it is, read with suspicion."""

import io
import stat
import zipfile
from collections.abc import Mapping

from app.domain.errors import MemoryRefused
from app.domain.memory_paths import file_path
from app.domain.memory_trees import Limits

# Every archive of the same files is the same: no times are in it but the earliest that the format knows.
_TIME = (1980, 1, 1, 0, 0, 0)


def packed(files: Mapping[str, str]) -> bytes:
    """The zip of files by their paths."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _TIME), content.encode(), zipfile.ZIP_DEFLATED)
    return target.getvalue()


def unpacked(data: bytes, limits: Limits) -> dict[str, str]:
    """The files of a zip by their paths. Raises MemoryRefused for anything else than text files within the limits."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > limits.max_files:
                raise MemoryRefused(f"The archive has {len(entries):,} files; at most {limits.max_files:,} are kept.")
            files: dict[str, str] = {}
            left = limits.max_store_bytes
            for entry in entries:
                path = _path(entry)
                if path in files:
                    raise MemoryRefused(f"The archive holds {path!r} twice.")
                content = _content(archive, entry, min(left, limits.max_file_bytes))
                left -= len(content)
                files[path] = _text(path, content)
            return files
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise MemoryRefused("This is no zip archive that can be read: send a plain one, not encrypted.") from error


def _path(entry: zipfile.ZipInfo) -> str:
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
        raise MemoryRefused(f"{entry.filename!r} is no ordinary file: links and such are not kept.")
    return file_path(entry.filename)


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Never more than may be kept, whatever the archive says of its sizes."""
    with archive.open(entry) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise MemoryRefused(f"{entry.filename!r} is larger than what may be kept.")
    return content


def _text(path: str, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise MemoryRefused(f"{path!r} is not text in UTF-8.") from None
    if "\0" in text:
        raise MemoryRefused(f"{path!r} holds a NUL character: a memory holds text.")
    return text
