"""Put the stand-in in the place of the commands, in every process that has this folder on its path."""

import sys
from pathlib import Path

from flows import stages

stages.COMMAND = (sys.executable, str(Path(__file__).parents[1] / "fake_command.py"))
