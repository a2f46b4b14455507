from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from keras_bert_flow.config.devices import DeviceFile
from keras_bert_flow.config.finetuning import TASKS, GridConfig
from keras_bert_flow.config.limits import Settings
from keras_bert_flow.config.loading import load_config, make_config
from keras_bert_flow.config.pipeline import Dimension, PipelineConfig
from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))


def list_kinds(kind: type[Settings]) -> list[type[Settings]]:
    return [each for child in kind.__subclasses__() for each in (child, *list_kinds(child))]


KINDS = [kind for kind in list_kinds(Settings) if kind.__module__.startswith("keras_bert_flow.")]


def load(folder: Path, text: str | bytes, *overrides: str, kind=PipelineConfig):
    path = folder / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path, overrides, kind)


def message_of(call, *args, error=ValueError, **kwargs) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shipped_configs_have_names_of_their_own():
    names = [load_config(path).name for path in CONFIGS]
    assert names and len(set(names)) == len(names)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads(path):
    assert path.read_text().startswith("#")  # source, command, hardware, duration, result
    assert load_config(None) != load_config(path)


def test_every_kind_of_settings_is_looked_at():
    assert {type(section) for _, section in PipelineConfig() if isinstance(section, Settings)} < {*KINDS}
    assert {*TASKS.values()} < {*KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_is_described(kind):
    assert kind.__doc__
    for name, field in kind.model_fields.items():
        assert field.description and field.description.endswith("."), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_default_is_valid_and_frozen(kind):
    needed = {Dimension: {"choices": (1, 2)}, DeviceFile: {"like": "h200"}}  # which have no default that would do
    settings = kind(**needed.get(kind, {}))
    assert kind.model_validate(settings.model_dump(mode="json")) == settings
    name = next(iter(kind.model_fields))
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, name, getattr(settings, name))


def test_config_is_written_and_read_as_it_is(tmp_path):
    settings = load_config(None, ["seed=7", "finetuning.seeds=[4, 5]", "corpus.input=[a.txt]", "vocabulary.file=v.txt"])
    assert load(tmp_path, yaml.safe_dump(settings.model_dump(mode="json"))) == settings


def test_config_without_a_file_or_with_an_empty_one_is_the_default(tmp_path):
    assert load_config(None) == load(tmp_path, "") == load(tmp_path, "# nothing\n") == PipelineConfig()


def test_overrides_win_over_the_file_and_the_last_one_wins(tmp_path):
    text = "seed: 3\npretraining: {batch_size: 8, total_steps: 50, warmup_steps: 5}\n"
    settings = load(
        tmp_path, text, "pretraining.batch_size=16", "pretraining.total_steps=60", "pretraining.total_steps=70"
    )
    assert (settings.seed, settings.pretraining.warmup_steps) == (3, 5)
    assert (settings.pretraining.batch_size, settings.pretraining.total_steps) == (16, 70)


@pytest.mark.parametrize("value", ["1e6", "1E6", "1e+6", "1.0e+6", "1_000_000", "1000000"])
def test_whole_numbers_in_any_notation(tmp_path, value):
    assert load(tmp_path, f"pretraining: {{total_steps: {value}}}").pretraining.total_steps == 1_000_000
    assert load_config(None, [f"pretraining.total_steps={value}"]).pretraining.total_steps == 1_000_000


def test_words_that_yaml_once_took_for_booleans_are_labels(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("task: {train: a.tsv, dev: b.tsv, labels: [no, yes]}\nfinetuning: {compare_random: off}\n")
    config = load_config(path)
    assert config.task.labels == ("no", "yes") and config.finetuning.compare_random is False
    path.write_text("task: {train: a.tsv, dev: b.tsv, labels: [true, 'false']}\n")
    with pytest.raises(ValueError, match=r"`task\.labels\.0`: .* Received: True\. Put it in quotes: 'true'\."):
        load_config(path)


@pytest.mark.parametrize("value", ["1e-4", "1.5", "1e6x"])
def test_whole_numbers_must_be_whole(value):
    message = message_of(load_config, None, [f"pretraining.total_steps={value}"])
    assert "pretraining.total_steps" in message and "valid integer" in message


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("finetuning.epochs=true", "`finetuning.epochs`: This must be a number. Received: true. Write 1 for one"),
        ("pretraining.total_steps=True", "`pretraining.total_steps`: This must be a number. Received: true"),
        ("pretraining.learning_rate=false", "`pretraining.learning_rate`: This must be a number. Received: false"),
        ("finetuning.seeds=[2, true]", "`finetuning.seeds`: This must be a number. Received: true"),
        ("finetuning.label_counts=[true, all]", "Received: true"),
        ("finetuning.max_train_examples=False", "Received: false"),
        ("task.stride=true", "Received: true"),
    ],
)
def test_true_and_false_are_no_numbers(override, shown):
    kind = ["task.kind=token_classification"] if override.startswith("task") else []
    assert shown in message_of(load_config, None, [*kind, override])


