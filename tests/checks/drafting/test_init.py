"""Drafts of configurations as `kbf init` writes them, which `kbf run --plan` takes as they are."""

import math
import os
from pathlib import Path

import pytest
import yaml

from keras_bert_flow.checks.draft_budget import choose_budget, look_at_corpus
from keras_bert_flow.checks.draft_table import DraftedTask, draft_task
from keras_bert_flow.checks.draft_writing import Draft, describe_shortage, write_draft
from keras_bert_flow.cli import data_commands
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.training.finetuning.task_data import check_task_files
from tests.commands import assert_refused, kbf
from tests.test_cli import TEXT

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA names no folder of public data")
TEXTS = ("wiki_en_dev.txt", "wiki_zh.txt")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT.replace("night. It", "night.\nIt"), encoding="utf-8")
    return path


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("table", "kind", "settings"),
    [
        ("sst2/train.tsv", "classification", {"header": False, "text": "0", "label": "1"}),
        ("cola/train.tsv", "classification", {"header": False, "text": "3", "label": "1"}),
        ("stsb/train.tsv", "regression", {"text": "sentence1", "text_pair": "sentence2", "label": "score"}),
        ("conll2002_ned/train.txt", "token_classification", {"tag_column": "last"}),
        pytest.param("squad/train-small.json", "question_answering", {}, marks=pytest.mark.slow),
    ],
)
def test_public_tables_are_told_and_planned(tmp_path, table, kind, settings):
    output = tmp_path / "mine.yaml"
    dev = ("--dev", f"{DATA}/squad/dev-v1.1.json") if kind == "question_answering" else ()
    text = Path(DATA, "corpus", TEXTS[kind == "regression"])
    status, printed, error = kbf("init", text, "--task", f"{DATA}/{table}", "--output", output, *dev)
    assert (status, printed) == (0, f"{output}\n"), error
    config = load_config(output)
    assert config.task.kind == kind
    assert {name: getattr(config.task, name) for name in settings} == settings
    assert Path(config.task.dev).parent == Path(DATA, table).parent
    status, printed, error = kbf("run", output, "--plan", "--set", f"runs={tmp_path / 'runs'}")
    assert status == 0, error
    assert printed.startswith("Plan of mine: ") and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_one_odd_table_is_divided_and_planned(tmp_path, corpus):
    """A .csv with quotes, line ends in cells, a label that YAML would take for a boolean, and an odd name."""
    table, output = tmp_path / "# my: table.csv", tmp_path / "a: b.yaml"
    rows = [f'"the film, said ""{n}"",\nis good",{"yes" if n % 2 else "no"},{n}' for n in range(40)]
    table.write_text("remark,is it: good?,id\n" + "\n".join(rows) + "\n")
    arguments = ("init", corpus, "--task", table, "--output", output, "--minutes", "5")
    status, printed, error = kbf(*arguments)
    assert (status, printed) == (0, f"{output}\n"), error
    assert (
        "is it: good? (2 values that repeat" in error
        and "36 rows in" in error
        and "a text is with all of its rows" in error
    )
    config = load_config(output)
    assert (config.task.text, config.task.label, config.task.header) == ("remark", "is it: good?", True)
    assert config.corpus.lines == "sentences"

    status, printed, error = kbf("run", output, "--plan", "--set", f"runs={tmp_path / 'runs'}")
    assert status == 0 and "Fine-tuning: 36 examples" in printed, error
    before = output.read_bytes()
    assert_refused(kbf(*arguments), "must be a new file", str(output))
    assert output.read_bytes() == before


@pytest.mark.slow
def test_what_cannot_be_drafted_is_refused(tmp_path, corpus):
    output = ("--output", tmp_path / "mine.yaml")
    (tmp_path / "t.tsv").write_text("a\tb\n")
    (tmp_path / "q.json").write_text("{}")
    assert_refused(kbf("init", corpus, "--task", tmp_path / "none.tsv", *output), "A task must be a file")
    assert_refused(kbf("init", tmp_path / "none.txt", "--task", tmp_path / "t.tsv", *output), "none.txt")
    assert_refused(kbf("init", corpus, "--task", corpus, *output), "must be a table")
    assert_refused(kbf("init", corpus, "--task", tmp_path / "q.json", *output), "q.json")
    assert not (tmp_path / "mine.yaml").exists()


