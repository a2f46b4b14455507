import csv
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.tasks.classification import Classification, Regression
from keras_bert_flow.tasks.formats.glue import HIGHEST, LOWEST, SUBMISSION, write_glue_submission
from keras_bert_flow.tasks.formats.tables import read_glue_table, write_glue_table
from keras_bert_flow.tasks.registry import make_task
from tests.tasks.files import DATA, message_of, needs_data, write

CONFIGS = Path(__file__).parents[2] / "configs" / "tasks"
# The first lines of the published files, and the facts of each task, from the paper and the server's own names.
FACTS = {  # class, metrics with the main one first, files of a submission
    "CoLA": (Classification, ["matthews"], {"CoLA.tsv": 1063}),
    "SST-2": (Classification, ["accuracy"], {"SST-2.tsv": 1821}),
    "MRPC": (Classification, ["f1_positive", "accuracy"], {"MRPC.tsv": 1725}),
    "STS-B": (Regression, ["spearman", "pearson"], {"STS-B.tsv": 1379}),
    "QQP": (Classification, ["f1_positive", "accuracy"], {"QQP.tsv": 390965}),
    "MNLI": (Classification, ["accuracy"], {"MNLI-m.tsv": 9796, "MNLI-mm.tsv": 9847, "AX.tsv": 1104}),
    "QNLI": (Classification, ["accuracy"], {"QNLI.tsv": 5463}),
    "RTE": (Classification, ["accuracy"], {"RTE.tsv": 3000}),
    "WNLI": (Classification, ["accuracy"], {"WNLI.tsv": 146}),
}
MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
TRAINING = {
    "CoLA": (None, "gj04|1||A b.", ("A b.", None, "1")),
    "SST-2": ("sentence|label", "a b |1", ("a b ", None, "1")),
    "MRPC": ("Quality|#1 ID|#2 ID|#1 String|#2 String", '1|7|8|a "b|c', ('a "b', "c", "1")),
    "STS-B": (f"{STSB} score".replace(" ", "|"), "0|g|f|2012|0|n|n|a|b|5.000", ("a", "b", 5.0)),
    "QQP": ("id|qid1|qid2|question1|question2|is_duplicate", "1|2|3|a?|b?|0", ("a?", "b?", "0")),
    "MNLI": (
        f"{MNLI} sentence1 sentence2 label1 gold_label".replace(" ", "|"),
        "0|1|1n|fiction|( a )|( b )|(S a)|(S b)|a|b|neutral|neutral",
        ("a", "b", "neutral"),
    ),
    "QNLI": ("index|question|sentence|label", "0|a?|b|not_entailment", ("a?", "b", "not_entailment")),
    "RTE": ("index|sentence1|sentence2|label", "0|a|b|entailment", ("a", "b", "entailment")),
    "WNLI": ("index|sentence1|sentence2|label", "0|a|b|1", ("a", "b", "1")),
}
TEST = {
    "CoLA": ("index|sentence", "0|a", ("a", None, None)),
    "SST-2": ("index|sentence", "0|a", ("a", None, None)),
    "MRPC": ("index|#1 ID|#2 ID|#1 String|#2 String", "0|7|8|a|b", ("a", "b", None)),
    "STS-B": (STSB.replace(" ", "|"), "0|g|f|2012|0|n|n|a|b", ("a", "b", None)),
    "QQP": ("id|question1|question2", "0|a|b", ("a", "b", None)),
    "MNLI": (f"{MNLI} sentence1 sentence2".replace(" ", "|"), "0|1|1n|g|x|x|x|x|a|b", ("a", "b", None)),
    "QNLI": ("index|question|sentence", "0|a|b", ("a", "b", None)),
    "RTE": ("index|sentence1|sentence2", "0|a|b", ("a", "b", None)),
    "WNLI": ("index|sentence1|sentence2", "0|a|b", ("a", "b", None)),
}


