import json
import shutil

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.results.manifest import MANIFEST, check_folder, write_manifest
from keras_bert_flow.results.stages.data import records_key, vocabulary_key
from keras_bert_flow.results.stages.keys import folder_digest, folder_files
from keras_bert_flow.results.stages.models import distillation_key, pretraining_key, pretraining_settings
from keras_bert_flow.results.stages.tasks import evaluation_key, finetuning_key
from tests.oracles.tiny_records import write_tiny_records


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(3):
        (tmp_path / "text" / f"{number}.txt").write_text(f'{{"text": "{number}"}}\n')
    return CorpusConfig(input=(str(tmp_path / "text"),))


def key_of(corpus, **settings):
    return vocabulary_key(corpus, VocabularyConfig(**settings))


def test_key_does_not_depend_on_where_text_lies_or_how_it_is_called(corpus, tmp_path):
    for number in range(3):
        (tmp_path / "é" / "x").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "text" / f"{number}.txt", tmp_path / "é" / "x" / f"{9 - number}.txt")
    assert key_of(CorpusConfig(input=(str(tmp_path / "é"),))) == key_of(corpus)


def test_key_depends_on_the_format_of_the_text(corpus, tmp_path):
    before = key_of(corpus)
    for path in (tmp_path / "text").iterdir():
        path.rename(path.with_suffix(".jsonl"))  # the same bytes, read in another way
    assert key_of(corpus) != before


def test_key_changes_with_text_and_settings(corpus, tmp_path):
    found = {key_of(corpus), key_of(corpus, size=100), key_of(corpus, cased=True)}
    found.add(key_of(corpus.model_copy(update={"lines": "sentences"})))
    (tmp_path / "text" / "2.txt").write_text("other")
    found.add(key_of(corpus))
    assert len(found) == 5


def test_records_key_changes_with_all_that_records_depend_on(corpus, tmp_path):
    def key_of(name="v.txt", records=None, cased=False, seed=1):
        return records_key(corpus, records or RecordsConfig(), tmp_path / name, cased, seed)

    (tmp_path / "v.txt").write_text("a")
    found = {key_of(), key_of(cased=True), key_of(seed=2), key_of(records=RecordsConfig(shards=5))}
    shutil.move(tmp_path / "v.txt", tmp_path / "w.txt")
    assert key_of("w.txt") in found
    (tmp_path / "w.txt").write_text("b")
    assert len(found | {key_of("w.txt")}) == 5


def test_devices_are_in_no_key(tmp_path):
    records = write_tiny_records(tmp_path / "records")
    one, many = (PipelineConfig(distribution={"kind": kind}) for kind in ("single", "data_parallel"))
    assert pretraining_key(one, records) == pretraining_key(many, records)
    tables = {"task": {"train": str(records / "vocab.txt"), "dev": str(records / "vocab.txt")}}
    one, many = (PipelineConfig(distribution={"kind": kind}, **tables) for kind in ("single", "data_parallel"))
    assert evaluation_key(one, records, records) == evaluation_key(many, records, records)
    assert finetuning_key(one, records) == finetuning_key(many, records)


def test_model_is_digested_with_the_folders_in_it(tmp_path):
    def digest_after(name, content):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return folder_digest(tmp_path / "model")

    plain = digest_after("config.json", "{}")
    mean, best = (digest_after("1_Pooling/config.json", mode) for mode in ("mean", "max"))
    assert len({plain, mean, best}) == 3
    assert digest_after(".git/index", "any") == digest_after(".cache/huggingface/x/y", "any") == best
    assert list(folder_files(tmp_path / "model")) == ["1_Pooling/config.json", "config.json"]
    for none in ("nowhere", "model/config.json"):
        with pytest.raises(FileNotFoundError, match=f"must be a folder. Received: .*{none}, which is not one"):
            folder_digest(tmp_path / none)


def test_further_dev_files_are_of_the_evaluation_and_not_of_the_fine_tuning(tmp_path):
    for name in ("table", "other", "copy"):
        (tmp_path / name).write_text("a" if name == "table" else "b")

    def keys_of(extra=None):
        files = dict.fromkeys(("train", "dev"), str(tmp_path / "table"))
        config = PipelineConfig(task=files | {"extra_dev": {"far": str(tmp_path / extra)} if extra else {}})
        return finetuning_key(config, tmp_path / "model"), evaluation_key(config, *[tmp_path / "model"] * 2)

    (tmp_path / "model").mkdir()
    none, table, other, copy = map(keys_of, (None, "table", "other", "copy"))
    assert none[0] == table[0] == other[0]
    assert len({none[1], table[1], other[1]}) == 3
    assert copy[1] == other[1]