def test_short_runs_take_the_backend_that_compiles_nothing(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")
    assert [data_commands._choose_backend(minutes) for minutes in (6, 30, 31)] == ["torch", "torch", "jax"]
    monkeypatch.setattr(data_commands.importlib.util, "find_spec", lambda name: name == "jax" or None)
    assert data_commands._choose_backend(6) == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert data_commands._choose_backend(6) == "tensorflow"


def test_corpus_is_told_by_its_lines_and_letters(tmp_path, corpus):
    look = look_at_corpus([str(corpus)])
    assert (look.files, look.lines, look.text_field, look.scripts[0]) == (1, "sentences", "text", ("LATIN", 1.0))
    assert look.documents == 8 and look.has_spaces
    chinese = tmp_path / "zh.jsonl"
    chinese.write_text('{"id": "a", "body": "我们去看电影。很好看。我喜欢。"}\n' * 30, encoding="utf-8")
    look = look_at_corpus([str(chinese)])
    assert (look.text_field, look.lines, look.has_spaces) == ("body", "paragraphs", False)
    task = DraftedTask("classification", {}, {}, lengths=(10,))
    assert choose_budget(5, look, task, 100, 1e11).vocabulary_size == 21128


@pytest.mark.slow
def test_marks_of_letters_and_text_without_spaces_are_seen(tmp_path, corpus):
    thai, hindi, long = tmp_path / "th.txt", tmp_path / "hi.txt", tmp_path / "long.txt"
    thai.write_text("ที่นี่ ดี\n\n" * 30, encoding="utf-8")
    hindi.write_text("यह हिन्दी में है।\n\n" * 30, encoding="utf-8")
    long.write_text("ก" * 300, encoding="utf-8")
    marked = [look_at_corpus([str(path)]).has_letter_marks for path in (thai, hindi, long, corpus)]
    assert marked == [True, True, False, False]
    assert look_at_corpus([str(long)]).counts.lost["long_word_characters"] == 300
    (tmp_path / "t.tsv").write_text(
        "text\tlabel\n" + "".join(f"ที่นี่ {n}\t{n % 2}\n" for n in range(40)), encoding="utf-8"
    )
    long.write_text("ก" * 300 + "ที่", encoding="utf-8")
    for path in (thai, long):
        output = tmp_path / f"{path.stem}.yaml"
        status, _, _ = kbf("init", path, "--task", tmp_path / "t.tsv", "--output", output)
        written = output.read_text(encoding="utf-8")
        assert status == 0 and "\n  cased: true\n" in written
        assert ("\n  long_words: characters\n" in written) == (path == long)
        written = " ".join(written.replace("#", "").split())  # comments are wrapped
        assert "uncased text would lose" in written
        assert ("a segmenter such as pythainlp" in written) == (path == long)


def test_budget_grows_with_the_time(corpus):
    look = look_at_corpus([str(corpus)])
    large = type(look)(**vars(look) | {"total_bytes": 5e9})
    task = DraftedTask("classification", {}, {}, lengths=(10,) * 95 + (300,) * 5)
    short, weeks = (choose_budget(minutes, large, task, 100_000, 1e11) for minutes in (5, 20_160))
    assert short.size == "tiny" and weeks.size != "tiny"
    assert weeks.tokens > short.tokens and (short.sequence_length, weeks.sequence_length) == (64, 128)
    assert short.text_length == 32
    assert short.max_train_examples is not None and short.enough_for_rows > 5
    assert choose_budget(5, look, task, 100, 1e11).steps * 32 * 64 <= 40 * look.total_bytes  # few passes over few bytes


def test_short_time_goes_to_more_rows_before_more_seeds(corpus):
    look = look_at_corpus([str(corpus)])
    task = DraftedTask("classification", {}, {}, lengths=(20,) * 100)

    def choose(minutes, examples=100_000, dev_rows=1000, rate=1e11):
        return choose_budget(minutes, look, task, examples, rate, dev_rows)

    few, more, many = (choose(minutes) for minutes in (3, 8, 40))
    assert (few.seeds, more.seeds) == ((1,), (1, 2)) and few.epochs >= 2
    assert few.max_train_examples < more.max_train_examples < many.max_train_examples
    assert choose(8, dev_rows=30_000).max_train_examples < more.max_train_examples  # scoring them takes time too
    whole = choose(few.enough_for_rows * 1.1)
    assert whole.max_train_examples is None and whole.enough_for_rows is None
    assert choose(40, examples=300).epochs == 10 and choose(40, examples=300).seeds == (1, 2, 3)


@pytest.mark.parametrize("shares", ["", "dev: other shares of classes."])
def test_draft_of_a_short_run_says_what_it_leaves_out(tmp_path, corpus, shares):
    table = tmp_path / "train.tsv"
    table.write_text("text\tlabel\n" + "".join(f"a film number {n}\t{'ab'[n % 2]}\n" for n in range(3000)))
    look, task = look_at_corpus([str(corpus)]), draft_task(table)
    budget = choose_budget(2, look, task, 3000, 2e10, 300)
    draft = Draft(
        "mine", [str(corpus)], str(table), str(table), 2, "torch", look, task, 3000, budget, shares=shares
    )  # fmt: skip
    told, config = " ".join(describe_shortage(draft)), yaml.safe_load(write_draft(draft, "mine.yaml"))
    assert f"reads {budget.max_train_examples:,} of 3,000 examples" in told and "initial_model" in told
    assert f"--minutes {math.ceil(budget.enough_for_rows)} would be enough for all" in told
    settings = config["finetuning"]
    assert (settings["max_train_examples"], settings["train_examples"]) == (budget.max_train_examples, "random")
    assert settings["calibrate"] == ("bias_corrected" if shares else True)


def test_a_divided_table_is_drafted_with_the_rows_of_its_parts(tmp_path, corpus, monkeypatch, capsys):
    """The folder of the configuration is made, and the configuration counts the rows that are trained on."""
    monkeypatch.setattr("keras_bert_flow.checks.estimates.measure_rate", lambda: 2e10)
    table, output = tmp_path / "t.tsv", tmp_path / "new" / "mine.yaml"
    labels = {7: "alone", 10: "rare", 11: "sole"}
    rows = [f"a film number {n}\t{labels.get(n, 'ab'[n % 2])}\n" for n in range(1, 401)]
    table.write_text("text\tlabel\n" + "".join(rows))
    data_commands.init([str(corpus)], table, output)
    config = load_config(output)
    assert "# 362 examples" in output.read_text() and "Task: classification, 362 examples" in capsys.readouterr().err
    files = check_task_files(config)
    assert (len(files.training), len(files.dev)) == (362, 38)
    assert files.task.labels == ("a", "alone", "b", "rare", "sole")
