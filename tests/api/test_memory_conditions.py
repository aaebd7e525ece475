"""Conditional requests on memory files: tags, lists of them, weak and malformed ones."""

import httpx
import pytest

from tests.service.process import service

FILE = "/v1/memories/alice/file"


async def put(client, text, path="a", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.put(FILE, params={"path": path}, content=text.encode(), headers=named)


async def send(client, method, path="a", **headers):
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return await client.request(method, FILE, params={"path": path}, headers=named)


async def test_a_list_of_tags_matches_when_one_of_them_does(client):
    tag = (await put(client, "1")).headers["ETag"]
    assert (await put(client, "2", If_Match='"x", "y,z"')).status_code == 412
    assert (await put(client, "2", If_Match=f' "x" ,, {tag},"a,b"')).status_code == 200
    assert (await put(client, "3", If_Match=tag)).status_code == 412


async def test_a_weak_tag_never_matches_strongly(client):
    tag = (await put(client, "1")).headers["ETag"]
    assert (await put(client, "2", If_Match=f"W/{tag}")).status_code == 412
    assert (await send(client, "GET", If_Match=f"W/{tag}")).status_code == 412
    assert (await send(client, "GET", If_None_Match=f"W/{tag}")).status_code == 304


async def test_a_star_asks_for_a_file_whichever(client):
    assert (await put(client, "1", If_Match="*")).status_code == 412
    assert (await put(client, "1")).status_code == 201
    assert (await put(client, "2", If_Match=" * ")).status_code == 200
    assert (await send(client, "DELETE", If_Match="*")).status_code == 204
    assert (await send(client, "DELETE", If_Match="*")).status_code == 412


async def test_what_who_reads_has_already_is_not_sent_again(client):
    tag = (await put(client, "1")).headers["ETag"]
    for method in ("GET", "HEAD"):
        answer = await send(client, method, If_None_Match=f'"x", {tag}')
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", tag)
        assert (await send(client, method, If_None_Match="*")).status_code == 304
        assert (await send(client, method, If_None_Match='"x"')).status_code == 200
    assert (await put(client, "2", If_None_Match=f"W/{tag}")).status_code == 412
    assert (await put(client, "2", If_None_Match='"x"')).status_code == 200


def test_a_head_says_what_a_get_would(database_url):
    with service(database_url=database_url) as running, httpx.Client(base_url=running.url()) as http:
        http.put(FILE, params={"path": "a"}, content="é\n".encode())
        got, head = (http.request(method, FILE, params={"path": "a"}) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (200, b"")
        for name in ("ETag", "Content-Length", "Content-Type"):
            assert head.headers[name] == got.headers[name]
        assert http.head(FILE, params={"path": "b"}).status_code == 404


MALFORMED = ["7", '"7', '7"', '"7" "8"', '""7""', "*, *", '*, "7"', "w/7", 'w/"7"', "", ",", '"a" b', '"é ü"', "W/*"]


@pytest.mark.parametrize("header", ["If_Match", "If_None_Match"])
@pytest.mark.parametrize("value", MALFORMED)
async def test_what_is_no_list_of_tags_is_told(client, header, value):
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = await send(client, method, **{header: value.encode("latin-1")})
        assert answer.status_code == 422, method
        if method != "HEAD":
            assert answer.json()["errors"][0]["loc"] == ["header", header.replace("_", "-")]


async def test_several_header_lines_are_one_list(client):
    tag = (await put(client, "1")).headers["ETag"]
    lines = [("If-Match", '"x"'), ("If-Match", tag)]
    assert (await client.request("GET", FILE, params={"path": "a"}, headers=lines)).status_code == 200


async def test_a_version_of_a_list_may_be_named_as_it_is(client):
    await put(client, "1")
    [file] = (await client.get("/v1/memories/alice/files")).json()["items"]
    assert (await put(client, "2", If_Match=f'"{file["version"]}"')).status_code == 200


@pytest.mark.parametrize("ends", ["deleted", "purged", "forgotten", "erased"])
async def test_a_file_that_is_made_anew_has_tags_of_its_own(client, ends):
    """The same text under the same name at the same version number is another file all the same."""
    known = {(await put(client, text)).headers["ETag"] for text in ("1", "2")}
    if ends == "erased":
        await client.delete("/v1/users/alice")
    else:
        params = {"path": "" if ends == "forgotten" else "a", "purge": ends != "deleted"}
        assert (await client.delete(FILE, params=params)).status_code == 204
    for text in ("1", "2"):
        tag = (await put(client, text)).headers["ETag"]
        assert tag not in known
        assert (await put(client, text, If_Match=", ".join(known))).status_code == 412
