"""Augmentation against `transformers` and brute force: candidates, copies, tables, and what is refused."""

import json
import unicodedata

import numpy as np
import pytest

from keras_bert_flow.checks.run import check_run
from keras_bert_flow.checks.stages import check_augmentation_stage, check_finetuning_stage
from keras_bert_flow.config.loading import load_config, make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.evaluation.evaluate import write_evaluation
from keras_bert_flow.results.manifest import check_folder, write_manifest
from keras_bert_flow.results.stages.tasks import (
    augmentation_key,
    describe_augmentation,
    drop_copies,
    evaluation_settings,
    find_augmentation,
    finetuning_inputs,
    finetuning_key,
    finetuning_settings,
    resolve_augmented,
)
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.stop_words import STOP_WORDS
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from keras_bert_flow.training import augmentation
from keras_bert_flow.training.augmentation import Slot, WordProposer, augment, augment_rows, draw_copies
from keras_bert_flow.training.finetuning.finetune import finetune, score_word_baseline
from keras_bert_flow.training.finetuning.task_data import read_task_data, read_task_files
from tests.oracles.tiny_model import POSITIONS, write_tiny_model
from tests.oracles.tiny_records import write_tiny_records

pytestmark = pytest.mark.any_backend

WORDS = ("film", "good", "bad", "fine", "plot", "story", "actor", "scene", "slow", "great", "the", "not", "7", "é")
PIECES = (*SPECIAL_PIECES, "[unused0]", *WORDS, "un", "##usual", "##ly", "##s", "act", "##ing", ",", "!", "_", "ß")
TEXTS = [
    "The film was good, unusual and slow!",
    "",
    "the not The",
    "Fine_plot unusually GREAT scenes: café, naïve7 film7 7film é ß",
    "a pl\u00f3t, a plo\u0301t, a plot\u0301 and acting zzz",  # accents, composed and not, and an unknown word
    " ".join(["film", "unusually", "good"] * 30),  # longer than the model
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "m", pieces=PIECES, has_masked_lm=True, seed=3)


@pytest.fixture(scope="module")
def proposer(model):
    return WordProposer(model, candidates=4)


def write_table(path, rows, header="text\tlabel"):
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return str(path)


ROWS = [("good film", "yes"), ("the unusual plot was fine", "no"), ("the", "yes"), ("slow, bad scene!", "no")]


@pytest.fixture
def config(tmp_path):
    table = write_table(tmp_path / "table.tsv", ROWS)
    task = {"name": "films", "train": table, "dev": table}
    return PipelineConfig(task=task, augmentation={"copies": 5, "candidates": 4}, finetuning={"sequence_length": 16})


def change(config, **sections):
    return make_config(PipelineConfig, config.model_dump() | sections, "x.yaml")


def split_words(text):
    """Yield the start and the characters of each word of a text as BERT's basic tokenizer splits it: one at a time."""
    word, start = "", 0
    for place, character in enumerate([*text, " "]):
        is_mark = unicodedata.category(character) == "Mn"
        if character.isalnum() or (is_mark and word):
            start = start if word else place
            word += character
        elif word:
            yield start, word
            word = ""


def split_pieces(word):
    """Split a word into the longest pieces, from the left; None if it cannot be."""
    pieces, start = [], 0
    while start < len(word):
        stops = range(len(word), start, -1)
        found = next((p for stop in stops if (p := "##" * (start > 0) + word[start:stop]) in PIECES), None)
        if found is None:
            return None
        pieces.append(found)
        start += len(found.removeprefix("##"))
    return pieces


def list_tokens(text):
    """Return (piece, place of its word) of a text, as an uncased BERT makes them."""
    tokens, places = [], dict(split_words(text))
    plain = {place for start, word in places.items() for place in range(start, start + len(word))}
    for place, character in enumerate(text):
        if place in places:
            bare = [c for c in unicodedata.normalize("NFD", places[place].lower()) if unicodedata.category(c) != "Mn"]
            tokens += [(piece, place) for piece in split_pieces("".join(bare)) or ["[UNK]"]]
        elif place not in plain and not character.isspace():
            tokens.append((character if character in PIECES else "[UNK]", place))
    return tokens


