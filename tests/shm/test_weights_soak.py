"""Weights under random kills for a while: the program `weights_soak.py`."""

import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("weights_soak.py")


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.timeout(500)
def test_the_memory_of_weights_stays_flat_while_trainers_and_readers_are_killed():
    command = [sys.executable, str(PROGRAM), "--minutes", "5", "--every", "10"]
    faulthandler.cancel_dump_traceback_later()  # a run of minutes does not hang
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
