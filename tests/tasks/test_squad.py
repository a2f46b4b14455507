import gzip
import json
import os
from pathlib import Path

import pytest

from keras_bert_flow.tasks.formats.squad import (
    Answer,
    gold_answers,
    read_questions,
    write_answers,
)

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

CONTEXT = "Der 👩 Café-Wirt heißt Ünal."
ANSWERED = {"id": "q1", "question": "Wie heißt er?", "answers": [{"text": "Ünal", "answer_start": 22}]}
IMPOSSIBLE = {"id": "q2", "question": "Wann?", "answers": [], "is_impossible": True, "plausible_answers": [{}]}


def squad(*questions, context=CONTEXT, **article):
    return {
        "version": "v2.0",
        "data": [{"title": "Café", **article, "paragraphs": [{"context": context, "qas": questions}]}],
    }


def write(folder, content, name="q.json"):
    path = folder / name
    if isinstance(content, list) and name.endswith("l"):
        content = "\n".join(map(json.dumps, content))
    path.write_bytes(
        content
        if isinstance(content, bytes)
        else content.encode()
        if isinstance(content, str)
        else json.dumps(content).encode()
    )
    return path


def message_of(error, path, **options):
    with pytest.raises(error) as caught:
        read_questions(path, **options)
    message = str(caught.value)
    assert "\n" not in message and "Received: " in message
    assert len(message) < 500 + 2 * len(str(path))
    return message


@needs_data
@pytest.mark.parametrize(
    ("name", "questions", "answers", "titles", "contexts"),
    [("dev-v1.1", 10_570, 34_726, 48, 2_067), ("train-small", 8_177, 8_177, 41, 1_938)],
)
def test_real_files_are_read_whole(name, questions, answers, titles, contexts):
    found = read_questions(Path(DATA, f"squad/{name}.json"))
    assert len(found) == len({question.id for question in found}) == questions
    assert sum(len(question.answers) for question in found) == answers
    assert len({question.title for question in found}) == titles
    assert len({question.context for question in found}) == contexts
    for question in found:
        for answer in question.answers:
            assert question.context[answer.start :].startswith(answer.text)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_squad_json_is_read(tmp_path, mark, is_packed):
    content = mark + json.dumps(squad(ANSWERED, IMPOSSIBLE), ensure_ascii=False).encode()
    path = write(tmp_path, gzip.compress(content) if is_packed else content, "q.json" + ".gz" * is_packed)
    first, second = read_questions(path)
    assert (first.id, first.question, first.context) == ("q1", "Wie heißt er?", CONTEXT)
    assert first.answers == (Answer("Ünal", 22),)
    assert (first.is_impossible, second.is_impossible, second.answers) == (False, True, ())
    assert first.title == "Café"
    assert second.place == f"{path}, article 1 (Café), paragraph 1, question 2, id q2"
    assert [question.id for question in read_questions(path, max_examples=1)] == ["q1"]


@pytest.mark.parametrize("is_packed", [False, True])
def test_own_questions_are_read_from_lines(tmp_path, is_packed):
    rows = [{**ANSWERED, "context": CONTEXT}, {"id": "q2", "question": "Wann?", "context": CONTEXT, "answers": []}]
    content = "\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\n"
    path = write(tmp_path, gzip.compress(content.encode()) if is_packed else content, "q.jsonl" + ".gz" * is_packed)
    first, second = read_questions(path)
    assert (first.context, first.answers, first.is_impossible) == (CONTEXT, (Answer("Ünal", 22),), False)
    assert (second.answers, second.is_impossible, second.place) == ((), True, f"{path}, row 3, id q2")


@pytest.mark.parametrize("name", ["q.json", "q.jsonl"])
def test_questions_without_labels_need_no_answers(tmp_path, name):
    question = {"id": "q1", "question": "Wer?"}
    path = write(tmp_path, squad(question) if name == "q.json" else [{**question, "context": CONTEXT}], name)
    (found,) = read_questions(path, has_labels=False)
    assert (found.answers, found.is_impossible) == ((), False)
    assert "answers" in message_of(ValueError, path)
    with pytest.raises(ValueError, match="id q1: the right answers must be known"):
        gold_answers([found])


def test_answers_are_not_looked_at_without_labels(tmp_path):
    path = write(tmp_path, squad({**ANSWERED, "answers": "?", "is_impossible": 7}))
    assert read_questions(path, has_labels=False)[0].answers == ()


def changed(**fields):
    return squad({**ANSWERED, **fields})