@pytest.mark.parametrize("value", ["1e-4", "1E-4", "0.0001", "1.0e-4", "'1e-4'"])
def test_number_may_be_written_without_a_dot(value, tmp_path):
    assert load(tmp_path, f"pretraining: {{learning_rate: {value}}}").pretraining.learning_rate == 1e-4
    assert load_config(None, [f"pretraining.learning_rate={value}"]).pretraining.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("vocabulary.cased=true", lambda c: c.vocabulary.cased is True),
        ("vocabulary.file=null", lambda c: c.vocabulary.file is None),
        (
            "beam=[--runner=FlinkRunner, --parallelism=4]",
            lambda c: c.beam == ("--runner=FlinkRunner", "--parallelism=4"),
        ),
        ("name=a=b", lambda c: c.name == "a=b"),
        ("name=2024", lambda c: c.name == "2024"),
        ("task.text=3", lambda c: c.task.text == "3"),  # the number of a column
        ("finetuning.seeds=[1]", lambda c: c.finetuning.seeds == (1,)),
        ("finetuning.seeds=1", lambda c: c.finetuning.seeds == (1,)),  # a single value is a list of one
        ("finetuning.grid.learning_rate=1e-4", lambda c: c.finetuning.grid.learning_rate == (1e-4,)),
        ("task.extra_dev.more=x.tsv", lambda c: c.task.extra_dev == {"more": "x.tsv"}),
        ("task.labels=1", lambda c: c.task.labels == ("1",)),
        ("corpus.input=a b.txt", lambda c: c.corpus.input == ("a b.txt",)),
        ("corpus.input=*.txt", lambda c: c.corpus.input == ("*.txt",)),
        ("corpus.input=2024", lambda c: c.corpus.input == ("2024",)),
        ("beam=--runner=FlinkRunner", lambda c: c.beam == ("--runner=FlinkRunner",)),
    ],
)
def test_override_is_read_as_yaml(override, value):
    assert value(load_config(None, ["task.train=a", "task.dev=b", override]))


@pytest.mark.parametrize(
    ("text", "wrong", "valid"),
    [
        ("sead: 1", "`sead`", PipelineConfig),
        ("pretraining: {steps: 1}", "`pretraining.steps`", PretrainingConfig),
        ("records: {seq_length: 1}", "`records.seq_length`", RecordsConfig),
        ("finetuning: {grid: {rate: 1}}", "`finetuning.grid.rate`", GridConfig),
    ],
)
def test_unknown_key_is_refused_with_the_valid_names(text, wrong, valid, tmp_path):
    message = message_of(load, tmp_path, text)
    assert f"{wrong} is no known setting. Valid names: {', '.join(valid.model_fields)}." in message
    assert "run.yaml" in message
    key, _, value = text.replace("{", "").replace("}", "").replace(": ", ".", text.count(": ") - 1).partition(": ")
    assert f"{wrong} is no known setting" in message_of(load_config, None, [f"{key}={value}"])


