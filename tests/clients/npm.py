"""The npm packages of the tests: installed from the lock, once for each lock, outside the checkout."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MANIFESTS = [HERE / "package.json", HERE / "package-lock.json"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnkeeper-tests"
NPM_CI = ["npm", "ci", "--omit=peer", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1"]
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "ETIMEDOUT")


def installed() -> Path:
    """The folder where they are. Skips the test where there is no npm, or no network on the first run."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("Node.js and npm are not installed")
    lock = b"".join(path.read_bytes() for path in MANIFESTS)
    folder = CACHE / f"npm-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            _install(made := Path(unfinished) / folder.name)
            made.rename(folder)
    return folder


def _install(folder: Path) -> None:
    folder.mkdir()
    for path in MANIFESTS:
        shutil.copy(path, folder)
    done = subprocess.run(NPM_CI, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if any(code in done.stderr for code in UNREACHABLE):
        pytest.skip("the npm registry cannot be reached")
    assert done.returncode == 0, done.stderr