def find_candidates(reference, text, count):
    """Return (start, word, candidates) of a text by the definition, one word and one comparison at a time."""
    import torch

    table = reference.bert.embeddings.word_embeddings.weight.detach().numpy().astype(np.float64)
    banned = {*SPECIAL_PIECES, "[unused0]"}
    whole = [number for number, piece in enumerate(PIECES) if piece not in banned and not piece.startswith("##")]
    tokens, found = list_tokens(text), []
    for start, word in split_words(text):
        lower = word.lower()
        own = [number for number, (_, place) in enumerate(tokens) if place == start]
        is_word = all("a" <= letter <= "z" for letter in lower) and lower not in STOP_WORDS
        if not is_word or 1 + own[-1] >= POSITIONS or tokens[own[0]][0] == "[UNK]":
            continue
        if len(own) == 1:
            pieces = [piece for piece, _ in tokens]
            masked = [*pieces[: own[0]], "[MASK]", *pieces[own[0] + 1 :]]
            row = ["[CLS]", *masked, "[SEP]", *pieces, "[SEP]"]
            ids = torch.tensor([[PIECES.index(piece) for piece in row[:POSITIONS]]])
            segments = torch.tensor([([0] * (len(pieces) + 2) + [1] * (len(pieces) + 1))[:POSITIONS]])
            with torch.no_grad():
                scores = reference(ids, token_type_ids=segments).logits[0, 1 + own[0]].numpy()
        else:
            mean = np.mean([table[PIECES.index(tokens[number][0])] for number in own], axis=0)
            scores = [v @ mean / np.linalg.norm(v) / np.linalg.norm(mean) for v in table]
        ranked = sorted((number for number in whole if PIECES[number] != lower), key=lambda n: -scores[n])
        found.append((start, word, tuple(PIECES[number] for number in ranked[:count])))
    return found


def test_candidates_are_those_of_transformers_and_brute_force(model, proposer):
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertForMaskedLM.from_pretrained(model).eval()
    expected = [find_candidates(reference, text, 4) for text in TEXTS]
    slots = proposer.propose(TEXTS)
    found = [
        [(slot.start, text[slot.start : slot.end], slot.candidates) for slot in words]
        for text, words in zip(TEXTS, slots, strict=True)
    ]
    assert found == expected
    words = [[word for _, word, _ in text] for text in expected]
    assert words[:3] == [["film", "good", "unusual", "slow"], [], []]
    assert words[3:5] == [["Fine", "plot", "unusually", "GREAT", "scenes"], ["acting"]]
    assert len(words[5]) < 60 and len({choice for _, _, choice in expected[5]}) > 4  # cut, and each place is asked for


def test_candidates_do_not_depend_on_the_size_of_batches(model, proposer):
    few = WordProposer(model, candidates=4, batch_positions=POSITIONS)
    assert few.propose(TEXTS) == proposer.propose(TEXTS)
    assert [few.propose([text])[0] for text in TEXTS] == proposer.propose(TEXTS)


def test_cased_tokenizer_keeps_names_and_stop_words_may_be_given(tmp_path):
    folder = write_tiny_model(tmp_path / "m", pieces=(*PIECES, "Film"), has_masked_lm=True, seed=3)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    text = "Film film good Good"
    found = WordProposer(folder, 40, frozenset({"good"})).propose([text])[0]
    assert [(slot.start, slot.end) for slot in found] == [(5, 9)]
    assert {"Film", "the", "!"} < {*found[0].candidates} and "film" not in found[0].candidates
    assert not {"##s", "[unused0]", *SPECIAL_PIECES} & {*found[0].candidates}


