"""The forms of the flows: their fields, what a configuration fills in, and what stands where."""

import inspect

import pytest
from prefect.utilities.names import generate_slug
from prefect.utilities.schema_tools.validation import validate

from flows.deployments import FLOWS
from flows.form import describe_form, is_random_name
from flows.parameters import FIELDS, list_overrides
from flows.pipeline import bert_pipeline
from keras_bert_flow.config.loading import load_config
from tests.flows.conftest import ROOT

SLUGS = 1000
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
@pytest.mark.parametrize("name", ["quickstart", "distilbert", "tasks/stsb", "tasks/squad"])
def test_form_is_flat_and_filled_in(flow, name: str):
    path = str(ROOT / "configs" / f"{name}.yaml")
    values, schema = describe_form(flow, load_config(path), path)
    validate(values, schema)
    names = [name for name, _ in sorted(schema["properties"].items(), key=lambda item: item[1]["position"])]
    assert names == list(inspect.signature(flow.fn).parameters)
    for entry in schema["properties"].values():
        assert entry["title"] and entry["description"]
        assert entry["type"] in ("string", "integer", "array") and not entry.keys() & {"anyOf", "oneOf", "$ref"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", "many"),
        ("size", "huge"),
        ("backend", "mxnet"),
        ("kind", "poetry"),
        ("corpus", "one.txt"),
        ("steps", 19),  # of a configuration with 20 steps of warm-up
        ("overrides", ["no setting"]),
        ("overrides", ["finetunning.epochs=1"]),
        ("config_path", "another.yaml"),
    ],
)
def test_wrong_value_is_refused_by_the_schema(field: str, value: object):
    values, schema = describe_form(bert_pipeline, load_config(QUICKSTART), QUICKSTART)
    assert not validate(values, schema)
    with pytest.raises(Exception, match=str(value).strip("[]'")):
        validate(values | {field: value}, schema, raise_on_error=True)


def test_fields_have_the_values_that_the_configuration_ends_with():
    chosen = {"corpus": ["a.txt", "*.jsonl"], "train": "t.tsv", "dev": "d: v.tsv", "steps": 77, "backend": "torch"}
    config = load_config(
        QUICKSTART, list_overrides(chosen | {"size": None, "output": ""}, ["pretraining.total_steps=99"])
    )
    assert config.corpus.input == ("a.txt", "*.jsonl")
    assert (config.task.train, config.task.dev, config.backend) == ("t.tsv", "d: v.tsv", "torch")
    assert config.pretraining.total_steps == 99  # a further setting wins
    assert config.model.size == load_config(QUICKSTART).model.size
    assert config.runs == load_config(QUICKSTART).runs


def test_random_names_are_those_of_prefect():
    assert all(is_random_name(generate_slug(2)) for _ in range(SLUGS))
    given = ("mine", "my-run", "brave lion", "brave-lion-2", "brave-brave-lion", "-", "", "tiny, 4 steps", "lion")
    assert not any(map(is_random_name, given))


def test_every_field_is_one_of_the_configuration():
    values, _ = describe_form(bert_pipeline, load_config(QUICKSTART), QUICKSTART)
    assert values.keys() == {"config_path", *FIELDS}
    same = load_config(QUICKSTART, list_overrides({name: values[name] for name in FIELDS}))
    assert same == load_config(QUICKSTART)