def predictions_file(folder: Path, name: str, count: int | None = None, **last) -> Path:
    """Write right predictions for one file of a submission; `last` replaces the last of them."""
    table = SUBMISSION[name]
    count = table.rows if count is None else count
    answers = [{"label": label, "probability": 1.0} for label in table.labels] or [{"score": s} for s in (0.5, 7, -1)]
    rows = [answers[number % len(answers)] for number in range(count)]
    if last:
        rows[-1] = last
    return write(folder, f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def load_settings(name):
    """Return the settings of a task of GLUE from the configuration for it."""
    (settings,) = (task for task in (load_config(path).task for path in CONFIGS.glob("*.yaml")) if task.name == name)
    return settings


@pytest.mark.parametrize("name", FACTS)
def test_configuration_of_a_task_states_its_facts(name):
    task_class, metrics, rows = FACTS[name]
    settings = load_settings(name)
    task = make_task(**settings.arguments)
    assert type(task) is task_class and task.main_metric == metrics[0]
    assert settings.train.endswith(f"{name}/train.tsv")
    assert settings.dev.endswith(f"{name}/{'dev_matched.tsv' if name == 'MNLI' else 'dev.tsv'}")
    assert {file: SUBMISSION[file].rows for file in rows} == rows
    assert {SUBMISSION[file].labels for file in rows} == {task.labels} and list(task.labels) == sorted(task.labels)
    assert task_class is Classification or (task.lowest, task.highest) == (LOWEST, HIGHEST) == (0, 5)


def test_submission_is_of_the_tasks():
    assert list(SUBMISSION) == [file for _, _, rows in FACTS.values() for file in rows]


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("test", [False, True])
def test_published_layouts_are_read(tmp_path, name, test):
    task = make_task(**load_settings(name).arguments)
    if test and name == "CoLA":  # whose test table is laid out otherwise
        task = replace(task, header=True, text="sentence")
    header, row, expected = (TEST if test else TRAINING)[name]
    lines = [line.replace("|", "\t") for line in (header, row) if line is not None]
    (example,) = task.read(write(tmp_path, "t.tsv", "\n".join(lines)), has_labels=not test)
    assert (example.text, example.text_pair, example.label) == expected


@needs_data
@pytest.mark.parametrize(
    ("name", "folder", "train", "dev"), [("CoLA", "cola", 8551, 1043), ("STS-B", "stsb", 5749, 1500)]
)
def test_real_tables_are_read(name, folder, train, dev):
    task = make_task(**load_settings(name).arguments)
    training, examples = (task.read(Path(DATA) / folder / f"{part}.tsv") for part in ("train", "dev"))
    assert (len(training), len(examples)) == (train, dev)
    assert task.learn(training) == task
    assert set(FACTS[name][1]) <= set(task.score(examples, task.guess(training, examples)))


def test_submission_holds_the_official_files(tmp_path):
    names = [name for name in SUBMISSION if name != "QQP.tsv"]  # the largest, left to the next test
    files = {name: predictions_file(tmp_path, name) for name in names}
    assert write_glue_submission(tmp_path / "a.zip", files) == ("QQP.tsv",)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        contents = {name: archive.read(name).decode().split("\n") for name in archive.namelist()}
    assert sorted(contents) == sorted(names)
    for name, lines in contents.items():
        assert lines.pop() == ""
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:]] == [str(n) for n in range(SUBMISSION[name].rows)]
    assert contents["RTE.tsv"][1:3] == ["0\tentailment", "1\tnot_entailment"]
    assert contents["AX.tsv"][1:4] == ["0\tcontradiction", "1\tentailment", "2\tneutral"]
    assert contents["WNLI.tsv"][1:3] == ["0\t0", "1\t1"]
    assert contents["STS-B.tsv"][1:4] == ["0\t0.5", "1\t5.0", "2\t0.0"]
    write_glue_submission(str(tmp_path / "b.zip"), dict(reversed(files.items())))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
def test_submission_takes_qqp(tmp_path):
    missing = write_glue_submission(tmp_path / "a.zip", {"QQP.tsv": predictions_file(tmp_path, "QQP.tsv")})
    assert set(missing) == set(SUBMISSION) - {"QQP.tsv"}
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("QQP.tsv").decode().endswith("\n390964\t0\n")


