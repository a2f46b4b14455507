"""What a person sees of a run: plain lines into a pipe, a bar on a terminal."""

import io
import threading

from rich.console import Console

from keras_bert_flow.console import progress, terminal
from keras_bert_flow.console.progress import TimeLeft, counting_progress, describe_line, training_progress, working
from keras_bert_flow.text.objectives.objective import find_objective
from tests.patience import PATIENCE_SECONDS, wait_until

LINE = {
    "step": 400,
    "loss": 4.5,
    "masked_lm_loss": 3.75,
    "masked_lm_accuracy": 0.25,
    "next_sentence_loss": 0.75,
    "next_sentence_accuracy": 0.5,
    "tokens_per_second": 12_345,
    "flops_per_second": 1,
    "elapsed_seconds": 100.0,
}
HELD_OUT = {"held_out_masked_lm_loss": 3.5, "held_out_masked_lm_accuracy": 0.375}


def test_line_tells_both_heads_speed_and_time_left():
    assert describe_line(LINE, 3725.4) == (
        "loss 4.500, masked LM 3.750, accuracy 0.250, next sentence 0.750, accuracy 0.500, "
        "tokens per second 12,345, 1:02:05 left"
    )
    assert describe_line({"step": 1, "run": "random/seed-1", "loss": 1.0, "dev_accuracy": 0.5}) == (
        "random/seed-1, loss 1.000, dev accuracy 0.500"
    )


def test_every_part_is_called_by_what_is_learnt():
    """The head for sentence order has the output and the losses of that for next sentences."""
    for objective, words in (("mlm_nsp", "next sentence"), ("mlm_sop", "sentence order")):
        line = find_objective(objective).name_parts({"step": 1, "mlm_loss": 2.0, "nsp_loss": 0.5, "nsp_accuracy": 0.75})
        assert describe_line(line) == f"masked LM 2.000, {words} 0.500, accuracy 0.750"
    line = find_objective("rtd").name_parts({"rtd_loss": 0.5, "rtd_accuracy": 0.75, "words_loss": 3.0})
    assert describe_line(line) == "replaced token 0.500, accuracy 0.750, bag of words 3.000"
    # As logged: the metrics of Keras come before the losses.
    line = find_objective("rtd").name_parts(
        {"mlm_accuracy": 0.25, "rtd_accuracy": 0.75, "mlm_loss": 4, "rtd_loss": 0.5}
    )
    assert describe_line(line) == "masked LM 4, accuracy 0.250, replaced token 0.500, accuracy 0.750"


def test_what_is_held_out_is_told_of_every_part():
    line = {"held_out_masked_lm_loss": 3.5, "held_out_masked_lm_perplexity": 33.1, "held_out_unigram_accuracy": 0.1}
    line |= {"held_out_replaced_token_loss": 0.25, "held_out_replaced_token_accuracy": 0.875}
    assert describe_line(line) == "held-out masked LM 3.500, held-out replaced token 0.250, accuracy 0.875"


def test_time_left_is_that_of_the_last_steps():
    clock = TimeLeft(1000)
    assert clock.estimate({"step": 100, "elapsed_seconds": 50.0}) == 450
    assert clock.estimate({"step": 200, "elapsed_seconds": 60.0}) == 80  # ten steps a second by now
    assert clock.estimate({"step": 1000, "elapsed_seconds": 140.0}) == 0
    assert TimeLeft(None).estimate(LINE) is None


def test_time_left_is_unknown_when_another_run_begins():
    clock = TimeLeft(1000)
    clock.estimate({"step": 100, "elapsed_seconds": 50.0})
    assert clock.estimate({"step": 50, "elapsed_seconds": 60.0}) is None


def test_pipe_gets_plain_lines(capsys):
    with training_progress(1600) as report:
        report(LINE)
        report(LINE | {"step": 500, "elapsed_seconds": 101.0})  # too soon for another line
        report(LINE | {"step": 600, "elapsed_seconds": 102.0} | HELD_OUT)
        report(LINE | {"step": 1600, "elapsed_seconds": 112.0})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 400 of 1,600", "step 600 of 1,600", "step 1,600 of 1,600"]
    assert "held-out masked LM 3.500, accuracy 0.375" in lines[1]
    assert [line.rpartition(", ")[2] for line in lines] == ["0:05:00 left", "0:00:10 left", "0:00:00 left"]


