"""The MCP inspector's command line: what a person tries a server with."""

import json
import os
import subprocess

import pytest

from tests.clients.conftest import KEY

PACKAGE = "@modelcontextprotocol/inspector-cli"


@pytest.fixture(scope="module")
def inspector(packages):
    """The command. Its version stands above its folder, where its own repository has it."""
    own = packages / "node_modules" / PACKAGE
    above = own.parent / "package.json"
    unfinished = above.with_suffix(f".{os.getpid()}")  # Another worker may do the same.
    unfinished.write_bytes((own / "package.json").read_bytes())
    unfinished.replace(above)
    return ["node", str(own / "build" / "cli.js"), "--cli"]


@pytest.fixture
def inspected(inspector, memory):
    def run(*arguments, **headers):
        given = [f"--header={name.replace('_', '-')}: {value}" for name, value in headers.items()]
        address = f"{memory.url.removesuffix('/v1')}/mcp"
        command = [*inspector, address, "--transport", "http", *given, "--method", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_the_inspector_lists_and_calls_the_tools(inspected, memory):
    as_user = {"Authorization": f"Bearer {KEY}", "X_User_Id": "inspected"}
    listed = inspected("tools/list", **as_user)
    assert listed.returncode == 0, listed.stderr
    names = [tool["name"] for tool in json.loads(listed.stdout)["tools"]]
    assert names[:2] == ["cross_session_search", "MemoryView"]
    arguments = ("--tool-arg", "path=a.md", "--tool-arg", "fileText=hello")
    called = inspected("tools/call", "--tool-name", "MemoryCreate", *arguments, **as_user)
    assert json.loads(called.stdout)["isError"] is False
    assert memory.http.get("/v1/memories/inspected/file", params={"path": "a.md"}).text == "hello"


def test_the_inspector_says_what_a_wrong_key_is_answered(inspected):
    refused = inspected("tools/list", Authorization="Bearer wrong")
    assert refused.returncode != 0
    assert "Send a service key or a token" in refused.stderr
