"""What was made from what: by content, in the digests that the stages themselves wrote."""

from keras_bert_flow.results.choosing import find_one
from keras_bert_flow.results.describing import (
    draw_tree,
    list_commands,
    list_differences,
    read_scores,
    read_settings,
)
from keras_bert_flow.results.lineage import find_results, find_source, list_sources, list_uses
from tests.results.conftest import publish_folder


def sources_of(key, store):
    result, results = find_one(key, store)
    return {source.name: [held.folder.name for held in source.results] for source in list_sources(result, results)}


def test_sources_are_found_by_content(store):
    assert sources_of("f1", store) == {"model": ["p2"]}  # and not p1, whose settings are alike
    assert sources_of("p1", store) == {"records": ["r1"]}
    assert find_source(store / "finetuning" / "f1", "model") == store / "pretraining" / "p2"
    assert find_source(store / "finetuning" / "f1", "records") is None


def test_records_name_the_vocabulary_that_they_copied(store):
    key = next(result.key for result in find_results(store) if result.stage == "records")
    assert sources_of(key, store) == {"corpus-0": [], "vocabulary": ["v1"]}


def test_uses_are_the_other_way(store):
    results = find_results(store)
    uses = list_uses(results)
    assert {folder.name: [other.folder.name for other in others] for folder, others in uses.items()} == {
        "v1": ["r1"],
        "v2": [],
        "r1": ["p1", "p2"],
        "p1": [],
        "p2": ["f1"],
        "f1": [],
    }


def test_equal_content_under_two_keys_is_named_twice(store):
    twin = store / "vocabulary" / "v3"
    files = {"vocab.txt": (store / "vocabulary" / "v1" / "vocab.txt").read_text()}
    publish_folder(twin, "vocabulary", "v3", {}, {}, files)
    key = next(result.key for result in find_results(store) if result.stage == "records")
    assert sorted(sources_of(key, store)["vocabulary"]) == ["v1", "v3"]


def test_changed_content_is_no_source(store):
    folder = store / "pretraining" / "p2"
    publish_folder(store / "pretraining" / "p9", "pretraining", "p9", {}, {}, {"model/config.json": "{}"})
    (folder / "manifest.json").write_text("{}")
    assert sources_of("f1", store) == {"model": []}


def test_tree_and_commands_lead_from_the_text_to_the_result(store):
    result, results = find_one("f1", store)
    tree = draw_tree(result, results)
    assert tree[0].startswith("finetuning f1") and tree[1] == "└─ model: pretraining p2, its model"
    assert any("corpus-0: from outside this store" in line for line in tree)
    commands = list_commands(result, results)
    assert [command.split()[1] for command in commands] == ["vocab", "records", "pretrain", "finetune"]
    assert "--input TEXT --set vocabulary.size=60" in commands[0]
    assert f"--vocab {store / 'vocabulary' / 'v1' / 'vocab.txt'}" in commands[1]
    assert "--set pretraining.total_steps=20" in commands[2]
    assert f"--model {store / 'pretraining' / 'p2' / 'model'}" in commands[3]


def test_comparison_has_what_differs_and_no_times(store):
    pair = [find_one(key, store)[0] for key in ("p1", "p2")]
    assert list_differences(*map(read_settings, pair)) == [("pretraining.total_steps", 10, 20)]
    assert list_differences(*map(read_scores, pair)) == [("masked_lm_loss", 5.0, 4.0)]
    assert read_scores(find_one("f1", store)[0]) == {"pretrained/seed-1 score": 0.75}


def test_settings_have_the_names_of_a_configuration(store):
    records = next(result for result in find_results(store) if result.stage == "records")
    settings = read_settings(records)
    assert (settings["records.sequence_length"], settings["vocabulary.cased"], settings["seed"]) == (16, False, 1)
    command = list_commands(records, find_results(store))[-1]
    assert "--set records.shards=1" in command and "vocabulary.cased" not in command
