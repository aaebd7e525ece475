"""The demo runs from nothing to its end and tells what it promises."""

import subprocess
import sys


def test_the_demo_tells_the_story():
    command = [sys.executable, "-c", "from app.cli import main; main()", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "the story is the only output"
    told = done.stdout
    for chapter in ("Remember", "Windows keep turns whole", "Recall inside a session", "Recall across sessions"):
        assert chapter in told
    window = told[told.index("last_n=4") :].splitlines()[1]
    assert window.strip().startswith("user: Check crumbandcrust"), "the window begins where the turn does"
    assert "mara-march" in told[told.index("cross_session_search") :]
    assert "409: Stored with another message" in told
    assert "scripted" in told
    summary = told[told.index("archived 8 events") : told.index("Recall of what was compacted away")]
    assert "Ilse plays the accordion" in summary
    assert "2231" not in summary
    assert "receipt 2231" in told[told.index("Recall of what was compacted away") :]
    memory = told[told.index("Long-term memory") :]
    eaten = [line.strip() for line in memory.splitlines() if "Mara eats" in line]
    assert eaten == ["Mara eats no nuts.", "Mara eats no hazelnuts.", "Mara eats no nuts."]
