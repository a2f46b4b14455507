"""The losses of distillation against PyTorch's own, and what they move."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.training.distillation import copy_layers
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs

STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
MASKS = 3


def make_masked_lm(family="bert", seed=1, **settings):
    model = kbf.MaskedLM(kbf.Backbone(family, use_pooler=False, **SMALL | STILL | settings))
    numpy_bert.randomise_weights(model, seed)
    return model


def make_batch():
    x = make_inputs(masks_per_sequence=MASKS)
    labels = np.random.default_rng(2).integers(0, 50, x["mask_positions"].shape)
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32")
    mask = x["padding_mask"].astype("float32")
    y = {"mlm": labels, "soft": np.zeros_like(labels), "hidden": np.zeros_like(x["token_ids"])}
    return x, y, {"mlm": weights, "soft": weights, "hidden": mask}


def find_parts(model, x):
    """Return logits and last hidden states of a masked LM, as PyTorch tensors."""
    torch = pytest.importorskip("torch")
    hidden = model.backbone.predict({name: x[name] for name in ("token_ids", "segment_ids", "padding_mask")}, verbose=0)
    return torch.tensor(model.predict(x, verbose=0)["mlm"]), torch.tensor(hidden["sequence_output"])


@pytest.mark.any_backend
def test_losses_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    student, teacher = make_masked_lm(num_layers=1), make_masked_lm(seed=5)
    model = kbf.Distiller(student, teacher, temperature=3.0)
    model.compile()
    x, y, weights = make_batch()
    logs = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    (logits, hidden), (targets, wanted) = find_parts(student, x), find_parts(teacher, x)
    divergence = torch.nn.KLDivLoss(reduction="none")(
        torch.log_softmax(logits / 3, -1), torch.softmax(targets / 3, -1)
    ).sum(-1)
    counted = torch.tensor(weights["mlm"])
    soft = float((divergence * counted).sum() / counted.sum() * 9)
    real = torch.tensor(x["padding_mask"]).bool()
    cosine = torch.nn.CosineEmbeddingLoss()(hidden[real], wanted[real], torch.ones(int(real.sum())))
    entropy = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(y["mlm"]).flatten(), reduction="none"
    )
    masked = float((entropy.reshape(4, MASKS) * counted).sum() / counted.sum())
    # float32 sums over 50 classes and 24 units
    assert logs["soft_loss"] == pytest.approx(soft, rel=1e-4)
    assert logs["hidden_loss"] == pytest.approx(float(cosine), rel=1e-4)
    assert logs["loss"] == pytest.approx(5 * soft + 2 * masked + float(cosine), rel=1e-4)


@pytest.mark.any_backend
def test_only_the_student_learns():
    student, teacher = make_masked_lm("distilbert", num_layers=1), make_masked_lm(seed=5)
    model = kbf.Distiller(student, teacher)
    assert [weight.path for weight in model.trainable_variables] == [weight.path for weight in student.weights]
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    before, taught = teacher.get_weights(), student.get_weights()
    x, y, weights = make_batch()
    model.train_on_batch(x, y, sample_weight=weights)
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    changed = [np.abs(old - new).max() > 0 for old, new in zip(taught, student.get_weights(), strict=True)]
    assert all(changed)
    assert model.find_published() is student


@pytest.mark.any_backend
def test_a_loss_of_weight_0_is_left_out():
    student, teacher = make_masked_lm(hidden_dim=12), make_masked_lm(seed=5)
    with pytest.raises(ValueError, match="of one width to be compared. Received: hidden_dim=12, the teacher's 24"):
        kbf.Distiller(student, teacher)
    model = kbf.Distiller(student, teacher, hidden_state_weight=0.0)
    assert set(model.output) == {"mlm", "soft"}
    with pytest.raises(ValueError, match="the vocabulary of its teacher. Received: 40 tokens, the teacher's 50"):
        kbf.Distiller(make_masked_lm(vocabulary_size=40), teacher)


@pytest.mark.any_backend
def test_configuration_comes_back():
    model, (x, _, _) = kbf.Distiller(make_masked_lm(num_layers=1), make_masked_lm(seed=5), 4.0), make_batch()[:3]
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    for name, value in model.predict(x, verbose=0).items():
        np.testing.assert_array_equal(value, twin.predict(x, verbose=0)[name])


@pytest.mark.any_backend
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
def test_a_student_of_all_layers_is_its_teacher(family):
    """Without segments, those of the first text are in the positions; RoBERTa counts its own from the padding."""
    teacher = make_masked_lm(seed=5, layer_norm_epsilon=1e-12)
    options = {"electra": {"embedding_dim": SMALL["hidden_dim"]}, "roberta": {"layer_norm_epsilon": 1e-12}}
    student = make_masked_lm(family, seed=7, **options.get(family, {}))
    copy_layers(teacher, student)
    x = make_inputs(masks_per_sequence=MASKS)
    x["segment_ids"] = np.zeros_like(x["segment_ids"])
    expected, found = (model.predict(x, verbose=0)["mlm"] for model in (teacher, student))
    # sums of embeddings in another order: float32 roundings of 6e-8 through two layers
    np.testing.assert_allclose(found[:3], expected[:3], atol=1e-5)


@pytest.mark.any_backend
def test_a_student_takes_layers_evenly_spaced():
    teacher, student = make_masked_lm(num_layers=6), make_masked_lm(num_layers=3, seed=2)
    copy_layers(teacher, student)
    for number, block in enumerate(student.backbone.blocks):
        for one, other in zip(block.get_weights(), teacher.backbone.blocks[2 * number].get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    for settings, message in (
        ({"num_layers": 7}, "7 blocks for 6 layers"),
        ({"intermediate_dim": 20}, "intermediate_dim=20, not 40"),
    ):
        with pytest.raises(ValueError, match=f"as wide, and no deeper. Received: {message}"):
            copy_layers(teacher, make_masked_lm(**settings))
