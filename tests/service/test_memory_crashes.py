"""`kill -9` in the middle of a stream of memory edits: each edit is whole, with its version, or is not there."""

import asyncio

import httpx
import pytest

from tests.service.process import Service

FILES = ("a.md", "notes/b.md", "notes/c.md")


class Editors:
    """One for each file, writing one text after the other; `texts`: what was acknowledged last, and what was sent."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[str | None, str | None]] = dict.fromkeys(FILES, (None, None))
        self.acknowledged = 0
        self.enough = asyncio.Event()

    async def run(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            await asyncio.gather(*(self._edit(http, path) for path in FILES))

    async def _edit(self, http: httpx.AsyncClient, path: str) -> None:
        while True:
            last, _ = self.texts[path]
            sent = f"text {self.acknowledged} of {path}\n"
            self.texts[path] = (last, sent)
            try:
                response = await http.put("/v1/memories/alice/file", params={"path": path}, content=sent)
            except httpx.HTTPError:
                return
            assert response.status_code in {200, 201}, response.text
            self.texts[path] = (sent, sent)
            self.acknowledged += 1
            if self.acknowledged % 10 == 0:
                self.enough.set()


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_killing_the_service_loses_no_acknowledged_edit(database_url, rounds):
    editors = Editors()
    for number in range(rounds):
        service = Service(database_url=database_url)
        address = await asyncio.to_thread(service.url)
        await check(address, editors)
        editing = asyncio.create_task(editors.run(address))
        await editors.enough.wait()
        await asyncio.sleep(0.003 * (number % 5))
        service.kill()
        await editing
        editors.enough.clear()
    service = Service(database_url=database_url)
    try:
        await check(await asyncio.to_thread(service.url), editors)
    finally:
        service.stop()


async def check(url: str, editors: Editors) -> None:
    async with httpx.AsyncClient(base_url=f"{url}/v1/memories/alice", timeout=20) as http:
        files = {file["path"]: file for file in (await http.get("/files")).json()["items"]}
        for path, may_be in editors.texts.items():
            if path not in files:
                assert may_be[0] is None, "what was acknowledged is there"
                continue
            content = await http.get("/file", params={"path": path})
            versions = (await http.get("/file/versions", params={"path": path})).json()["items"]
            assert content.text in may_be
            assert versions[0]["version"] == files[path]["version"], "the history ends with what is there"
            assert content.headers["ETag"].startswith(f'"{files[path]["version"]}-')
            editors.texts[path] = (content.text, content.text)
