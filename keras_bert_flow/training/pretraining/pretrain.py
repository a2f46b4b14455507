"""Pre-train a model from records to a model directory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.input_states import hold
from keras_bert_flow.local_paths import check_local
from keras_bert_flow.models.flops import count_flops
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.precision_choice import resolve_precision
from keras_bert_flow.stages.pretraining import PRETRAINING, pretraining_inputs, pretraining_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.training.pretraining.initial_model import load_initial_model
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from keras_bert_flow.training.pretraining.run import Recipe, Report, publish_run
from keras_bert_flow.training.state.identity import pretraining_identity

FACTS = frozenset({"name", "seed", "backend", "model", "pretraining"})


def pretrain(
    config: PipelineConfig,
    records: str | Path,
    output: str | Path,
    report: Report = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    initial_model: str | Path | None = None,
) -> Path:
    """Pre-train and publish a folder with `model/`, `log.jsonl` and `metrics.json`; return at once if it exists.

    A killed run resumes from its newest checkpoint, to bitwise the same weights.

    Args:
        config: its sections `model` and `pretraining`, and the seed are used; the objective is that of the records. Its
            section `distribution` selects the devices; see `distribution.starting`.
        records: output of `kbf records`, local or remote; see `stores.fetching.fetch`.
        output: the folder.
        report: called with every line of the log.
        callbacks: of Keras or your own. An epoch is the steps from one line of the log to the next; metrics are fetched
            from the device only at its end. See `training.loop.callbacks` for the calls and their arguments.
        initial_model: a model directory to continue from, ours or Hugging Face's, with the configured shape and the
            vocabulary of the records. The optimizer, its schedule, and heads that the directory lacks are new.
    Raises:
        FileNotFoundError: a file of the records, or of the initial model, is missing.
        ValueError: the records are damaged or do not fit the model, the initial model does not fit either, a checkpoint
            belongs to another run, or an input changes meanwhile.
        Interrupted: on SIGTERM or SIGINT; run again to resume.
    """
    check_local(output)
    config = resolve_precision(config, keras.backend.backend())
    records, initial = fetch(records, wait=False), None if initial_model is None else fetch(initial_model)
    recipe = Recipe(
        PRETRAINING,
        config,
        FACTS,
        source=initial,
        is_new=initial is None,
        objective=None,
        inputs=hold(records, *([] if initial is None else [initial])),
        find_key=partial(pretraining_key, config, records, initial),
        find_inputs=partial(pretraining_inputs, records, initial),
        find_identity=partial(pretraining_identity, config, records, initial),
        make_model=partial(_make_model, config, initial),
        count_operations=partial(_count_operations, config),
    )
    return publish_run(recipe, records, output, report, callbacks)


def _make_model(config: PipelineConfig, initial_model: Path | None, training: PretrainingRecords) -> ModelWithHead:
    settings, objective = config.pretraining, training.objective
    if initial_model is not None:
        return load_initial_model(initial_model, config.model, objective, settings)
    return make_pretrainer(config.model, training.manifest.config["vocabulary_size"], objective, settings)


def _count_operations(config: PipelineConfig, model: ModelWithHead, length: int, masks: int) -> int:
    """Count the training FLOPs of one sequence; see `models.flops`."""
    shape, settings = model.backbone.shape, config.pretraining
    flops = count_flops(
        shape,
        length,
        masks,
        use_pooler=model.backbone.use_pooler,
        bag_of_words=settings.bag_of_words > 0,
        generator=getattr(model, "generator_shape", None),
    )
    return flops.training
