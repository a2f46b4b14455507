"""Model card of a pre-trained model: data, training recipe and held-out scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.adapters import BASE, name_base
from keras_bert_flow.conversion.model_card import Card, describe_machine
from keras_bert_flow.records.manifest import Manifest
from keras_bert_flow.records.results import is_measurement

# Counter of the job that made the records → its title
COUNTERS = {
    "documents_train": "documents to train on",
    "documents_held_out": "documents held out",
    "sentences": "sentences",
    "tokens": "tokens",
    "instances_train": "instances to train on",
    "instances_held_out": "instances held out",
}
RECORDS = ("objective", "sequence_length", "masked_fraction", "mask_unit", "duplication", "cased", "seed")
RECIPE = ("optimizer", "learning_rate", "warmup_steps", "decay", "weight_decay", "batch_size", "masking", "precision")


def describe_run(config: PipelineConfig, records: Manifest, metrics: Mapping[str, Any]) -> Card:
    """Return the model card of a pre-trained model.

    Args:
        config: of the run.
        records: the manifest of the training records.
        metrics: content of `metrics.json`.
    """
    counters, settings = records.counters, config.pretraining.model_dump(mode="json")
    data = [[title, f"{counters[name]:,}"] for name, title in COUNTERS.items() if name in counters]
    data += [[name.replace("_", " "), str(records.config[name])] for name in RECORDS if name in records.config]
    recipe = [[name.replace("_", " "), str(settings[name])] for name in RECIPE] + [["seed", str(config.seed)]]
    if config.initial_model is not None:
        recipe.insert(0, ["began from", _name_model(config.initial_model)])
    scores = [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"]
        for name, value in sorted(metrics.items())
        if name != "parameters" and not is_measurement(name)
    ]
    sections = (
        ("Data", [*data, ["key of the records", records.key]]),
        ("Training", recipe),
        ("Held-out scores", scores),
        describe_machine(metrics["seconds"], metrics.get("devices", 1)),
    )
    return Card(config.name, sections)


def _name_model(initial_model: str) -> str:
    """Return the name of a model on the Hub; for a local model not its path, which is meaningless on a card."""
    base = name_base(initial_model)
    if Path(base[BASE] or "").is_absolute():
        return "another model"
    return f"{base[BASE]}" + (f", revision {base['revision']}" if base["revision"] else "")
