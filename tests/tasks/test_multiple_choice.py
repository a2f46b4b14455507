import json

import numpy as np
import pytest

from keras_bert_flow.tasks.multiple_choice import ChoiceExample, MultipleChoice
from tests.tasks.files import CLS, RACE, SEP, TOKENIZER, A, B, C, D, E, F, message_of, shuffled, write

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
SWAG_ROWS = [
    '0,v,1,"s, s","a ""a""",b,gold,"c, c",d,e,a,3',
    "1,v,2,s,b,c,gold,a,b,c,d,0",
]
SWAG_EXAMPLES = [
    ('a "a"', "b", ("c, c", "d", "e", "a"), 3),
    ("b", "c", ("a", "b", "c", "d"), 0),
]
ARTICLE = {
    "article": "a b c",
    "questions": ["d ?", "e _ ."],
    "options": [["a", "b", "c", "d"], ["b", "c", "d", "e"]],
    "answers": ["D", "A"],
    "id": "high1.txt",
}
PAIR = MultipleChoice(context="text", question=None, choices=("x", "y"))
EXAMPLES = [
    ChoiceExample("a", "b", ("c", "d ef"), 1, "t.csv, row 2"),
    ChoiceExample("b", None, ("a", "c"), 0, "t.csv, row 3"),
    ChoiceExample("c", "d", ("a", "b"), 1, "t.csv, row 4"),
]


def facts(examples):
    return [(example.context, example.question, example.choices, example.label) for example in examples]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_read_takes_the_layout_of_swag(tmp_path, newline):
    path = write(tmp_path, "val.csv", "\ufeff" + newline.join([SWAG_HEADER, *SWAG_ROWS, ""]))
    examples = MultipleChoice().read(path)
    assert facts(examples) == SWAG_EXAMPLES
    assert [example.place for example in examples] == [f"{path}, row 2", f"{path}, row 3"]
    assert MultipleChoice().read(path, max_examples=1) == examples[:1]


def test_prediction_needs_no_label_column(tmp_path):
    rows = [row.rsplit(",", 1)[0] for row in [SWAG_HEADER, *SWAG_ROWS]]
    examples = MultipleChoice().read(write(tmp_path, "test.csv", "\n".join(rows)), has_labels=False)
    assert facts(examples) == [(*facts[:3], None) for facts in SWAG_EXAMPLES]
    assert MultipleChoice().encode(TOKENIZER, examples, 16).labels == {}
    article = {name: value for name, value in ARTICLE.items() if name != "answers"}
    examples = MultipleChoice(**RACE).read(write(tmp_path, "1.txt", json.dumps(article)), has_labels=False)
    assert [example.label for example in examples] == [None, None]


def test_read_takes_the_layout_of_race(tmp_path):
    expected = [("a b c", "d ?", ("a", "b", "c", "d"), 3), ("a b c", "e _ .", ("b", "c", "d", "e"), 0)]
    file = write(tmp_path, "test/high/1.txt", json.dumps(ARTICLE, indent=1))
    write(tmp_path, "test/middle/2.txt", json.dumps({**ARTICLE, "article": "e"}))
    write(tmp_path, "test/middle/2.json", "not read")
    task = MultipleChoice(**RACE)
    assert facts(task.read(file)) == expected
    examples = task.read(tmp_path / "test")
    assert facts(examples) == [*expected, *(("e", *rest) for _, *rest in expected)]
    assert examples[1].place == f"{file}, question 2"
    assert task.read(tmp_path / "test", max_examples=3) == examples[:3]
    lines = write(tmp_path, "test.jsonl", "\n" + json.dumps(ARTICLE) + "\n")
    examples = task.read(lines)
    assert facts(examples) == expected
    assert examples[1].place == f"{lines}, row 2, question 2"


def test_read_takes_files_of_a_folder_in_order(tmp_path):
    names = [f"{folder}/{number}.txt" for folder in ("b", "a") for number in (3, 1, 20, 2, 11)]
    for name in names:
        write(tmp_path, name, json.dumps(ARTICLE))
    places = [example.place for example in MultipleChoice(**RACE).read(tmp_path)]
    assert places[::2] == [f"{tmp_path / name}, question 1" for name in sorted(names)]


