"""The progress bar of a stage, from the lines that its command prints."""

import pytest

from flows import tasks
from flows.tasks import StageProgress, parse_share
from keras_bert_flow.console.progress import training_progress


@pytest.mark.parametrize(
    "line, share",
    [
        ("step 1,200 of 4,800: loss 6.913, 0:12:30 left", 25),
        (
            "Records of 64 tokens an instance, part 2 of 4, tokenizing: 1,200 of 4,800 documents, 0:00:20 left of it",
            31.25,
        ),
        ("Vocabulary of 8,000 pieces, part 3 of 3, choosing pieces, 0:00:25 so far", 100 * 2 / 3),
        ("run 1 of 4, step 30 of 120: pretrained/seed-1, loss 0.5", 6.25),
        ("run 4 of 4, step 120 of 120: random/seed-2, loss 0.5", 100),
        ("run 3 of 4, step 9: random/seed-1, loss 0.5", 50),
        ("Records of 64 tokens an instance, 0:00:05 so far", None),
        ("part 1 of 0, tokenizing: 5 of 0", None),
        ("Labels that no model can predict: 3 of 120 are unreachable.", None),
        ("WARNING: 5 of 6 texts are cut", None),
    ],
)
def test_the_bar_of_a_stage_moves_through_its_parts(line, share):
    assert parse_share(line) == (share if share is None else pytest.approx(share))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of the percentages that a page shows, without a server."""
    shares: list[float] = []
    monkeypatch.setattr(tasks, "UPDATE_SECONDS", 0.0)
    monkeypatch.setattr(tasks, "create_progress_artifact", lambda share, **_: shares.append(share))
    monkeypatch.setattr(tasks, "update_progress_artifact", lambda _, share, **__: shares.append(share))
    return shares


def test_page_says_what_a_stage_waits_for(monkeypatch, shown):
    words = []
    monkeypatch.setattr(tasks, "update_progress_artifact", lambda _, share, description: words.append(description))
    bar = StageProgress("records", lambda line: None)
    line = "Waiting for /runs/.a.lock, held by process 7 of the run `mine` on here since noon: kbf records."
    bar.follow(line)
    assert words == [f"records: {line}"]


def test_the_bar_of_fine_tuning_moves_through_its_runs_and_never_back(shown, capsys):
    with training_progress() as report:
        for number, name in enumerate(("pretrained/seed-1", "pretrained/seed-2", "random/seed-1"), 1):
            for step in (10, 20) if number < 3 else (10,):  # the last one stops early
                line = {"run": name, "run_number": number, "run_count": 3, "total_steps": 20, "step": step}
                report(line | {"loss": 0.5, "dev_accuracy": 0.9})
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "run 2 of 3, step 20 of 20: pretrained/seed-2, loss 0.500, dev accuracy 0.900"
    bar = StageProgress("finetuning", lambda line: None)
    for line in (*lines[:4], lines[2], *lines[4:]):  # resumed from a checkpoint, a step is repeated
        bar.follow(line)
    bar.finish()
    assert [round(share) for share in shown] == [0, 17, 33, 50, 67, 67, 83, 100]