def test_table_is_written_with_labels_or_numbers_and_taken_by_a_submission(tmp_path):
    answers = {
        "WNLI.tsv": [{"label": "01"[n % 2]} for n in range(146)],
        "STS-B.tsv": [{"score": n / 7} for n in range(1379)],
    }
    for name, predictions in answers.items():
        given = [next(iter(prediction.values())) for prediction in predictions]
        write_glue_table(tmp_path / name, given)
        assert read_glue_table(tmp_path / name, type(given[0])) == given
        with open(tmp_path / name, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        assert rows[0].keys() == {"index", "prediction"}
        assert [int(row["index"]) for row in rows] == list(range(len(predictions)))
        assert [type(one)(row["prediction"]) for one, row in zip(given, rows, strict=True)] == given
    missing = write_glue_submission(tmp_path / "a.zip", {name: tmp_path / name for name in answers})
    assert len(missing) == 9
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("WNLI.tsv") == (tmp_path / "WNLI.tsv").read_bytes()
        scores = [line.split("\t")[1] for line in archive.read("STS-B.tsv").decode().splitlines()[1:]]
    assert [float(score) for score in scores] == [min(n / 7, 5.0) for n in range(1379)]
    with pytest.raises(ValueError, match=r"Prediction 1: a column holds no tab .* Received: 'a\\tb'"):
        write_glue_table(tmp_path / "WNLI.tsv", ["a", "a\tb"])


@pytest.mark.parametrize(
    ("name", "row", "parts"),
    [
        ("RTE.tsv", "1\tentailment", ("row 2", "must count the rows from 0", "Received: 1, not 0")),
        ("RTE.tsv", "0\tyes", ("row 2", "must be one of entailment", "'yes'")),
        ("STS-B.tsv", "0\tnan", ("row 2", "finite number", "Received: nan")),
        ("STS-B.tsv", "0\tmuch", ("row 2", "finite number", "'much'")),
        ("STS-B.tsv", "0\t1.5", ("must have 1379 predictions", "Received: 1,")),
    ],
)
def test_table_that_the_server_would_refuse_is_refused(tmp_path, name, row, parts):
    file = write(tmp_path, name, f"index\tprediction\n{row}\n")
    with pytest.raises(ValueError) as caught:
        write_glue_submission(tmp_path / "a.zip", {name: file})
    assert all(part in str(caught.value) for part in parts) and "\n" not in str(caught.value)
    assert not list(tmp_path.glob("a.zip*"))


def test_submission_takes_labels_that_are_numbers(tmp_path):
    file = predictions_file(tmp_path, "WNLI.tsv", label=1)
    write_glue_submission(tmp_path / "a.zip", {"WNLI.tsv": file})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("WNLI.tsv").decode().endswith("\n145\t1\n")


@pytest.mark.parametrize(
    ("name", "count", "last", "parts"),
    [
        ("WNLI.tsv", 145, {}, ["WNLI.tsv must have 146", "Received: 145", "test.tsv"]),
        ("WNLI.tsv", 147, {}, ["Received: 147"]),
        ("AX.tsv", 5, {}, ["1104", "diagnostic.tsv"]),
        ("RTE.tsv", 4, {"label": "0"}, ["RTE.tsv.jsonl, row 4", "entailment, not_entailment", "'0'"]),
        ("MNLI-mm.tsv", 4, {"label": "not_entailment"}, ["row 4", "contradiction, entailment, neutral"]),
        ("WNLI.tsv", 4, {"label": True}, ["row 4", "'true'"]),
        ("WNLI.tsv", 4, {"score": 1.0}, ["row 4", "'label'", "Columns here: score"]),
        ("STS-B.tsv", 4, {"label": "1"}, ["row 4", "'score'"]),
        ("STS-B.tsv", 4, {"score": "1"}, ["row 4", "finite number", "'1'"]),
        ("STS-B.tsv", 4, {"score": True}, ["row 4", "True"]),
        ("STS-B.tsv", 4, {"score": float("nan")}, ["row 4", "nan"]),
        ("STS-B.tsv", 4, {"score": float("-inf")}, ["row 4", "-inf"]),
    ],
)
def test_submission_refuses_other_predictions(tmp_path, name, count, last, parts):
    file = predictions_file(tmp_path, name, count, **last)
    message = message_of(ValueError, write_glue_submission, tmp_path / "a.zip", {name: file})
    assert [part for part in [str(file), *parts] if part not in message] == [], message
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("predictions", "parts"), [({}, ["Received: none", "CoLA.tsv, SST-2.tsv"]), ({"MNLI.tsv": "x"}, ["MNLI.tsv"])]
)
def test_submission_refuses_other_names(tmp_path, predictions, parts):
    message = message_of(ValueError, write_glue_submission, tmp_path / "a.zip", predictions)
    assert [part for part in parts if part not in message] == [], message


def test_submission_needs_its_files(tmp_path):
    absent = {"RTE.tsv": tmp_path / "absent.jsonl"}
    assert "absent.jsonl" in message_of(FileNotFoundError, write_glue_submission, tmp_path / "a.zip", absent)
    written = {"RTE.tsv": write(tmp_path, "t.csv", "label\nentailment\n")}
    assert "must end in .jsonl" in message_of(ValueError, write_glue_submission, tmp_path / "a.zip", written)
