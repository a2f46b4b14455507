"""Load a model directory for prediction: with its fine-tuned task, or without any fine-tuning."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_bert_flow.by_name import load_by_name, load_public
from keras_bert_flow.conversion.adapters import is_bare_adapter
from keras_bert_flow.prediction.derived_task import has_task
from keras_bert_flow.prediction.lines import check_batch_positions
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.core.task import TASK_FILE

if TYPE_CHECKING:  # a request is checked before grain and Keras are imported
    from keras_bert_flow.prediction.asked_model import AskedModel

FINE_TUNED = "task"
CONVERT = "keras_bert_flow.conversion.convert:convert"
# task → class, imported on first use
ASKED_AS = {
    FINE_TUNED: "keras_bert_flow.prediction.predictor:Predictor",
    "fill_mask": "keras_bert_flow.prediction.mask_filler:MaskFiller",
    "sentence_embedding": "keras_bert_flow.prediction.embedding:Embedder",
    "features": "keras_bert_flow.prediction.feature_extractor:FeatureExtractor",
}
# task → arguments of the class after the folder
OPTIONS = {
    FINE_TUNED: ("batch_positions", "threads"),
    "fill_mask": ("top_k", "batch_positions"),
    "sentence_embedding": ("pooling", "normalize", "batch_positions", "threads"),
    "features": ("layers", "pooling", "batch_positions"),
}


def load(folder: str | Path, task: str | None = None, **options: Any) -> "AskedModel":
    """Load a model directory, ours or Hugging Face's, for prediction.

    Args:
        folder: local or remote location; see `stores.fetching.fetch`. Or the configuration of a finished run, a `.yaml`
            file: the model of the seed that is best on dev.
        task: one of `ASKED_AS`. Default: `task`, what the model was fine-tuned for according to its `task.json` or
            `config.json`.
        options: arguments of the class, such as `top_k`.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: the model does not have the task, or an option is unknown.
    """
    is_configuration = Path(folder).suffix in (".yaml", ".yml") and not Path(folder).is_dir()
    folder = load_public("find_model")(folder) if is_configuration else fetch(folder)
    if is_bare_adapter(folder):
        # peft writes the matrices alone: the tokenizer, the settings and the task are those of the base.
        with tempfile.TemporaryDirectory() as place:
            load_by_name(CONVERT)(folder, Path(place) / "merged")
            return load(Path(place) / "merged", task, **options)
    check_request(folder, task, options)
    return load_by_name(ASKED_AS[task or FINE_TUNED])(folder, **options)


def check_request(folder: str | Path, task: str | None, options: Mapping[str, Any]) -> None:
    """Check the arguments of `load`, without loading the model; arguments and errors as for `load`."""
    if task is not None and task not in ASKED_AS:
        raise ValueError(f"A model must be asked as a known task. Received: {task!r}. Use: {', '.join(ASKED_AS)}.")
    if task is None and Path(folder, "config.json").is_file() and not has_task(folder):
        others = ", ".join(name for name in ASKED_AS if name != FINE_TUNED)
        raise FileNotFoundError(
            f"A model directory must hold {TASK_FILE}, or a config.json with the head of a task, to be asked. "
            f"Received: {folder}, without either. Take one that `kbf finetune` made, or say as what it is asked: "
            f"{others}."
        )
    known = OPTIONS[task or FINE_TUNED]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"An option must be one of what is asked. Received: {', '.join(unknown)} for {task or FINE_TUNED}. "
            f"Use: {', '.join(known)}."
        )
    check_batch_positions(options.get("batch_positions", 1))
