import json
import re

import pytest

from keras_bert_flow.config.finetuning import EvaluationConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.job_progress import following_job
from keras_bert_flow.console.terminal import as_markdown
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from keras_bert_flow.evaluation.evaluate import evaluate_model, list_shortened, write_evaluation
from keras_bert_flow.evaluation.minimal_pairs import evaluate_minimal_pairs
from keras_bert_flow.evaluation.tables import grid_rows
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.tasks.formats.conll import read_tagged_words
from keras_bert_flow.tasks.registry import make_task
from tests.evaluation.test_grid_table import GRID
from tests.oracles.small_bert import TINY
from tests.tasks.kinds import LETTERS

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
LENGTH = 16


def squad(*questions) -> str:
    asked = [
        {
            "id": name,
            "question": "c d",
            "answers": [{"text": answer, "answer_start": 2}] if answer else [],
            "is_impossible": not answer,
        }
        for name, answer in questions
    ]
    return json.dumps({"data": [{"title": "A", "paragraphs": [{"context": "a b c", "qas": asked}]}]})


# Kind → ending, training file, dev file, number of dev examples, files beside the lines of a run.
FILES = {
    "classification": (".tsv", "text\tlabel\na b\tx\nc\ty\n", "text\tlabel\na\tx\nb c\ty\nd\tx\n", 3, []),
    "regression": (".tsv", "text\tlabel\na b\t1\nc\t2\n", "text\tlabel\na\t1.5\nb c\t3\n", 2, []),
    "multi_label": (".tsv", "text\tlabel\na b\tx|y\nc\t\n", "text\tlabel\na\tx\nb c\t\n", 2, []),
    "multiple_choice": (
        ".jsonl",
        '{"sent1": "a", "sent2": "b", "endings": ["c", "d"], "label": 0}\n',
        '{"sent1": "a", "sent2": "b", "endings": ["c", "d"], "label": 1}\n',
        1,
        [],
    ),
    "sentence_embedding": (
        ".tsv",
        "text\ttext_pair\na b\tc\nc\td d\n",
        "text\ttext_pair\na\tb\nb c\td\nd\ta\n",
        3,
        [],
    ),
    "token_classification": (".txt", "a B-X\nb O\n\nc O\n", "a B-X\nb I-X\n\nc O\n", 2, [".conll"]),
    "question_answering": (
        ".json",
        squad(("1", "b"), ("2", "")),
        squad(("3", "b c"), ("4", ""), ("5", "b")),
        3,
        [".answers.json", ".no_answer.json"],
    ),
}


