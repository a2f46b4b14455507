"""What a run shows of names: in its log, on its terminal and in Prefect's UI."""

import logging
import sys
from functools import partial

import pytest
from markdown_it import MarkdownIt
from prefect.states import Completed

from flows import pipeline
from flows.server import RUN_LOGGERS
from flows.stages import StageRun
from flows.tasks import TaskResult  # whose import has the logs of runs escaped
from tests.hostile_names import HOSTILE, hidden_in


@pytest.mark.parametrize("name", RUN_LOGGERS)
def test_run_logs_are_escaped(name):
    logger = logging.getLogger(name)
    try:
        raise RuntimeError("\x1b]0;pwned\x07")
    except RuntimeError:
        record = logger.makeRecord(name, logging.ERROR, "", 0, "%s", ("".join(HOSTILE),), sys.exc_info())
    assert logger.filter(record)  # as before each record is handled
    text = logging.Formatter().format(record)
    assert not hidden_in(record.getMessage()) and not hidden_in(text)
    assert text.count("RuntimeError: \\x1b]0;pwned\\x07") == 1


@pytest.mark.parametrize("name", RUN_LOGGERS)
def test_run_logs_hold_no_password(name):
    logger, address = logging.getLogger(name), "http://me:SECRET@host/api?token=SECRET"
    try:
        raise RuntimeError(f"refused: {address}")
    except RuntimeError:
        record = logger.makeRecord(name, logging.ERROR, "", 0, "No answer from %s", (address,), sys.exc_info())
    assert logger.filter(record)
    text = logging.Formatter().format(record)
    assert "SECRET" not in text and text.count("http://***@host/api?token=***") == 2


@pytest.mark.parametrize(
    ("error", "level", "is_shown"),
    [
        (FileNotFoundError("A table must be a file."), logging.INFO, False),
        (ValueError("`steps` must be at least 1."), logging.INFO, False),
        (ValueError("`steps` must be at least 1."), logging.DEBUG, True),
        (KeyError("steps"), logging.INFO, True),
    ],
)
def test_error_of_the_user_is_a_line_without_a_traceback(error, level, is_shown, request):
    logger = logging.getLogger(RUN_LOGGERS[0])
    request.addfinalizer(partial(logger.setLevel, logger.level))
    logger.setLevel(level)
    try:
        raise error
    except Exception:
        record = logger.makeRecord(logger.name, logging.ERROR, "", 0, "Encountered: %r", (error,), sys.exc_info())
    assert logger.filter(record)
    text = logging.Formatter().format(record)
    assert text.startswith("Encountered: ") and ("Traceback" in text) is is_shown


def test_paths_in_artifacts_are_text(tmp_path, monkeypatch):
    """Prefect's UI renders the cells of tables, descriptions and documents as Markdown."""
    shown = []
    monkeypatch.setattr(
        pipeline, "create_markdown_artifact", lambda text, **given: shown.extend([text, *given.values()])
    )
    monkeypatch.setattr(pipeline, "create_table_artifact", lambda table, **_: shown.extend(map(str, table[0].values())))
    for name in HOSTILE:
        folder = tmp_path / name.replace("/", "")
        folder.mkdir()
        (folder / pipeline.RESULTS).write_text("| model |\n|---|\n| ours |\n")
        (folder / pipeline.REPORT).write_text("<p>No drawing.</p>")
        pipeline.show_report(folder)
        stage = StageRun("evaluation", "0", folder, ())
        pipeline.show_stages([TaskResult(stage, Completed(), 0.0)])
    parser = MarkdownIt("commonmark").enable("table")
    for text in shown:
        inline = [child.type for token in parser.parse(text) for child in token.children or ()]
        assert set(inline) <= {"text", "text_special", "code_inline"} and not hidden_in(text)