def test_read_takes_one_question_a_line(tmp_path):
    task = MultipleChoice(context="article", question="question", choices=("options",), label="answer")
    rows = [
        {"article": "a", "question": "b", "options": ["c", "d"], "answer": answer} for answer in ("b", 0, "1", " A ")
    ]
    examples = task.read(write(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows))))
    assert facts(examples) == [("a", "b", ("c", "d"), label) for label in (1, 0, 1, 0)]
    assert examples[2].place.endswith("t.jsonl, row 3")


def test_read_takes_columns_of_jsonl_without_a_question(tmp_path):
    path = write(tmp_path, "t.jsonl", '{"text": "a", "x": "b", "y": "c", "label": 1}')
    assert facts(PAIR.read(path)) == [("a", None, ("b", "c"), 1)]


def test_encode_makes_a_sequence_of_each_choice():
    features = MultipleChoice().encode(TOKENIZER, EXAMPLES, 7)
    assert (len(features), features.sequences_per_row) == (3, 2)
    assert [sequence.tolist() for sequence in features.token_ids] == [
        [CLS, A, SEP, B, C, SEP],
        [CLS, A, SEP, B, D, E, SEP],  # its last piece, ##f, is beyond seven
        [CLS, B, SEP, A, SEP],
        [CLS, B, SEP, C, SEP],
        [CLS, C, SEP, D, A, SEP],
        [CLS, C, SEP, D, B, SEP],
    ]
    assert F not in features.token_ids[1]
    assert features.first_lengths.tolist() == [3] * 6
    assert features.lengths.tolist() == [7, 5, 6]
    assert features.labels["logits"].dtype == np.int32
    assert features.labels["logits"].tolist() == [1, 0, 1]


def test_decode_gives_back_each_label():
    features = MultipleChoice().encode(TOKENIZER, EXAMPLES, 16)
    logits = np.log(np.array([[1, 3], [9, 1], [2, 3]], np.float32))
    predictions = MultipleChoice().decode({"logits": logits}, features, EXAMPLES)
    assert [prediction["label"] for prediction in predictions] == [1, 0, 1]
    assert [prediction["text"] for prediction in predictions] == ["d ef", "a", "b"]
    assert predictions[0]["probability"] == pytest.approx(0.75, abs=1e-6)
    assert predictions[1]["probabilities"] == pytest.approx([0.9, 0.1], abs=1e-6)
    assert json.loads(json.dumps(predictions)) == predictions
    assert MultipleChoice().score(EXAMPLES, predictions) == {"accuracy": 1.0}
    assert MultipleChoice().score(EXAMPLES, predictions[:1] * 3) == {"accuracy": pytest.approx(2 / 3)}
    moved, rows = shuffled(features, logits)
    assert MultipleChoice().decode({"logits": rows}, moved, EXAMPLES) == predictions