def test_each_copy_of_a_pair_starts_from_the_pair():
    """With the authors' bug, of a first text that stays replaced, copies mix the words of several draws."""
    texts = ("ab cd", "ef gh")
    slots = [[Slot(0, 2, tuple("12")), Slot(3, 5, tuple("34"))], [Slot(0, 2, tuple("56")), Slot(3, 5, tuple("78"))]]
    copies = draw_copies(texts, slots, 4000, 0.4, np.random.default_rng(0))
    assert len(copies) == len({*copies}) == 3**4 - 1 and texts not in copies  # every way to replace, once
    rng = np.random.default_rng(1)
    one = [copy for _ in range(8000) for copy in draw_copies(texts, slots, 1, 0.4, rng)]
    shares = np.array([[word not in "".join(copy) for word in ("ab", "cd", "ef", "gh")] for copy in one])
    drawn = np.concatenate([shares, np.zeros((8000 - len(one), 4), bool)])  # a copy that equals its row is dropped
    assert np.abs(drawn.mean(axis=0) - 0.4).max() < 5 * np.sqrt(0.24 / 8000)  # 5 standard errors
    joint = (drawn[:, :2].any(axis=1) & drawn[:, 2:].any(axis=1)).mean()
    assert abs(joint - 0.64**2) < 5 * np.sqrt(0.41 * 0.59 / 8000)  # the texts are drawn independently
    assert draw_copies(texts, slots, 9, 1.0, rng)[0][0][1] == " "
    assert draw_copies(texts, [[], []], 9, 0.4, rng) == draw_copies(texts, slots, 9, 1e-9, rng) == []


def test_candidates_are_drawn_uniformly():
    slots = [[Slot(0, 1, tuple("123"))]]
    rng = np.random.default_rng(0)
    counts = np.unique([draw_copies(("a",), slots, 1, 1.0, rng)[0][0] for _ in range(3000)], return_counts=True)
    assert [*counts[0]] == ["1", "2", "3"]
    assert np.abs(counts[1] / 3000 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 3000)


def test_rows_depend_on_the_seed_and_their_number_alone(proposer, monkeypatch):
    examples = [TextExample(text, label="yes") for text in TEXTS] * 2

    def made(seed=1):
        return [*augment_rows(examples, proposer, 6, 0.4, seed)]

    rows = made()
    assert rows[1] == rows[2] == [] and len(rows[0]) > 3
    assert all((example.text,) not in group for example, group in zip(examples, rows, strict=True))
    assert rows[0] != rows[len(TEXTS)]  # the same text, in another row
    monkeypatch.setattr(augmentation, "ROWS_AT_ONCE", 5)
    assert made() == rows != made(seed=2)
    assert [*augment_rows(examples[:7], proposer, 6, 0.4, 1)] == rows[:7]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_table_is_read_by_the_task_with_the_labels_of_the_rows(tmp_path, model, kind):
    """Columns by number, and characters that only JSON holds."""
    rows = [
        ("0.25", "x", 'a "good"  film', "slow \\ plot\u2028"),
        ("1.5", "x", "great", "the"),
        ("1e-3", "y", "a", "b"),
    ]
    rows += [("0.3333333333333333", "y", "bad film", "fine")]
    table = tmp_path / "t.tsv"
    table.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    columns = {"text": "2", "text_pair": "3", "label": "0", "header": False}
    task = {"kind": kind, "train": str(table), "dev": str(table)} | columns
    config = PipelineConfig(task=task, augmentation={"copies": 5}, finetuning={"max_train_examples": 3})
    folder = augment(config, model, tmp_path / "out")
    after = resolve_augmented(config, folder)
    files = read_task_files(after)
    before = make_task(**config.task.arguments).read(table, 3)
    assert drop_copies(after.task.train, files.training) == files.training[:3]
    assert drop_copies(table, before) is before
    made = augment_rows(before, WordProposer(model), 5, 0.4, seed=1)
    copies = [(*texts, row.label) for row, group in zip(before, made, strict=True) for texts in group]
    expected = [(*row.inputs.values(), row.label) for row in before] + copies
    assert [(*row.inputs.values(), row.label) for row in files.training] == expected
    assert len(files.training) > 10 and len(files.dev) == 4
    assert files.remarks[0] == describe_augmentation(after.task.train)
    assert files.remarks[0].startswith(f"The training file is augmented: 3 rows became {len(files.training)}, by 5 ")
    manifest = check_folder(folder)
    assert manifest.counters == {"table_rows": 3, "rows": len(files.training)}
    assert augment(config, model, folder) == folder  # there already


