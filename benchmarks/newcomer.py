"""The way of a newcomer, timed: a fresh clone, what the README says, a conversation that is remembered.

    uv run python -m benchmarks.newcomer [REPOSITORY]

In place of the LLM stands a script (`tests/upstream.py`), which tells what it was asked. Nothing is taken from
caches, and a uv that is there already is not used, unless it lies beside the system's own programs.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.upstream import Answer, Script, scripted_upstream

REPOSITORY = Path(__file__).parents[1]
ADDRESS = "http://127.0.0.1:8088"
UPSTREAM = "https://api.openai.com/v1"
ANSWERS = ("Lisbon in May is lovely.", "You are going to Lisbon, in May.")
_PATIENCE_SECONDS = 900


def main(repository: str) -> None:
    with tempfile.TemporaryDirectory() as folder, scripted_upstream() as script:
        script.reset(*(Answer(text=text) for text in ANSWERS))
        began = time.monotonic()
        walk(repository, Path(folder), script)
        print(f"| all of it | {time.monotonic() - began:.1f} s |")


def walk(repository: str, folder: Path, script: Script) -> None:
    clone, client = folder / "turnkeeper", folder / "client"
    environment = untouched(folder)
    print("| | |\n|---|---|")
    with timed("`git clone`"):
        subprocess.run(["git", "clone", "--quiet", repository, clone], check=True)
    readme = (clone / "README.md").read_text()
    with running(clone, environment | exported(readme, script.url)) as url:
        with timed("`pip install openai`, into an environment of its own"):
            subprocess.run([sys.executable, "-m", "venv", client], env=environment, check=True)
            subprocess.run([client / "bin/pip", "install", "--quiet", "openai"], env=environment, check=True)
        with timed("the README's program: two chats"):
            program = block(readme, "python", "import openai").replace(ADDRESS, url)
            answer = output([client / "bin/python", "-c", program], environment)
        require_remembered(answer, script)
        with timed("the README's search"):
            found = output(["sh", "-c", block(readme, "sh", "curl").replace(ADDRESS, url)], environment)
        assert "I am planning a trip to Lisbon in May." in found, found


@contextmanager
def timed(step: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"| {step} | {time.monotonic() - began:.1f} s |", flush=True)


def untouched(folder: Path) -> dict[str, str]:
    """The environment of somebody who has Python and git, and nothing of this project."""
    others = ("TURNKEEPER_", "VIRTUAL_ENV", "PYTHON", "UV_CACHE", "UV_COMPILE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    caches = {"UV_CACHE_DIR": str(folder / "cache"), "PIP_NO_CACHE_DIR": "1"}
    return {**kept, **caches, "PATH": "/usr/local/bin:/usr/bin:/bin", "TURNKEEPER_PORT": "0"}


def exported(readme: str, upstream: str) -> dict[str, str]:
    """What the README has its reader export, with the script's address in place of the LLM's."""
    [line] = [line for line in readme.splitlines() if line.startswith("export ")]
    settings = dict(re.findall(r"(\w+)=(\S+)", line))
    assert UPSTREAM in settings.values(), line
    return {name: value.replace(UPSTREAM, upstream) for name, value in settings.items()}


@contextmanager
def running(clone: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Where the service listens."""
    service = subprocess.Popen(["./run", "serve"], cwd=clone, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with timed("`./run serve` until it listens: uv, the dependencies, PostgreSQL"):
            url = listening(service)
        yield url
    finally:
        with timed("Ctrl-C until it has ended"):
            service.send_signal(signal.SIGINT)
            service.communicate(timeout=_PATIENCE_SECONDS)


def listening(service: subprocess.Popen[str]) -> str:
    said = []
    for line in service.stderr or ():
        said.append(line)
        if found := re.search(r"listens on (http://\S+)", line):
            return found[1]
    raise AssertionError("The service did not start:\n" + "".join(said))


def block(readme: str, language: str, beginning: str) -> str:
    code = re.findall(rf"^```{language}\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    [found] = [each for each in code if each.startswith(beginning)]
    return str(found)


def output(command: list[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE_SECONDS, check=True
    )
    return done.stdout.strip()


def require_remembered(answer: str, script: Script) -> None:
    """The second request named only its question; the LLM was sent the first one and its answer as well."""
    sent = [(message["role"], message["content"]) for message in script.requests[-1]["messages"]]
    first, second = ("user", "I am planning a trip to Lisbon in May."), ("user", "Where am I going, and when?")
    assert sent == [first, ("assistant", ANSWERS[0]), second], sent
    assert answer == ANSWERS[1], answer


if __name__ == "__main__":
    main(*(sys.argv[1:] or [str(REPOSITORY)]))
