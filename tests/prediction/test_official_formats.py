"""`kbf predict --format` and `kbf glue-zip`: files that others score, read back as they read them."""

import csv
import json
import zipfile

import pytest

from keras_bert_flow.cli import app
from keras_bert_flow.evaluation.evaluate import evaluate_model
from tests.evaluation.test_evaluate import FILES, make_folders  # noqa: F401  a fixture
from tests.oracles.squad_scores import official_2


def kbf(*arguments):
    app([*map(str, arguments)], standalone_mode=False)


@pytest.fixture
def ask(make_folders, tmp_path):  # noqa: F811
    """Return a function that asks a model of a kind about its dev file, and returns the file it wrote."""

    def ask(kind, *options, name="dev", make=True):
        if make:
            ask.folders = make_folders(kind)
        output = tmp_path / f"answers-{len(list(tmp_path.glob('answers-*')))}"
        source = tmp_path / f"{name}{FILES[kind][0]}"
        model = ask.folders["finetuned"] / "pretrained/seed-1/model"
        kbf("predict", "--model", model, "--input", source, "--output", output, *options)
        assert not list(tmp_path.glob("*.unfinished"))
        return output

    return ask


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("kind", "field"), [("classification", "label"), ("regression", "score")])
def test_glue_table_has_a_row_a_prediction(ask, kind, field):
    table = ask(kind, "--format", "glue").read_text().splitlines()
    rows = list(csv.DictReader(table, delimiter="\t"))
    wanted = lines_of(ask(kind, make=False))
    assert [row["index"] for row in rows] == [str(number) for number in range(len(wanted))]
    assert [row["prediction"] for row in rows] == [str(line[field]) for line in wanted]


def test_answers_are_scored_by_the_official_rules_as_by_ours(ask):
    answers = json.loads(ask("question_answering", "--format", "squad").read_text())
    golds = {"3": ["b c"], "4": [], "5": ["b"]}
    assert list(answers) == list(golds)
    scores = evaluate_model(ask.folders["config"], ask.folders["finetuned"] / "pretrained/seed-1/model")
    official = official_2(golds, answers)
    assert official["exact"] == pytest.approx(100 * scores["exact"])
    assert official["f1"] == pytest.approx(100 * scores["f1"])
    assert answers == {line["id"]: line["answer"] for line in lines_of(ask("question_answering", make=False))}


def test_columns_are_words_and_their_predicted_tags(ask):
    text = ask("token_classification", "--format", "conll").read_text()
    sentences = [[line.split(" ") for line in part.splitlines()] for part in text.strip().split("\n\n")]
    assert [[word for word, _ in sentence] for sentence in sentences] == [["a", "b"], ["c"]]
    tags = [[tag for _, tag in sentence] for sentence in sentences]
    assert tags == [line["tags"] for line in lines_of(ask("token_classification", make=False))]


def test_format_is_one_of_the_kind_and_of_a_whole_file(ask, tmp_path):
    with pytest.raises(ValueError, match="predictions of classification have. Received: 'squad'. Use .* jsonl, glue"):
        ask("classification", "--format", "squad")
    with pytest.raises(ValueError, match="Received: 'xml'"):
        ask("classification", "--format", "xml", make=False)
    model = ask.folders["finetuned"] / "pretrained/seed-1/model"
    for given in (["--input", tmp_path / "dev.tsv"], ["--output", tmp_path / "o"], ["a text"]):
        with pytest.raises(ValueError, match="must have --input and --output. Received: --format glue"):
            kbf("predict", "--model", model, "--format", "glue", *given)


def test_kind_without_a_format_says_so(ask):
    with pytest.raises(ValueError, match="of multi_label have. Received: 'glue'. Use one of: jsonl"):
        ask("multi_label", "--format", "glue")


def test_a_file_of_other_columns_is_read_as_told(ask, tmp_path):
    wanted = ask("classification")
    rows = [line.split("\t") for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    (tmp_path / "test.tsv").write_text("".join(f"{number}\t{text}\n" for number, (text, _) in enumerate(rows)))
    with pytest.raises(ValueError, match=r"test\.tsv, row 1: .* Received: 'text'"):
        ask("classification", name="test", make=False)
    told = ("--set", "header=false", "--set", "text=1")
    assert lines_of(ask("classification", *told, name="test", make=False)) == lines_of(wanted)
    with pytest.raises(ValueError, match="must be those that it was trained on. Received: --set labels"):
        ask("classification", "--set", "labels=[u, v]", make=False)
    with pytest.raises(ValueError, match="`txt` is no known setting. Valid names: .*header"):
        ask("classification", "--set", "txt=1", make=False)
    with pytest.raises(ValueError, match="Received: 'name'"):
        ask("classification", "--set", "name=mine", make=False)


def test_zip_is_gathered_from_files_named_as_in_a_submission(tmp_path, capsys):
    (tmp_path / "WNLI.jsonl").write_text('{"label": "1"}\n' * 146)
    (tmp_path / "RTE.tsv").write_text("index\tprediction\n" + "".join(f"{n}\tentailment\n" for n in range(3000)))
    files = [tmp_path / "WNLI.jsonl", tmp_path / "RTE.tsv"]
    kbf("glue-zip", *files, "--output", tmp_path / "s.zip")
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        assert archive.namelist() == ["RTE.tsv", "WNLI.tsv"]
        assert archive.read("WNLI.tsv").decode() == "index\tprediction\n" + "".join(f"{n}\t1\n" for n in range(146))
    path, note = capsys.readouterr().out.splitlines()
    assert path == str(tmp_path / "s.zip") and "CoLA.tsv" in note and "RTE" not in note
    (tmp_path / "RTE.jsonl").write_text("")
    with pytest.raises(ValueError, match="Each table must be given once"):
        kbf("glue-zip", *files, tmp_path / "RTE.jsonl", "--output", tmp_path / "s.zip")
    with pytest.raises(ValueError, match=r"files that GLUE names. Received: dev\.tsv"):
        kbf("glue-zip", tmp_path / "dev.tsv", "--output", tmp_path / "s.zip")
