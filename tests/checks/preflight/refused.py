"""Run a command that must be refused."""

from pathlib import Path

import pytest

from keras_bert_flow.cli import app
from keras_bert_flow.cli.application import explain


def assert_refused(arguments: list[str], words: str, place: Path, capsys: pytest.CaptureFixture) -> None:
    before = sorted(place.rglob("*"))
    with pytest.raises(Exception, match=".") as caught:
        app(arguments, standalone_mode=False)
    assert explain(caught.value) == 2
    error = capsys.readouterr().err
    assert error.startswith("kbf: ") and error.count("kbf: ") == 1 and error.count("\n") == 1
    assert "Errno" not in error and len(error) < 700
    with pytest.raises(ValueError, match=words):
        raise ValueError(error)
    assert sorted(place.rglob("*")) == before