def test_wrong_setting_is_blamed_on_where_it_is_set(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 1\npretraining: {batch_size: 0}\n")
    message = message_of(load_config, path, ["records.shard=3"])
    assert message.startswith("--set: `records.shard` is no known setting.") and "Did you mean `shards`?" in message
    assert f"; {path}: `pretraining.batch_size`: " in message
    assert message_of(load_config, path, ["pretraining.batch_size=-1"]).startswith("--set: `pretraining.batch_size`")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed: x", ("`seed`", "integer", "'x'")),
        ("seed: -1", ("`seed`", "greater than or equal to 0", "-1")),
        ("pretraining: {learning_rate: 0}", ("`pretraining.learning_rate`", "greater than 0")),
        ("pretraining: {batch_size: 1.5}", ("`pretraining.batch_size`", "1.5")),
        ("backend: numpy", ("`backend`", "'jax', 'tensorflow' or 'torch'", "'numpy'")),
        ("model: {size: huge}", ("`model.size`", "'tiny'", "'huge'")),
        ("finetuning: {seeds: [1, a]}", ("`finetuning.seeds.1`", "'a'")),
        ("finetuning: {seeds: []}", ("`finetuning.seeds`", "at least 1")),
        ("finetuning: {grid: {epochs: []}}", ("`finetuning.grid.epochs`", "at least 1")),
        ("finetuning: {grid: {learning_rate: [1e-5, 0]}}", ("`finetuning.grid.learning_rate.1`", "greater than 0")),
        ("finetuning: {grid: {batch_size: 16}}", ("`finetuning.grid.batch_size`", "list", "16")),
        ("finetuning: {grid: true}", ("`finetuning.grid`", "Received: True")),
        ("corpus: 3", ("`corpus`", "Received: 3")),
        ("vocabulary: {cased: perhaps}", ("`vocabulary.cased`", "boolean")),
        ("seed: x\nbackend: y", ("`seed`", "; ", "`backend`")),
    ],
)
def test_wrong_value_is_refused_by_name(text, parts, tmp_path):
    message = message_of(load, tmp_path, text)
    assert all(part in message for part in ("run.yaml", *parts)), message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "pretraining: {warmup_steps: 11, total_steps: 10}",
            ("`warmup_steps` must be at most `total_steps`", "warmup_steps=11", "Set warmup_steps as well"),
        ),
        (
            "records: {sequence_length: 600}",
            ("`records.sequence_length` must be at most `model.max_positions`", "=512"),
        ),
        ("finetuning: {grid: {epochs: [2, 3, 2]}}", ("`finetuning.grid`", "each value once", "epochs=[2, 3, 2]")),
        ("task: {extra_dev: {a/b: c.tsv}}", ("`extra_dev` must be of letters", "'a/b'")),
        ("task: {extra_dev: {dev: c.tsv}}", ("and not `dev`", "'dev'")),
        ("task: {train: a.tsv}", ("both files or both `builtin`", "train=a.tsv, dev=builtin")),
    ],
)
def test_contradiction_is_refused(text, parts, tmp_path):
    message = message_of(load, tmp_path, text)
    assert all(part in message for part in ("run.yaml", *parts)), message


def test_grid_is_that_of_the_paper_where_none_is_given():
    paper = GridConfig(learning_rate=(5e-5, 3e-5, 2e-5), epochs=(2, 3, 4), batch_size=(16, 32))
    assert load_config(None).finetuning.grid is None
    asked = load_config(None, ["finetuning.grid={}"])
    assert asked.finetuning.grid == GridConfig() == paper
    own = load_config(None, ["finetuning.grid.epochs=[9]"])
    assert own.finetuning.grid == paper.model_copy(update={"epochs": (9,)})


def test_limits_may_be_met_exactly(tmp_path):
    load(tmp_path, "pretraining: {warmup_steps: 10, total_steps: 10}\nrecords: {sequence_length: 512}\n")


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\t- x", "a: *b", b"name: caf\xe9", b"name: \0", "a: 1\n---\nb: 2"]
)
def test_bad_yaml_is_refused_in_one_line(text, tmp_path):
    assert "must be plain YAML. Received: " in (message := message_of(load, tmp_path, text))
    assert "run.yaml" in message


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.system ['touch {}']",
        "name: !!python/object/new:os.system ['touch {}']",
        "name: !!python/name:os.system",
        "name: !!python/tuple [1]",
    ],
)
def test_yaml_never_makes_python_objects(text, tmp_path):
    trace = tmp_path / "trace"
    assert "must be plain YAML" in message_of(load, tmp_path, text.format(trace))
    assert "must be plain YAML" in message_of(load_config, None, [text.format(trace).replace(": ", "=", 1)])
    assert not trace.exists()


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just text", "3"])
def test_yaml_must_hold_settings(text, tmp_path):
    assert "must be `key: value` lines" in message_of(load, tmp_path, text)


