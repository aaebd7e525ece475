"""What a service says that does not start: the command in this process, for a process of its own takes seconds."""

import os
import signal
import sys
import tempfile

import pytest

from app import cli


def refused(capsys, *options, **settings):
    """The message of a command that ends by itself, as it does before anything runs."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TURNKEEPER_")]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(f"TURNKEEPER_{name.upper()}", str(value))
        patch.chdir(tempfile.gettempdir())  # Not in the checkout, where a .env may be.
        patch.setattr(sys, "argv", ["turnkeeper", *(options or ("serve", "--port", "0"))])
        patch.setattr(cli, "configure_logs", lambda: None)  # Those of this process are the tests' own.
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 1
    return capsys.readouterr().err
