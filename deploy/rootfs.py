"""A Dockerfile's stages, built in folders instead of by an engine; the last one runs as a container of it would."""

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from deploy.dockerfile import Instruction, Stage

ROOT = Path(__file__).parents[1]
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Debian's pip keeps out of Debian's Python unless told otherwise; the image's Python has no such rule.
_NETWORK = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_CERT": str(_CERTIFICATES), "SSL_CERT_FILE": str(_CERTIFICATES)} | {
    name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ
}


@dataclass(frozen=True)
class Image:
    """The last stage, in a folder that stands for the root of a container."""

    stage: Stage
    root: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def user(self) -> str:
        return self.stage.last("USER").value

    @property
    def work(self) -> str:
        return self.stage.last("WORKDIR").value

    def command(self, *words: str) -> list[str]:
        """The command as an engine runs it: as the image's user, with its variables and no others, harmless."""
        user, group = self.user.split(":")
        harmless = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        environment = _environment(self.stage) | self.settings
        return ["chroot", str(self.root), "setpriv", *harmless, *_clean(self.work, environment), *words]

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), check=False, capture_output=True, text=True, timeout=timeout)


def base_of(tag: str, folder: Path) -> Path:
    """The file system that the image's name stands for: `python:3.13-slim-trixie`."""
    found = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", tag)
    if found is None:
        sys.exit(f"{tag} is no Python on a Debian release.")
    version, release = found.groups()
    if not (folder / "usr").exists():
        packages = "--include=python3,python3-pip,ca-certificates"
        call("debootstrap", "--variant=minbase", packages, release, folder, quiet=True)
    python = folder / f"usr/bin/python{version}"
    if not python.exists():
        sys.exit(f"Debian {release} has no Python {version}.")
    link = folder / "usr/local/bin/python"
    if not link.is_symlink():
        link.symlink_to(f"/usr/bin/python{version}")
    tell(f"an empty Debian {release} with Python {version} for {tag}")
    return folder


def build(stage: Stage, base: Path, root: Path, built: dict[str, Path]) -> Path:
    call("cp", "--archive", base, root)
    # Names and certificates of this machine's network, for the time of the build.
    for file in (Path("/etc/resolv.conf"), _CERTIFICATES):
        shutil.copyfile(file, root / file.relative_to("/"))
    work, environment = "/", {"PATH": _PATH}
    for instruction in stage.instructions:
        match instruction.name:
            case "WORKDIR":
                work = instruction.value
                (root / work.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENV":
                environment |= _variables(instruction, environment)
            case "COPY":
                _copy(instruction, root, work, built)
            case "RUN":
                started = time.monotonic()
                call("chroot", root, *_clean(work, environment | _NETWORK), *instruction.words, quiet=True)
                tell(f"{stage.name}: RUN {instruction.value} ({time.monotonic() - started:.0f} s)")
    return root


def _copy(instruction: Instruction, root: Path, work: str, built: dict[str, Path]) -> None:
    *sources, target = instruction.value.split()
    origin = built[instruction.flags["from"]] if "from" in instruction.flags else ROOT
    into = root / os.path.join(work, target).lstrip("/")  # noqa: PTH118
    for source in sources:
        found = origin / source.lstrip("/")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if origin == ROOT else None
            shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy2(found, into)
    tell(f"COPY {instruction.value}")


def mounted(root: Path, mount: Path, stack: ExitStack) -> Path:
    """The image as the compose file runs it: nothing in it can be written but /tmp."""
    mount.mkdir()
    call("mount", "--bind", root, mount)
    call("mount", "-o", "remount,bind,ro", mount)
    call("mount", "-t", "tmpfs", "tmpfs", mount / "tmp")
    stack.callback(call, "umount", "--recursive", mount)
    call("mount", "-t", "proc", "proc", mount / "proc")
    return mount


def _variables(instruction: Instruction, known: dict[str, str]) -> dict[str, str]:
    pairs = re.findall(r"(\w+)=(\S+)", instruction.value)
    return {name: re.sub(r"\$(\w+)", lambda found: known[found[1]], value) for name, value in pairs}


def _environment(stage: Stage) -> dict[str, str]:
    environment = {"PATH": _PATH}
    for instruction in stage.instructions:
        if instruction.name == "ENV":
            environment |= _variables(instruction, environment)
    return environment


def _clean(work: str, environment: dict[str, str]) -> list[str]:
    pairs = [f"{name}={value}" for name, value in environment.items()]
    return ["env", "--ignore-environment", f"--chdir={work}", *pairs]


def call(*command: str | Path, quiet: bool = False) -> str:
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE if quiet else None)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}).\n{done.stdout or ''}")
    return done.stdout or ""


def tell(text: str) -> None:
    print(f"ok  {text}", flush=True)