@pytest.fixture
def make_folders(tmp_path):
    """Return a function that lays out what `write_evaluation` reads, with small models nobody has trained."""

    def make(kind: str) -> dict:
        ending, training, dev, _, _ = FILES[kind]
        for name, content in (("train", training), ("dev", dev)):
            (tmp_path / f"{name}{ending}").write_text(content)
        fields = {"kind": kind, "train": str(tmp_path / f"train{ending}"), "dev": str(tmp_path / f"dev{ending}")}
        if kind == "multiple_choice":
            fields["choices"] = ["endings"]
        config = PipelineConfig.model_validate({"task": {"name": "mine", **fields}})
        learnt = make_task(**config.task.arguments)
        learnt = learnt.learn(learnt.read(config.task.train))
        (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
        backbone = BertBackbone(vocabulary_size=len(PIECES), **TINY, max_positions=LENGTH)
        save_model_directory(backbone, tmp_path / "base", tmp_path / "vocab.txt")
        finetuned, pretrained, records = (tmp_path / name for name in ("finetuned", "pretrained", "records"))
        for start, seed in (("pretrained", 1), ("pretrained", 2), ("random", 1)):
            run = finetuned / start / f"seed-{seed}"
            model = load_task_model(kind, tmp_path / "base", labels=learnt.labels)
            save_model_directory(model, run / "model", tmp_path / "vocab.txt")
            learnt.save(run / "model", LENGTH)
            (run / "run.json").write_text(json.dumps({"start": start, "seed": seed, "seconds": 1.5}))
            (run / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
        pretrained.mkdir()
        (pretrained / "metrics.json").write_text('{"seconds": 2.0, "steps": 3}')
        (pretrained / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
        records.mkdir()
        for folder, stage in ((finetuned, "finetuning"), (pretrained, "pretraining"), (records, "records")):
            write_manifest(folder, stage, "0", {}, {}, {"documents": 7})
        return {"config": config, "finetuned": finetuned, "pretrained": pretrained, "records": records}

    return make


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_task_is_evaluated(kind, make_folders, tmp_path):
    folders = make_folders(kind)
    _, _, _, count, official = FILES[kind]
    output = write_evaluation(**folders, output=tmp_path / "out")
    results = json.loads((output / "metrics.json").read_text())
    task = results["task"]
    assert (task["name"], task["kind"], task["dev_examples"]) == ("mine", kind, count)
    words = ["tfidf"] if kind in ("classification", "regression", "multi_label") else []
    assert [len(model["runs"]) for model in results["models"].values()] == [1, *(1 for _ in words), 1, 2]
    assert list(results["models"]) == ["baseline", *words, "random", "pretrained"]
    assert list(results["comparisons"]) == ["baseline", *words, "random"] and ("tfidf" in results) == bool(words)
    names = [
        f"{name}{ending}"
        for name in ("pretrained-seed-1", "pretrained-seed-2", "random-seed-1", *words)
        for ending in sorted([".jsonl", *official])
    ]
    assert sorted(path.name for path in (output / "predictions").iterdir()) == sorted(names)
    lines = (output / "predictions/pretrained-seed-2.jsonl").read_text().splitlines()
    predictor_task = make_task(**folders["config"].task.arguments)
    examples = predictor_task.read(folders["config"].task.dev)
    learnt = predictor_task.learn(predictor_task.read(folders["config"].task.train))
    model = folders["finetuned"] / "pretrained/seed-2/model"
    scores = evaluate_model(folders["config"], model)
    assert learnt.score(examples, [json.loads(line) for line in lines]) == pytest.approx(scores)
    run = results["models"]["pretrained"]["runs"][1]
    assert {name: run[name] for name in scores} == pytest.approx(scores)
    page, table = (output / "report.html").read_text(), (output / "report.md").read_text()
    assert "mine" in page and "pre-trained" in table
    assert page.count("TF-IDF with") >= 2 * len(words) and table.count("| TF-IDF with ") == len(words)


@pytest.mark.slow
@pytest.mark.any_backend
def test_minimal_pairs_are_scored_where_they_are_named(make_folders, tmp_path):
    folders = make_folders("classification")
    without = write_evaluation(**folders, output=tmp_path / "without")
    assert "minimal_pairs" not in json.loads((without / "metrics.json").read_text())
    assert "inimal pairs" not in re.sub("minimal_pairs", "", (without / "report.html").read_text())
    masked_lm = MaskedLM(BertBackbone(vocabulary_size=len(PIECES), **TINY, max_positions=LENGTH, use_pooler=False))
    save_model_directory(masked_lm, folders["pretrained"] / "model", tmp_path / "vocab.txt")
    lines = [{"sentence_good": "a b", "sentence_bad": bad, "UID": "order", "field": "f"} for bad in ("b a", "a b")]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    named = EvaluationConfig(minimal_pairs=str(tmp_path / "pairs.jsonl"), minimal_pairs_limit=2)
    config = folders["config"].model_copy(update={"evaluation": named})
    with following_job() as job:
        output = write_evaluation(**folders | {"config": config}, output=tmp_path / "with")
        told = job.read()
    assert list(told) == ["scoring minimal pairs", "asking the models", "fitting the word baseline", "writing"]
    assert told["scoring minimal pairs"] == (4, 4, "masked sentences")  # two sentences of two tokens; one comes twice
    assert told["asking the models"] == (9, 9, "sequences")  # three sentences, three models
    results = json.loads((output / "metrics.json").read_text())["minimal_pairs"]
    assert results == evaluate_minimal_pairs(folders["pretrained"] / "model", tmp_path / "pairs.jsonl", 2)
    assert (results["pairs"], results["ties"], results["limit"]) == (2, 1, 2)
    assert "<h2>Minimal pairs</h2>" in (output / "report.html").read_text()
    assert "| field f | 2 | " in (output / "report.md").read_text()


def test_labels_out_of_reach_are_reported(make_folders, tmp_path):
    folders = make_folders("question_answering")
    found = {"dev": {"answers": {"total": 2000, "cut": 20, "too_long": 300}}}
    (folders["finetuned"] / "unreachable.json").write_text(json.dumps(found))
    output = write_evaluation(**folders, output=tmp_path / "out")
    assert json.loads((output / "metrics.json").read_text())["unreachable"] == found
    line = "- dev: 320 of 2,000 answers cannot be given exactly (16.00%): 20 cut by a window, 300 longer than "
    assert f"Labels out of reach:\n\n{line}max_answer_tokens." in (output / "report.md").read_text()
    page = (output / "report.html").read_text()
    section = page[page.index("<h2>Labels out of reach</h2>") :].split("</section>")[0]
    assert re.findall("<t[dh][^>]*>([^<]*)</t[dh]>", section)[5:] == [
        *("dev: answers cannot be given exactly", "20", "2,000", "1.00%", "cut by a window"),
        *("dev: answers cannot be given exactly", "300", "2,000", "15.00%", "longer than max_answer_tokens"),
    ]


def test_official_files_hold_the_predictions(make_folders, tmp_path):
    output = write_evaluation(**make_folders("question_answering"), output=tmp_path / "out") / "predictions"
    lines = [json.loads(line) for line in (output / "random-seed-1.jsonl").read_text().splitlines()]
    answers = json.loads((output / "random-seed-1.answers.json").read_text())
    assert answers == {line["id"]: line["answer"] for line in lines} and list(answers) == ["3", "4", "5"]
    scores = json.loads((output / "random-seed-1.no_answer.json").read_text())
    assert scores == {line["id"]: line["null_difference"] for line in lines}


def test_columns_are_written_beside_the_lines(make_folders, tmp_path):
    output = write_evaluation(**make_folders("token_classification"), output=tmp_path / "out") / "predictions"
    lines = [json.loads(line) for line in (output / "random-seed-1.jsonl").read_text().splitlines()]
    gold = read_tagged_words(output / "random-seed-1.conll", tag_column=1)
    predicted = read_tagged_words(output / "random-seed-1.conll", tag_column=2)
    assert [one.tags for one in gold] == [("B-X", "I-X"), ("O",)]
    assert [list(one.tags) for one in predicted] == [line["tags"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "question_answering"])
@pytest.mark.first_form
def test_further_dev_files_are_measured_each_by_itself(kind, make_folders, tmp_path):
    folders = make_folders(kind)
    ending, training, _, count, official = FILES[kind]
    other = tmp_path / f"other{ending}"
    other.write_text(training)  # two examples, of which all is known
    config = folders["config"]
    task = config.task.model_copy(update={"extra_dev": {"far-off": str(other)}})
    folders["config"] = config.model_copy(update={"task": task})
    output = write_evaluation(**folders, output=tmp_path / "out")
    results = json.loads((output / "metrics.json").read_text())
    assert results["task"]["dev_examples"] == count
    assert results["extra_dev"]["far-off"]["examples"] == 2 != count
    model = folders["finetuned"] / "pretrained/seed-2/model"
    alone = config.task.model_copy(update={"dev": str(other)})
    wanted = evaluate_model(config.model_copy(update={"task": alone}), model)
    run = results["extra_dev"]["far-off"]["models"]["pretrained"]["runs"][1]
    assert {name: run[name] for name in wanted} == pytest.approx(wanted)
    scores = evaluate_model(folders["config"], model)
    assert scores == evaluate_model(config, model) | {f"far-off_{name}": value for name, value in wanted.items()}
    names = {path.name for path in (output / "predictions").glob("random*")}
    assert names == {f"random-seed-1{which}{end}" for which in ("", "-far-off") for end in (".jsonl", *official)}
    assert ("tfidf" in results["extra_dev"]["far-off"]["models"]) == (kind == "classification")
    html, text = ((output / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert html.count("Other dev sets") == 1 and "2 examples of far-off, which have no part" in html
    assert text.count("| pre-trained |") == 2 and "\n\nOn far-off:\n\n| model |" in text


def test_grid_of_the_fine_tuning_is_told(make_folders, tmp_path):
    folders = make_folders("classification")
    (folders["finetuned"] / "grid.json").write_text(json.dumps(GRID))
    write_manifest(folders["finetuned"], "finetuning", "0", {}, {}, {})
    output = write_evaluation(**folders, output=tmp_path / "out")
    assert json.loads((output / "metrics.json").read_text())["grid"] == GRID
    assert f"{as_markdown(grid_rows(GRID))}\n\nScores are of the dev set" in (output / "report.md").read_text()
    assert "1,239.0" in (output / "report.html").read_text()  # three runs of 1.5 s and the point that was not chosen


def test_a_model_of_another_kind_is_refused(make_folders):
    folders = make_folders("classification")
    files = folders["config"].task.model_dump(include={"train", "dev"})
    other = PipelineConfig.model_validate({"task": {"kind": "regression", "name": "mine", **files}})
    with pytest.raises(ValueError, match="Received: .* of classification, task.kind=regression") as caught:
        evaluate_model(other, folders["finetuned"] / "random/seed-1/model")
    assert "\n" not in str(caught.value)


def test_vectors_are_measured_by_another_table_of_pairs(make_folders, tmp_path):
    folders = make_folders("sentence_embedding")
    (tmp_path / "scored.tsv").write_text("text\ttext_pair\tlabel\na\tb c\t0\nb c\tb c\t5\nd\ta\t1\n")
    file = str(tmp_path / "scored.tsv")
    values = {"kind": "sentence_embedding", "objective": "cosine", "highest": 5, "train": file, "dev": file}
    config = PipelineConfig.model_validate({"task": {"name": "scored", **values}})
    scores = evaluate_model(config, folders["finetuned"] / "random/seed-1/model")
    assert set(scores) == {"pearson", "spearman"} and scores["pearson"] > 0


def test_runs_that_are_still_improving_are_told_by_their_logs(make_folders, tmp_path):
    folders = make_folders("classification")
    lines = [{"step": step, "dev_accuracy": score} for step, score in enumerate((0.0, 0.0, 1.0), 1)]
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (folders["finetuned"] / "random/seed-1/log.jsonl").write_text(log)
    write_manifest(folders["finetuned"], "finetuning", "0", {}, {}, {})
    output = write_evaluation(**folders, output=tmp_path / "out")
    models = json.loads((output / "metrics.json").read_text())["models"]
    assert [run["improving"] for model in models.values() for run in model["runs"]] == [None, None, True, None, None]
    for name in ("report.md", "report.html"):
        assert "Still improving when they ended: 1 of 1 runs of random weights." in (output / name).read_text()


def test_label_curve_of_the_fine_tuning_is_told(make_folders, tmp_path):
    folders = make_folders("classification")
    runs = [{"seed": 1, "score": 0.5, "dev_scores": [0.1, 0.2, 0.5], "seconds": 1.0}]
    rows = [{"labels": count, "epochs": {"pretrained": 3}, "runs": {"pretrained": runs}} for count in (1, 2)]
    curve = {"kind": "classification", "main_metric": "accuracy", "rows": rows}
    (folders["finetuned"] / "label-counts.json").write_text(json.dumps(curve))
    write_manifest(folders["finetuned"], "finetuning", "0", {}, {}, {})
    output = write_evaluation(**folders, output=tmp_path / "out")
    found = json.loads((output / "metrics.json").read_text())["label_curve"]["rows"]
    assert [(row["labels"], row["pretrained"]["mean"]) for row in found] == [(1, 0.5), (2, 0.5)]
    assert all(0 <= row["tfidf"]["mean"] <= 1 for row in found)
    page = (output / "report.html").read_text()
    assert page.count("Fewer labels") == 1 and "ahead of" in page and "Scores over labels" in page
    assert (
        "| labels, accuracy % | TF-IDF with logistic regression | pre-trained |" in (output / "report.md").read_text()
    )


def test_runs_that_were_cut_are_named(tmp_path):
    for name, facts in (("pretrained/seed-1", {"shortened": [44, 1084]}), ("random/seed-1", {})):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(json.dumps(facts))
    line = "pretrained/seed-1: `finetuning.minutes` cut its training from 1,084 to 44 steps."
    assert list_shortened(tmp_path) == [line]


@pytest.mark.parametrize(("limits", "is_cut"), [({"minutes": 2}, True), ({"minutes": None}, False), ({}, False)])
def test_pretraining_that_was_cut_is_named_in_the_report(make_folders, tmp_path, limits, is_cut):
    folders = make_folders("classification")
    write_manifest(folders["pretrained"], "pretraining", "0", {"pretraining": {"total_steps": 1084} | limits}, {}, {})
    output = write_evaluation(**folders, output=tmp_path / "out")
    line = "Pre-training: `pretraining.minutes` cut the training from 1,084 to 3 steps."
    assert [line in json.loads((output / "metrics.json").read_text()).get("remarks", [])] == [is_cut]
    for name in ("report.md", "report.html"):
        assert ("cut the training from 1,084 to 3 steps" in (output / name).read_text()) == is_cut