def test_key_changes_with_what_rows_depend_on(tmp_path, model, config):
    other = write_tiny_model(tmp_path / "other", pieces=PIECES, has_masked_lm=True, seed=4)
    table = write_table(tmp_path / "more.tsv", [*ROWS, ("a", "no")])
    for name in ("one", "same", "two"):
        (tmp_path / name).write_text("film" if name != "two" else "plot")
    own = config.augmentation.model_dump()
    changed = [
        change(config, augmentation=own | {name: value})
        for name, value in (("copies", 6), ("candidates", 5), ("replacement_probability", 0.5), ("seed", 2))
    ]
    changed += [change(config, augmentation=own | {"stop_words": str(tmp_path / name)}) for name in ("one", "two")]
    changed += [
        change(config, task=config.task.model_dump() | {"train": table}),
        change(config, task=config.task.model_dump() | {"label": "text", "text": "label"}),
        change(config, finetuning={"max_train_examples": 2}),
        change(config, backend="torch"),
    ]
    keys = [augmentation_key(one, model) for one in (config, *changed)] + [augmentation_key(config, other)]
    assert len({*keys}) == len(keys)
    same = [
        change(config, augmentation=own | {"seed": 1, "model": str(model)}),
        change(config, task=config.task.model_dump() | {"name": "y", "main_metric": "f1", "dev": table}),
        change(config, finetuning={"epochs": 9}),
    ]
    assert {augmentation_key(one, model) for one in same} == {keys[0]}
    copied = change(config, augmentation=own | {"stop_words": str(tmp_path / "same")})
    assert augmentation_key(copied, model) == augmentation_key(changed[4], model)


def test_key_of_the_models_is_that_of_their_table(tmp_path, model, config):
    plain = change(config, augmentation=None)
    assert finetuning_key(plain, model) == finetuning_key(config, model)  # results without keep theirs
    assert "augmentation" not in finetuning_settings(config)
    assert "augmentation" not in evaluation_settings(plain)
    assert find_augmentation(config.task.train) is None and describe_augmentation(config.task.train) == ""
    tables = [resolve_augmented(config, augment(config, model, tmp_path / "out"))]
    more = change(config, augmentation=config.augmentation.model_dump() | {"copies": 9})
    tables.append(resolve_augmented(more, augment(more, model, tmp_path / "more")))
    assert len({finetuning_key(one, model) for one in (plain, *tables)}) == 3
    assert evaluation_settings(tables[0]) == evaluation_settings(plain)
    assert finetuning_inputs(plain, model).keys() == {"model"}
    assert finetuning_inputs(tables[0], model).keys() == {"model", "train"}  # of which the lineage tells the maker


REFUSED = {
    "task={kind: token_classification}": "must go with a task of kind classification, regression. Received: kind=token",
    "finetuning={label_counts: [2]}": r"takes the first rows of a table\. Received: .*=\[2\]",
    "finetuning={train_examples: random}": "Received: finetuning.train_examples=random",
    "augmentation={copies: 0}": "augmentation.copies",
    "augmentation={replacement_probability: 0}": "augmentation.replacement_probability",
}


