"""What every layer, encoder family and pre-training objective owes: a test of a new one calls these.

Each takes small inputs from `tests.oracles`, and raises AssertionError with what does not hold.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.saved_as import PRETRAINERS
from keras_bert_flow.text.masking import SPAN, TOKEN, WORD
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles import numpy_bert
from tests.oracles.instances import CLS, FIRST_WORD, SEP, build, describe, original_of
from tests.oracles.objective_records import VOCABULARY_SIZE, write_objective_records
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs
from tests.oracles.task_models import call
from tests.oracles.tiny_records import make_tiny_config

TOLERANCE = 1e-5  # float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms
# 8 or 11 bits of a value up to 4 at each of some ten roundings, mostly cancelling.
MIXED = {"mixed_bfloat16": 0.2, "mixed_float16": 0.05}
CLASSES = {  # family → prefix of its classes in `transformers`
    "bert": "Bert",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
    "modernbert": "ModernBert",
    "roberta": "Roberta",
}
STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
MASKS = 3
DOCUMENTS = 200  # enough records for the doctor's ranges of chance to mean something


def run_layer_test(layer, *inputs):
    """Check a layer: round trip of the configuration, variables from shapes alone, one shape for symbols and arrays.

    In bfloat16 its outputs are of that type and its weights are float32.

    Args:
        layer: not built yet.
        inputs: numpy arrays, the call arguments.
    """
    shapes = [array.shape for array in inputs]
    layer.build(*shapes)
    built = [variable.path for variable in layer.variables]
    outputs = keras.tree.flatten(layer(*inputs))
    assert [variable.path for variable in layer.variables] == built, "a variable was born in call"

    twin = type(layer).from_config(layer.get_config())
    twin.build(*shapes)
    twin.set_weights(layer.get_weights())  # before any call
    for theirs, ours in zip(keras.tree.flatten(twin(*inputs)), outputs, strict=True):
        np.testing.assert_array_equal(_numpy(theirs), _numpy(ours))
    assert twin.get_config() == layer.get_config()

    symbols = [keras.KerasTensor((None, *array.shape[1:]), dtype=str(array.dtype)) for array in inputs]
    shapes = [tuple(symbol.shape) for symbol in keras.tree.flatten(layer(*symbols))]
    assert shapes == [(None, *output.shape[1:]) for output in outputs]

    mixed = type(layer).from_config(layer.get_config() | {"dtype": "mixed_bfloat16"})
    dtypes = {keras.backend.standardize_dtype(output.dtype) for output in keras.tree.flatten(mixed(*inputs))}
    assert dtypes == {"bfloat16"}
    assert {variable.dtype for variable in mixed.trainable_variables} <= {"float32"}


def run_family_test(
    family: str,
    folder: Path,
    reference: str,
    sizes: Mapping[str, int] | None = None,
    reads_next: bool = False,
    **settings,
) -> None:
    """Check an encoder family beside its implementation in `transformers`.

    Configuration, copies by Keras, sizes, padding, the three precisions, a training step, and the way to the layout of
    Hugging Face and back, where the number of parameters and the outputs are those of the reference.

    Args:
        family: name in the registry.
        folder: an empty folder.
        reference: prefix of the classes of `transformers`, such as "Roberta".
        sizes: published size → number of parameters with 30,522 pieces, where one is published.
        reads_next: whether the last token of a text sees the padding token after it, as with trigram embeddings.
        settings: fields of the family's shape, beside those of `SMALL`.
    """
    model = make_encoder(family, **settings)
    config = model.get_config()
    assert type(model).from_config(config).get_config() == config
    copies = [
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model)),
        keras.models.clone_model(model),
    ]
    inputs = make_inputs()
    outputs = call(model, inputs)
    for copy in copies:
        copy.set_weights(model.get_weights())
        keras.tree.map_structure(np.testing.assert_array_equal, call(copy, inputs), outputs)
    assert {name: value.shape for name, value in outputs.items()} == {
        "sequence_output": (len(LENGTHS), max(LENGTHS), SMALL["hidden_dim"])
    } | ({"pooled_output": (len(LENGTHS), SMALL["hidden_dim"])} if model.use_pooler else {})
    for size, parameters in (sizes or {}).items():
        assert kbf.Backbone.from_size(size, vocabulary_size=30522, family=family).count_params() == parameters
    _check_padding(model, inputs, reads_next)
    _check_precisions(model, inputs, outputs)
    learner = make_encoder(family, use_pooler=False, **STILL | settings)
    learner = randomise(kbf.MaskedLM(learner))
    labels = np.random.default_rng(7).integers(0, SMALL["vocabulary_size"], (len(LENGTHS), MASKS))
    inputs = make_inputs(masks_per_sequence=MASKS)
    is_real = np.take_along_axis(inputs["padding_mask"], inputs["mask_positions"], axis=1).astype("float32")
    _check_step(learner, inputs, {"mlm": labels}, {"mlm": is_real})
    run_travel_test(family, folder, reference, **settings)


def run_travel_test(family: str, folder: Path, reference: str, **settings) -> None:
    """Check the way of an encoder and its masked LM to `transformers` and back; the arguments of `run_family_test`."""
    inputs, lengths = make_ids(make_inputs()), np.array(LENGTHS)
    mask = inputs["padding_mask"].astype(bool)
    encoder = make_encoder(family, **settings)
    theirs = _send(encoder, folder / "encoder", reference + "Model")
    assert encoder.count_params() == sum(value.numel() for value in theirs.parameters())
    found, expected = call(encoder, inputs), run_reference(theirs, inputs)
    _assert_close(found["sequence_output"][mask], expected.last_hidden_state.numpy()[mask])
    assert encoder.use_pooler == hasattr(expected, "pooler_output")
    if encoder.use_pooler:
        _assert_close(found["pooled_output"][lengths > 0], expected.pooler_output.numpy()[lengths > 0])
    for place in ("ours", "theirs"):
        again = kbf.Backbone.from_preset(folder / "encoder" / place)
        assert again.get_config() == encoder.get_config()
        _assert_same_weights(again, encoder)

    masked = randomise(kbf.MaskedLM(make_encoder(family, use_pooler=False, **settings)))
    theirs = _send(masked, folder / "masked_lm", reference + "ForMaskedLM")
    inputs = make_ids(make_inputs(masks_per_sequence=MASKS))
    positions, real = inputs["mask_positions"], lengths[:, None] > inputs["mask_positions"]
    expected = np.take_along_axis(run_reference(theirs, inputs).logits.numpy(), positions[..., None], axis=1)
    assert real.any()
    _assert_close(call(masked, inputs)["mlm"][real], expected[real])
    _assert_same_weights(kbf.MaskedLM.from_preset(folder / "masked_lm" / "theirs"), masked)


def run_objective_test(
    objective: str, folder: Path, published: type, architecture: str, family: str = "bert", **settings
) -> None:
    """Check a pre-training objective from documents to a model that can be loaded.

    Instances are a function of documents and seed, their form is that of every objective, `kbf doctor` finds the
    records within the ranges of the objective, a step moves every weight, and what is published is loaded again.

    Args:
        objective: name in both registries.
        folder: an empty folder.
        published: class of the model that is published.
        architecture: name of its class in `transformers`.
        family: one that is trained on it.
        settings: of the section `pretraining`.
    """
    _check_instances(objective)
    copies = 1 if find_objective(objective).has_spans else 2  # a short document has few spans, so copies would repeat
    records = write_objective_records(folder / "records", objective, documents=DOCUMENTS, copies=copies)
    findings = examine_records(records).findings
    assert [finding for finding in findings if finding.verdict != "ok"] == []

    config = make_tiny_config(model={"family": family, **STILL}, **settings)
    model = make_pretrainer(config.model, VOCABULARY_SIZE, objective, config.pretraining)
    assert type(model) is PRETRAINERS.find(objective)
    training = PretrainingRecords(records)
    batch = next(iter(pretraining_dataset(training, batch_size=8)))
    _check_step(model, *batch)
    assert set(find_objective(objective).scores) == set(call(model, batch[0]))

    ours = model.find_published()
    assert type(ours) is published
    ours.save_to_preset(folder / "model")
    again = published.from_preset(folder / "model")
    _assert_same_weights(again, ours)
    config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [architecture]


def make_encoder(family: str, **settings) -> kbf.Backbone:
    """Return a small encoder with weights that no default hides."""
    return randomise(kbf.Backbone(family, **SMALL | settings))


def randomise(model, seed: int = 1):
    numpy_bert.randomise_weights(model, seed)
    return model


def make_ids(inputs):
    """Return the inputs in one segment, with the padding token where there is no token and nowhere else.

    `transformers` counts positions by it.
    """
    ids = np.where(inputs["padding_mask"] == 1, 1 + inputs["token_ids"] % (SMALL["vocabulary_size"] - 1), 0)
    return inputs | {"token_ids": ids.astype("int32"), "segment_ids": np.zeros_like(inputs["segment_ids"])}


def load_reference(kind: str, folder: Path, **options):
    """Load a directory by a class of `transformers`, with no tensor too many or too few."""
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)
    assert {name: list(found) for name, found in report.items() if found} == {}
    return model


def run_reference(model, inputs):
    torch = pytest.importorskip("torch", reason="the reference needs torch")
    with torch.no_grad():
        return model.eval()(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
        )


def _check_padding(model, inputs, reads_next):
    """Real tokens do not see what padding holds."""
    real, other = inputs["padding_mask"].astype(bool), make_inputs(seed=9)
    changed = {name: np.where(real, inputs[name], other[name]).astype("int32") for name in inputs}
    if reads_next:
        kept = np.pad(real[:, :-1], ((0, 0), (1, 0)))  # and the token after the last
        changed["token_ids"] = np.where(kept, inputs["token_ids"], changed["token_ids"])
    before, after = (call(model, each)["sequence_output"] for each in (inputs, changed))
    assert (changed["token_ids"] != inputs["token_ids"])[~real].any()  # some families set its embeddings to 0
    np.testing.assert_array_equal(before[real], after[real])


def assert_packed_as_alone(model):
    """The texts of a packed row are as each in a row of its own, with padding after it."""
    lengths, ids = (7, 4, 5), np.random.default_rng(3).integers(1, SMALL["vocabulary_size"], 16)
    rows = [np.repeat([1, 2, 3], lengths), *(np.arange(16) < length for length in lengths)]  # all three, and each alone
    texts = [ids, *(np.roll(ids, -start) for start in (0, 7, 11))]
    token_ids, mask = (np.stack(values).astype("int32") for values in (texts, rows))
    inputs = {"token_ids": token_ids, "segment_ids": token_ids * 0, "padding_mask": mask}
    found = call(model, inputs)["sequence_output"]
    alone = np.concatenate([found[number, :length] for number, length in enumerate(lengths, 1)])
    np.testing.assert_allclose(found[0], alone, atol=TOLERANCE)


def _check_precisions(model, inputs, outputs):
    """Weights stay float32, and the mixed precisions compute in their type and near float32."""
    real = inputs["padding_mask"].astype(bool)
    assert {variable.dtype for variable in model.weights} == {"float32"}
    assert {str(value.dtype) for value in outputs.values()} == {"float32"}
    for policy, tolerance in MIXED.items():
        if policy == "mixed_float16" and not model.shape.fits_float16:
            with pytest.raises(ValueError, match="must not be float16.* Received: float16. Use mixed_bfloat16"):
                type(model).from_config(model.get_config() | {"dtype": policy})
            continue
        mixed = type(model).from_config(model.get_config() | {"dtype": policy})
        mixed.set_weights(model.get_weights())
        assert {variable.dtype for variable in mixed.weights} == {"float32"}
        found = mixed(inputs, training=False)
        dtypes = {keras.backend.standardize_dtype(value.dtype) for value in found.values()}
        assert dtypes == {policy.removeprefix("mixed_")}
        found = _numpy(keras.ops.cast(found["sequence_output"], "float32"))
        assert 0 < np.abs(found - outputs["sequence_output"])[real].max() < tolerance


def _check_step(model, x, y, weights):
    """A step of gradient descent moves every weight, and lowers the loss of its batch."""
    model.compile(optimizer=keras.optimizers.SGD(0.05))
    before = model.get_weights()
    losses = [
        model.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"],
        model.test_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"],
    ]
    assert np.isfinite(losses).all() and losses[1] < losses[0]
    pairs = zip(model.weights, before, model.get_weights(), strict=True)
    still = [weight.path for weight, old, new in pairs if not np.abs(new - old).max() > 0]
    # The bias of keys adds the same to all scores of a query, so its gradient is 0 but for rounding.
    assert [path for path in still if not path.endswith("/key/bias")] == []


def _check_instances(objective):
    instances = build(objective)
    assert describe(instances) == describe(build(objective))
    assert describe(instances) != describe(build(objective, seed=2))
    copies = build(objective, copies=3)
    assert len({instance.token_ids.tobytes() for instance in copies}) > 0.95 * len(copies)
    has_pairs = find_objective(objective).has_pairs
    for unit in (TOKEN, WORD, SPAN):
        for instance in instances if unit == TOKEN else build(objective, unit=unit):
            original, length = original_of(instance), len(instance.token_ids)
            assert length <= 64 and original[0] == CLS and original[-1] == SEP
            borders = np.flatnonzero(original == SEP)
            if has_pairs:
                assert len(borders) == 2
                assert instance.segment_ids.tolist() == [0] * (borders[0] + 1) + [1] * (length - borders[0] - 1)
            else:
                assert not instance.segment_ids.any() and not instance.is_random_next
            assert len(instance.mask_positions) == min(20, max(1, round(0.15 * length)))
            assert np.all(original[instance.mask_positions] >= FIRST_WORD)


def _send(model, folder: Path, kind: str):
    """Write a model and load it by `transformers`, which writes it in turn."""
    model.save_to_preset(folder / "ours")
    reference = load_reference(kind, folder / "ours")
    reference.save_pretrained(folder / "theirs")
    return reference


def _assert_same_weights(one, other):
    for theirs, ours in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def _assert_close(found, expected):
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