def test_terminal_gets_a_bar_with_the_same_figures(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=200))
    with training_progress(1600) as report:
        report(LINE)
    assert " 400/1600" in screen.getvalue()
    assert "next sentence 0.750" in screen.getvalue() and "0:05:00 left" in screen.getvalue()


def test_narrow_terminal_shows_all_in_several_rows(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=60))
    with training_progress(1600) as report:
        report(LINE)
    for words in (" 400/1600", "next sentence", "tokens per second", "left"):
        assert words in screen.getvalue()


def test_count_is_shown_on_the_terminal_of_errors_alone(monkeypatch, capsys):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    with counting_progress(10) as advance:
        advance(4)
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=stderr, width=80))
    with counting_progress(10) as advance:
        advance(2.5)
        advance(1.5)
    assert " 4/10" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_count_without_a_terminal_has_lines_now_and_then(monkeypatch, capsys):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    clock = iter([0.0, 1.0, 6.0, 7.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with counting_progress(40e6, "Examining t.txt", are_bytes=True) as advance:
        for _ in range(4):
            advance(5e6)
    assert capsys.readouterr().err.splitlines() == [
        "Examining t.txt: 40.0 MB",
        "Examining t.txt: 10.0 MB of 40.0 MB, 0:00:18 left",
        "Examining t.txt: 20.0 MB of 40.0 MB, 0:00:20 left",
    ]


def test_work_without_a_count_is_told_at_once_and_from_time_to_time(monkeypatch, capsys):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.05)
    measured = threading.Event()

    def measure():
        measured.set()
        return "3.0 MB written"

    with working("Records of \x1b[red]", measure):
        assert capsys.readouterr().err == "Records of \\x1b[red]\n"
        assert measured.wait(PATIENCE_SECONDS)
        wait_until(lambda: "so far" in capsys.readouterr().err)
    with working("Records"):
        pass
    assert capsys.readouterr().out == ""


def test_work_on_a_terminal_is_a_line_that_goes_away(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setenv("KBF_PROGRESS", "on")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=stderr, width=80))
    with working("Loading Keras [1]"):
        pass
    assert "Loading Keras [1]" in screen.getvalue()
    assert screen.getvalue().rstrip().endswith("\x1b[2K")


def test_work_is_told_only_if_it_is_long(monkeypatch, capsys):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    monkeypatch.setattr(terminal, "TOLD_AFTER_SECONDS", 0.0)
    told = threading.Event()
    monkeypatch.setattr(terminal, "show", lambda line, stream: told.set())
    with terminal.told_if_long("Fitting"):
        assert told.wait(PATIENCE_SECONDS)
    monkeypatch.setattr(terminal, "TOLD_AFTER_SECONDS", 3600.0)
    before = threading.active_count()
    told.clear()
    with terminal.told_if_long("Fitting"):
        assert threading.active_count() == before + 1
    wait_until(lambda: threading.active_count() == before)
    monkeypatch.setenv("KBF_PROGRESS", "off")
    with terminal.told_if_long("Fitting"):
        assert threading.active_count() == before
    assert not told.is_set()


def test_nothing_is_told_where_that_is_not_wanted(monkeypatch, capsys):
    monkeypatch.setenv("KBF_PROGRESS", "off")
    with working("Loading Keras"), counting_progress(10, "Asking") as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_names_of_runs_are_text_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=400))
    with training_progress(10) as report:
        report({"step": 1, "loss": 1.0, "run": "[red]x[/red] [/y] \x1b]0;pwned\x07"})
    assert "[red]x[/red] [/y] \\x1b]0;pwned\\x07, loss" in screen.getvalue()
    assert "\x1b]" not in screen.getvalue()