@pytest.mark.parametrize(("setting", "message"), REFUSED.items(), ids=REFUSED.keys())
def test_settings_that_do_not_go_together_are_refused(setting, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_config(None, ["augmentation.copies=2", setting])
    assert "\n" not in str(caught.value)
    if not setting.startswith("augmentation"):  # the command has defaults
        with pytest.raises(ValueError, match=message):
            load_config(None, [setting]).check_augmented()


def test_unusable_inputs_are_refused_before_work(tmp_path, model, config):
    headless = write_tiny_model(tmp_path / "headless", pieces=PIECES)
    lines = []

    def refused(check, match):
        with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
            check()
        lines.append(str(caught.value))

    new, own = tmp_path / "new", config.augmentation.model_dump()
    assert [example.text for example in check_augmentation_stage(config, model, new)] == [text for text, _ in ROWS]
    refused(lambda: check_augmentation_stage(config, headless, new), r"must have a masked-LM head .*headless, without")
    refused(lambda: augment(config, headless, new), r"must have a masked-LM head. Received: .*headless")
    (tmp_path / "latin").write_bytes(b"\xe9\xff")
    latin = change(config, augmentation=own | {"stop_words": str(tmp_path / "latin")})
    refused(lambda: check_augmentation_stage(latin, model, new), "stop_words` must be UTF-8")
    missing = change(config, augmentation=own | {"stop_words": str(tmp_path / "none")})
    refused(lambda: check_augmentation_stage(missing, model, new), "No such file")
    refused(lambda: check_finetuning_stage(config, model, new), "Received: the section `augmentation`")
    small = {"vocabulary": {"size": 50}, "model": {"size": "tiny"}, "backend": "torch"}
    detector = change(config, records={"objective": "rtd"}, **small | {"model": {"size": "tiny", "family": "electra"}})
    stages = ("pretraining", "finetuning")
    refused(lambda: check_run(detector, stages), "Received: records.objective=rtd, of which a detector comes")
    given = change(detector, augmentation=own | {"model": str(headless)})
    refused(lambda: check_run(given, stages), "must have a masked-LM head")
    check_run(change(detector, augmentation=own | {"model": str(model)}), stages)
    inside = change(detector, runs=str(model / "runs"), augmentation=own | {"model": str(model)})
    refused(lambda: check_run(inside, stages), "The folder of results must not be in a model")
    assert not any("\n" in line for line in lines) and not new.exists()


def test_rows_are_json_of_the_columns(tmp_path, model, config):
    folder = augment(config, model, tmp_path / "out")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["text"], line["label"]) for line in lines[:4]] == ROWS
    assert len({(line["text"], line["label"]) for line in lines}) == len(lines)  # these rows have no copies in common


@pytest.mark.slow
def test_student_is_trained_on_copies_and_baselines_are_not(tmp_path, model):
    rng = np.random.default_rng(0)
    # Most rows are of a class whose rows have no copies, and most of the augmented ones of the other.
    rows = [(WORDS[:10], "yes") if row % 5 < 2 else (WORDS[10:13], "no") for row in range(25)]
    rows = [(" ".join(rng.choice(words, 4)), label) for words, label in rows]
    asked = [(" ".join(rng.choice(WORDS[:13], 3)), ("no", "yes")[row % 3 == 0]) for row in range(20)]
    table, dev = (write_table(tmp_path / f"{name}.tsv", some) for name, some in (("train", rows), ("dev", asked)))
    small = {"epochs": 1, "seeds": [1], "batch_size": 8, "sequence_length": 16, "compare_random": False}
    plain = make_config(
        PipelineConfig,
        {"task": {"name": "films", "train": table, "dev": dev}, "finetuning": small | {"teacher": str(model)}},
        "x.yaml",
    )
    more = change(
        plain, augmentation={"copies": 4}, finetuning=plain.finetuning.model_dump() | {"max_train_examples": 20}
    )
    first = change(more, augmentation=None)
    after = resolve_augmented(more, augment(more, model, tmp_path / "augmented"))
    tokenizer = read_tokenizer(model)
    data, known = (read_task_data(config, tokenizer) for config in (after, first))
    assert len(data.train) > 40 and len(known.train) == 20
    assert data.guess_score == known.guess_score
    assert score_word_baseline(after, data) == score_word_baseline(first, known)
    output = finetune(after, model, tmp_path / "out", lambda line: None)
    run = output / "pretrained" / "seed-1"
    assert json.loads((run / "log.jsonl").read_text().splitlines()[-1])["step"] == -(-len(data.train) // 8)
    assert check_folder(output).inputs["train"] == check_folder(tmp_path / "augmented").files[0].sha256
    write_tiny_records(tmp_path / "records")
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "metrics.json").write_text('{"seconds": 1}')
    write_manifest(tmp_path / "pretrained", "pretraining", "key", {}, {}, {})
    folders = output, tmp_path / "pretrained", tmp_path / "records"
    report = write_evaluation(after, *folders, tmp_path / "report")
    results = json.loads((report / "metrics.json").read_text())
    assert results["remarks"][0] == describe_augmentation(after.task.train)
    assert results["remarks"][0] in (report / "report.md").read_text()
    compared = json.loads((write_evaluation(first, *folders, tmp_path / "first") / "metrics.json").read_text())
    for name in ("tfidf", "baseline"):
        assert results["models"][name] == compared["models"][name]
