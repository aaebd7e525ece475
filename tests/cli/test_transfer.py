"""`turnkeeper import` and `export`, as an operator uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.fixture
def turnkeeper(database_url, tmp_path):
    """Runs the command in an empty folder on a fresh database."""

    def run(*arguments):
        command = [sys.executable, "-c", "from app.cli import main; main()", *map(str, arguments)]
        environment = {"TURNKEEPER_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)

    return run


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_is_exported_is_imported_again(turnkeeper, tmp_path):
    write(tmp_path / "talk.jsonl", *TALK)
    done = turnkeeper("import", "talk.jsonl", "--user", "alice")
    assert done.returncode == 0, done.stderr
    assert b"1 sessions, 2 events added, 0 already there, 0 bad records" in done.stderr
    assert turnkeeper("export", "--output", "all.ndjson").returncode == 0
    assert not (tmp_path / "all.ndjson.part").exists()
    exported = turnkeeper("export", "--user", "alice").stdout
    assert exported == (tmp_path / "all.ndjson").read_bytes()
    assert len(exported.splitlines()) == 3
    again = turnkeeper("import", "all.ndjson", "talk.jsonl")
    assert again.returncode == 2, "talk.jsonl is alice's by now"
    assert b"talk.jsonl:1: Session 'talk' does not belong to user 'talk'." in again.stderr
    assert b"1 sessions, 0 events added, 2 already there, 1 bad records, 2 events left out" in again.stderr


def test_bad_records_are_told_with_file_and_line_and_the_rest_is_imported(turnkeeper, tmp_path):
    write(tmp_path / "[odd] name.jsonl", TALK[0], {"role": "robot"}, TALK[1])
    done = turnkeeper("import", "[odd] name.jsonl", "--quiet")
    assert done.returncode == 2
    assert done.stderr.startswith(b"[odd] name.jsonl:2: message.role: ")
    assert len(done.stderr.splitlines()) == 1
    assert len(turnkeeper("export").stdout.splitlines()) == 3


def test_files_that_cannot_be_read_are_told_and_the_others_imported(turnkeeper, tmp_path):
    write(tmp_path / "talk.jsonl", *TALK)
    (tmp_path / "diary.txt").write_text("Dear diary,")
    (tmp_path / "empty.jsonl").write_text("\n")
    done = turnkeeper("import", "nowhere.json", tmp_path, "diary.txt", "empty.jsonl", "talk.jsonl", "-q")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "nowhere.json: It cannot be read: No such file or directory.",
        f"{tmp_path}: It cannot be read: Is a directory.",
        "diary.txt: It looks like none of the formats; name one: --format turnkeeper|openai|chatgpt|locomo.",
    ]
    assert len(turnkeeper("export").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "bad.jsonl"], b"bad.jsonl:1: "),
        (["import", "own.ndjson", "--user", "x"], b"own.ndjson: An export names its users and sessions itself"),
        (["export", "--session", "nowhere"], b"0 sessions and 0 events exported."),
        (["export", "--output", "no/such/folder"], b"No such file or directory"),
    ],
)
def test_what_does_nothing_fails(turnkeeper, tmp_path, arguments, said):
    write(tmp_path / "bad.jsonl", {"role": "robot"})
    write(tmp_path / "own.ndjson", {"kind": "session"})
    done = turnkeeper(*arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_ids_are_checked_before_anything_is_done(turnkeeper):
    done = turnkeeper("import", "x", "--user", "shared:x")
    assert done.returncode == 2
    assert b"does not begin with 'shared:'" in done.stderr