def test_minimal_pairs_are_of_the_evaluation_only_where_they_are_named(tmp_path):
    for name in ("table", "pairs", "other", "copy"):
        (tmp_path / name).write_text("a" if name == "table" else "b" if name != "other" else "c")
    (tmp_path / "model").mkdir()

    def keys_of(name=None, limit=None):
        files = dict.fromkeys(("train", "dev"), str(tmp_path / "table"))
        pairs = {"minimal_pairs": name and str(tmp_path / name), "minimal_pairs_limit": limit}
        config = PipelineConfig(task=files, evaluation=pairs)
        return finetuning_key(config, tmp_path / "model"), evaluation_key(config, *[tmp_path / "model"] * 2)

    none, unused, pairs, other, copy, few = (
        keys_of(*given) for given in ((), (None, 3), ("pairs",), ("other",), ("copy",), ("pairs", 3))
    )
    assert none == unused and copy == pairs  # where a file lies changes nothing
    assert len({found[0] for found in (none, pairs, other, few)}) == 1
    assert len({found[1] for found in (none, pairs, other, few)}) == 4


def test_loggers_and_searches_are_in_no_key(tmp_path):
    for name in ("table", "vocab.txt"):
        (tmp_path / name).write_text("a")
    (tmp_path / "model").mkdir()
    write_manifest(tmp_path, "records", "key", {}, {}, {})

    def keys_of(**settings):
        files = dict.fromkeys(("train", "dev"), str(tmp_path / "table"))
        config = PipelineConfig(task=files, distillation={}, **settings)
        return (
            pretraining_key(config, tmp_path),
            distillation_key(config, tmp_path, tmp_path / "model"),
            finetuning_key(config, tmp_path / "model"),
            evaluation_key(config, tmp_path, tmp_path),
        )

    assert keys_of(loggers=["mlflow", "wandb"], tuning={"trials": 3}) == keys_of()


def test_pretraining_key_changes_with_what_comes_out_and_not_with_what_is_seen(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    write_manifest(tmp_path, "records", "key", {}, {}, {})

    def key_of(*settings, earlier=()):
        config = load_config(None, [f"pretraining.{setting}" for setting in settings])
        return pretraining_key(config, tmp_path, earlier=earlier)

    seen = ("log_every_steps=7", "checkpoint_every_steps=7", "keep_checkpoints=1", "keep_best=false", "peak_flops=1e9")
    assert {key_of(), key_of(*seen), key_of("tensorboard=false"), key_of("evaluate_every_steps=7")} == {key_of()}
    best = "publish=best"  # then the model depends on when it was evaluated
    assert key_of(best, "log_every_steps=7", "keep_checkpoints=1") == key_of(best)
    found = [key_of(), key_of(best), key_of(best, "evaluate_every_steps=7"), key_of("evaluate_instances=7")]
    found += [key_of("total_steps=20000"), key_of(earlier=[[7, {"total_steps": 20000}]]), key_of("scan_layers=true")]
    assert len(set(found)) == 7
    settings = pretraining_settings(load_config(None, ()))["pretraining"]
    assert "rematerialise" in settings
    assert not {"scan_layers", "span_boundary_weight"} & {*settings}  # results from before these keep their keys
    assert key_of("span_boundary_weight=1.0") == key_of() != key_of("span_boundary_weight=0.5")


def test_informational_files_and_measurements_are_verified_and_in_no_key(tmp_path):
    def published(name, seconds, weights="w", score=0.5):
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "model.safetensors").write_text(weights)
        for file in ("model/README.md", "log.jsonl", "rejected_inputs.txt", "events.out.tfevents.log", "report.html"):
            (folder / file).write_text(f"{seconds} s")
        cost = {"elapsed_seconds": seconds, "tokens_per_second": 1 / seconds, "peak_bytes": seconds, "devices": seconds}
        cost |= {"machine": name, "began": name, "base_model_name_or_path": str(folder)}
        for file in ("metrics.json", "run.json", "grid.json", "adapter_config.json"):
            (folder / file).write_text(json.dumps({"score": score, "runs": [{"seconds": seconds}]} | cost))
        write_manifest(folder, "pretraining", "key", {}, {}, {})
        return folder

    quick, slow, other = published("quick", 1), published("slow", 2), published("other", 1, "v")
    better = published("better", 1, score=0.6)
    assert folder_digest(quick) != folder_digest(better)
    assert folder_files(quick) != folder_files(better)
    for place in (".", "model"):
        assert folder_digest(quick / place) == folder_digest(slow / place)
        assert folder_digest(quick / place) != folder_digest(other / place)
        assert folder_files(quick / place) == folder_files(slow / place)
    (slow / "model" / "README.md").write_text("9 s")
    with pytest.raises(ValueError, match=r"README\.md, changed or damaged"):
        check_folder(slow)


def test_manifest_without_marks_counts_every_file(tmp_path):
    (tmp_path / "log.jsonl").write_text("1 s")
    write_manifest(tmp_path, "pretraining", "key", {}, {}, {})
    values = json.loads((tmp_path / MANIFEST).read_text())
    assert values["files"][0].pop("informational") is True and values.pop("digest")
    (tmp_path / MANIFEST).write_text(json.dumps(values))
    assert list(folder_files(tmp_path)) == ["log.jsonl"]