def test_guess_is_the_place_that_is_right_most_often():
    (guess,) = MultipleChoice().guess(EXAMPLES, EXAMPLES[:1])
    shares = [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert guess == {"label": 1, "text": "d ef", "probability": shares[1], "probabilities": shares}
    (tie,) = MultipleChoice().guess(EXAMPLES[:2], EXAMPLES[:1])
    assert tie["label"] == 0


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: MultipleChoice().learn([]), ["no examples"]),
        (lambda: MultipleChoice().learn([ChoiceExample("a", None, ("b", "c"))]), ["without a label"]),
        (lambda: MultipleChoice().encode(TOKENIZER, [], 8), ["none"]),
        (
            lambda: MultipleChoice().encode(TOKENIZER, [*EXAMPLES, ChoiceExample("a", None, ("b",), 0, "f, row 9")], 8),
            ["f, row 9", "1, not 2"],
        ),
        (lambda: MultipleChoice().score(EXAMPLES, [{"label": 0}]), ["shapes (3,) and (1,)"]),
        (lambda: MultipleChoice().score(EXAMPLES, [{"label": 2}] * 3), ["`predictions`", "from 2 to 2"]),
        (lambda: MultipleChoice(main_metric="f1"), ["'f1'", "accuracy"]),
        (lambda: MultipleChoice(labels=("a",)), ["no labels"]),
        (lambda: MultipleChoice(choices=()), ["at least one"]),
        (lambda: MultipleChoice(context="sent2"), ["different columns", "sent2, sent2"]),
    ],
)
def test_multiple_choice_refuses(call, parts):
    message = message_of(ValueError, call)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.csv", "text,x,y,label\na,b,c,0\na,b,c\n", ["row 3", "Received: 3, not 4"]),
        ("t.csv", "text,x,label\na,b,0\n", ["row 1", "'y'"]),
        ("t.csv", "text,x,y,label\na,b,c,2\n", ["row 2", "'label'", "from 0 to 1 or from A to B", "'2'"]),
        ("t.csv", "text,x,y,label\na,b,c,C\n", ["row 2", "'C'"]),
        ("t.csv", "text,x,y,label\na,b,c,AB\n", ["row 2", "'AB'"]),
        ("t.csv", "text,x,y,label\na,b,c,\n", ["row 2", "'label'", "''"]),
        ("t.csv", "text,x,y,label\na,b,c,-1\n", ["row 2", "'-1'"]),
        ("t.jsonl", '{"text": "a", "x": "b", "y": "c", "label": true}', ["row 1", "'true'"]),
        ("t.csv", "\ufefftext,x,y,label\r\na,b, ,0\r\n", ["row 2", "'y'", "must hold text"]),
        ("t.csv", 'text,x,y,label\r\na,b,"c,0\r\n', ["row 2", "RFC 4180"]),
        ("t.csv", "text,x,y,label\n", ["at least one example"]),
    ],
)
def test_read_refuses_bad_tables(tmp_path, name, content, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, PAIR.read, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"options": [["a", "b"], ["c", "d", "e"]], "answers": ["A", "A"]}, ["question 2", "Received: 3, not 2"]),
        ({"options": [["a", "b", "c", "d"]]}, ["questions, options, answers", "one length"]),
        ({"answers": "AB"}, ["questions, options, answers", "one length", "'AB'"]),
        ({"answers": ["A", "E"]}, ["question 2", "'answers'", "from A to D", "'E'"]),
        ({"answers": ["A", None]}, ["question 2", "'answers'", "None"]),
        ({"options": [["a", "b", "c", "d"], "abcd"]}, ["question 2", "'options'", "two or more", "'abcd'"]),
        ({"options": [["a", "b", "c", "d"], ["a"]]}, ["question 2", "'options'", "two or more"]),
        ({"options": [["a", "b", "c", 1], ["a"]]}, ["question 1", "'options'", "must hold text", "1"]),
        ({"questions": ["a", " "]}, ["question 2", "'questions'", "must hold text"]),
        ({"article": ""}, ["question 1", "'article'", "must hold text"]),
    ],
)
def test_read_refuses_bad_articles(tmp_path, changes, parts):
    path = write(tmp_path, "race/1.txt", json.dumps({**ARTICLE, **changes}))
    message = message_of(ValueError, MultipleChoice(**RACE).read, tmp_path / "race")
    assert [part for part in [str(path), *parts] if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.txt", "{", ["t.txt:", "one JSON object"]),
        ("t.txt", b'{"a": "\xe9"}', ["t.txt, row 1", "UTF-8"]),
        ("t.txt", '{"article": "a"}', ["t.txt:", "'questions'", "Columns here: article"]),
        ("t.jsonl", "\n[]", ["t.jsonl, row 2", "one JSON object"]),
        (
            "t.csv",
            "article,questions,options,answers\n",
            ["must end in .jsonl or .txt, or in one of them and .gz", "t.csv"],
        ),
        ("folder/t.md", "", ["at least one example", "folder"]),
    ],
)
def test_read_refuses_what_holds_no_articles(tmp_path, name, content, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, MultipleChoice(**RACE).read, path.parent if "/" in name else path)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.txt", "absent"])
def test_read_needs_a_file_or_folder(tmp_path, name):
    assert name in message_of(FileNotFoundError, MultipleChoice(**RACE).read, tmp_path / name)