@pytest.mark.parametrize("override", ["seed", "=3", "", "seed.x=1", "pretraining.batch_size.x=1"])
def test_override_must_name_a_setting(override, tmp_path):
    message = message_of(load, tmp_path, "seed: 1\npretraining: {batch_size: 2}\n", override)
    assert override in message and "An override must" in message


def test_missing_file_is_named(tmp_path):
    message = message_of(load_config, tmp_path / "none.yaml", error=FileNotFoundError)
    assert "none.yaml" in message and "kbf configs list" in message
    assert "must be a file" in message_of(load_config, tmp_path, error=FileNotFoundError)


def test_one_stage_can_be_configured_alone(tmp_path):
    assert load(tmp_path, "text_field: body", kind=CorpusConfig) == CorpusConfig(text_field="body")
    assert make_config(CorpusConfig, {"input": ["a.txt"]}, "test").input == ("a.txt",)
    assert issubclass(CorpusConfig, BaseModel)


@pytest.mark.parametrize("text", ["kind: model_parallel", "model_parallel: 2", "{kind: tpu, model_parallel: 2}"])
def test_devices_of_a_copy_go_with_their_kind(tmp_path, text):
    with pytest.raises(ValueError, match="`kind: model_parallel` and `model_parallel`, .*go together. Received: kind="):
        load(tmp_path, f"distribution: {text if text[0] == '{' else '{' + text + '}'}")
    assert load(tmp_path, "distribution: {kind: model_parallel, model_parallel: 2}").distribution.model_parallel == 2


def test_second_phase_replaces_what_it_names():
    overrides = ["second_phase.total_steps=70", "second_phase.warmup_steps=7", "second_phase.sequence_length=256"]
    config = load_config(None, [*overrides, "pretraining.optimizer=lamb", "records.duplication=3"])
    first, second = config.phases
    assert first == config
    assert (second.pretraining.total_steps, second.pretraining.warmup_steps, second.pretraining.batch_size) == (
        70,
        7,
        256,
    )
    assert (second.pretraining.optimizer, second.records.duplication, second.records.sequence_length) == (
        "lamb",
        3,
        256,
    )
    assert second.second_phase is None and second.phases == (second,)
    again = load_config(None, ["second_phase=null", "second_phase.total_steps=2000"])  # as a written form has it
    assert again.phases[1].pretraining.total_steps == 2000


def test_length_of_fine_tuning_concerns_the_model_that_is_fine_tuned():
    config = load_config(None, ["finetuning.sequence_length=600"])  # which pre-training does not need
    with pytest.raises(ValueError, match=r"`finetuning.sequence_length` must be at most `model.max_positions`.*=600"):
        config.check_finetuned_length()
    student = load_config(None, ["distillation.student.max_positions=64", "pretraining.sequence_length=64"])
    with pytest.raises(ValueError, match=r"must be at most `distillation.student.max_positions`. Received: .*=128"):
        student.check_finetuned_length()
    load_config(None, ["finetuning.sequence_length=512"]).check_finetuned_length()


@pytest.mark.parametrize(
    ("overrides", "warmup"),
    [
        (["total_steps=1"], 0),
        (["total_steps=9999"], 999),
        (["total_steps=10000"], 10_000),  # the default of the section
        ([], 10_000),
        (["total_steps=50", "warmup_steps=20"], 20),
    ],
)
def test_default_warmup_fits_few_steps(overrides, warmup):
    pretraining = [f"pretraining.{override}" for override in overrides]
    assert load_config(None, pretraining).pretraining.warmup_steps == warmup


@pytest.mark.parametrize("section", ["second_phase", "distillation"])
def test_default_warmup_fits_few_steps_in_every_section(section):
    config = load_config(None, [f"{section}.total_steps=70"])
    assert getattr(config, section).warmup_steps == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("second_phase.sequence_length=1024", "`second_phase.sequence_length` must be at most `model.max_positions`"),
        (
            "second_phase={total_steps: 7, warmup_steps: 8}",
            "`second_phase`: `warmup_steps` must be at most `total_steps`",
        ),
        ("second_phase.accumulate_batches=3", "must be a multiple of `accumulate_batches`. Received: batch_size=256"),
        ("second_phase.decay=cosine", "no known setting. Valid names: sequence_length, max_predictions, dupl"),
    ],
)
def test_second_phase_is_checked_before_anything_runs(override, message):
    with pytest.raises(ValueError, match=message):
        load_config(None, [override])