def answer(text, start):
    return changed(answers=[{"text": text, "answer_start": start}])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["must be JSON", "line 1 column 1"]),
        ('{"data": [', ["must be JSON", "cut off"]),
        ("[" * 100_000, ["must be JSON"]),
        (b'{"data": "\xe9"}', ["UTF-8", "0xe9 at 10", "iconv"]),
        ([], ["`data`", "a list", ".jsonl"]),
        ({}, ["`data`", "an object with nothing"]),
        ({"questions": [], "version": 1}, ["`data`", "an object with questions, version"]),
        ({"data": {}}, ["`data`", "an object with data"]),
        ({"data": []}, ["at least one"]),
        ({"data": [{"paragraphs": []}]}, ["at least one"]),
        ({"data": ["x"]}, ["article 1:", "'paragraphs' is missing", "a str"]),
        ({"data": [{"title": "T"}]}, ["article 1:", "'paragraphs' is missing", "an object with title"]),
        (
            {"data": [{"title": "T", "paragraphs": [{"qas": []}]}]},
            ["article 1 (T), paragraph 1", "'context' is missing"],
        ),
        ({"data": [{"paragraphs": [{"context": "x", "qas": {}}]}]}, ["paragraph 1:", "'qas' must be a list", "{}"]),
        (squad(ANSWERED, context=" \n"), ["paragraph 1:", "'context' must be text that is not blank"]),
        (squad(ANSWERED, context="a\ud800"), ["paragraph 1:", "'context' must be Unicode"]),
        (squad({}), ["question 1:", "'id' is missing"]),
        (changed(id=7), ["question 1:", "'id' must be text", "Received: 7"]),
        (changed(question=" "), ["id q1:", "'question' must be text that is not blank", "Received: ' '"]),
        (changed(question=None), ["id q1:", "'question' must be text", "None"]),
        (squad({"id": "q1", "question": "x"}), ["id q1:", "'answers' is missing", "an object with id, question"]),
        (changed(answers={}), ["id q1:", "'answers' must be a list"]),
        (changed(answers=[]), ["id q1:", "`is_impossible` true and none", "0 answers, `is_impossible` false"]),
        (changed(is_impossible=True), ["id q1:", "1 answers, `is_impossible` true"]),
        (changed(is_impossible=0), ["id q1:", "'is_impossible' must be true or false", "Received: 0"]),
        (changed(answers=["Ünal"]), ["id q1:", "'text' is missing", "a str"]),
        (changed(answers=[{"text": "Ünal"}]), ["id q1:", "'answer_start' is missing"]),
        (answer("", 0), ["id q1:", "'text' must be text that is not blank"]),
        (answer("Ünal", "22"), ["id q1:", "'answer_start' must be a whole number", "'22'"]),
        (answer("Ünal", True), ["id q1:", "'answer_start' must be a whole number"]),
        (answer("Ünal", 22.0), ["id q1:", "'answer_start' must be a whole number"]),
        (answer("Ünal", 24), ["id q1:", "'Ünal' at 24", "the context has 'al.'", "It stands at 22."]),
        (answer("Ünal", -5), ["id q1:", "'Ünal' at -5", "the context has ''", "It stands at 22."]),
        (answer("Ünal", 999), ["id q1:", "at 999", "the context has ''"]),
        (answer("ünal", 22), ["id q1:", "'ünal' at 22", "the context has 'Ünal'", "nowhere"]),
        (squad(ANSWERED, ANSWERED), ["question 2, id q1:", "id of its own", "question 1, id q1 has", "Rename"]),
    ],
)
def test_bad_files_are_refused(tmp_path, content, parts):
    path = write(tmp_path, content)
    message = message_of(ValueError, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([{"id": "a", "question": "b", "context": "c"}], ["row 1", "'answers'", "Columns here: id, question, context"]),
        ([{"id": "a", "question": "b", "context": "c", "answers": 5}], ["row 1, id a:", "'answers' must be a list"]),
        ([{"id": "a", "question": "b", "context": "", "answers": []}], ["row 1", "'context' must be text"]),
        (
            [{"id": "a", "question": "b", "context": "c", "answers": [{"text": "d", "answer_start": 0}]}],
            ["row 1, id a:", "'d' at 0, where the context has 'c'", "nowhere"],
        ),
        ([{"id": "a", "question": "b", "context": "c", "answers": []}] * 2, ["row 2, id a:", "row 1, id a has"]),
        ("{", ["row 1", "one JSON object"]),
        ("", ["at least one"]),
    ],
)
def test_bad_lines_are_refused(tmp_path, rows, parts):
    path = write(tmp_path, rows, "q.jsonl")
    message = message_of(ValueError, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message


def test_other_files_are_refused(tmp_path):
    assert "q.txt" in message_of(ValueError, tmp_path / "q.txt")
    assert "q.json, which is not one" in message_of(FileNotFoundError, tmp_path / "q.json")
    assert "q.jsonl, which is not one" in message_of(FileNotFoundError, tmp_path / "q.jsonl")
    whole = gzip.compress(json.dumps(changed()).encode() * 99)
    assert "whole gzip" in message_of(ValueError, write(tmp_path, whole[:-20], "a.json.gz"))
    assert "whole gzip" in message_of(ValueError, write(tmp_path, changed(), "b.json.gz"))
    assert "`max_examples`" in message_of(ValueError, write(tmp_path, changed()), max_examples=0)
    with pytest.raises(ValueError, match="Received: none"):
        gold_answers([])


def test_answers_are_written_as_the_official_scripts_read_them(tmp_path):
    predictions = [
        {"id": "q1", "answer": "Ünal \ud800", "null_difference": -1.5, "probability": 0.5},
        {"id": "q2", "answer": "", "null_difference": 2.0, "probability": 0.9},
    ]
    write_answers(tmp_path / "answers.json", predictions)
    write_answers(tmp_path / "scores.json", iter(predictions), "null_difference")
    assert json.loads((tmp_path / "answers.json").read_bytes()) == {"q1": "Ünal \ud800", "q2": ""}
    assert json.loads((tmp_path / "scores.json").read_bytes()) == {"q1": -1.5, "q2": 2.0}
