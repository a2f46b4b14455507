"""The masked LM alone: the pre-trainer without its second head and its pooler."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.heads.classifiers import TextClassifier
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer, MaskedLM
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs


def make_masked_lm(**settings):
    model = MaskedLM(BertBackbone(**SMALL, use_pooler=False, **settings))
    numpy_bert.randomise_weights(model, seed=6)
    return model


@pytest.mark.slow_compiled
def test_masked_lm_is_the_pretrainer_without_pooler_and_sentence_head():
    model, pretrainer = make_masked_lm(), BertPretrainer(BertBackbone(**SMALL))
    paths = [variable.path for variable in pretrainer.weights]
    ours = {variable.path: variable for variable in model.weights}
    assert list(ours) == [path for path in paths if not path.startswith(("pooler/", "nsp/"))]
    for variable in pretrainer.weights:
        if variable.path in ours:
            variable.assign(np.array(keras.ops.convert_to_numpy(ours[variable.path].value)))
    inputs = make_inputs(masks_per_sequence=3)
    outputs = model.predict(inputs, verbose=0)
    assert set(outputs) == {"mlm"}
    np.testing.assert_array_equal(outputs["mlm"], pretrainer.predict(inputs, verbose=0)["mlm"])


@pytest.mark.slow_compiled
def test_masked_lm_default_loss_is_mean_over_real_predictions():
    model = make_masked_lm()
    model.compile()
    inputs = make_inputs(masks_per_sequence=3)
    labels = np.random.default_rng(7).integers(0, 50, (4, 3))
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32")
    mlm = model.predict(inputs, verbose=0)["mlm"].astype("float64")
    entropy = np.log(np.exp(mlm).sum(-1)) - np.take_along_axis(mlm, labels[..., None], -1)[..., 0]
    logs = model.evaluate(inputs, {"mlm": labels}, sample_weight={"mlm": weights}, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx((entropy * weights).sum() / 6, abs=1e-5)  # float32 logits of up to 5
    hits = (mlm.argmax(-1) == labels) * weights
    assert logs["accuracy"] == pytest.approx(hits.sum() / 6, abs=1e-6)


@pytest.mark.slow_compiled
@pytest.mark.slow_on_tensorflow
def test_every_weight_of_a_masked_lm_is_trained():
    model = make_masked_lm(dropout_rate=0.0, attention_dropout_rate=0.0)
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    before = model.get_weights()
    inputs = make_inputs(masks_per_sequence=3)
    model.train_on_batch(inputs, {"mlm": np.ones((4, 3), "int32")}, sample_weight={"mlm": np.ones((4, 3), "float32")})
    changed = [np.abs(old - new).max() for old, new in zip(before, model.get_weights(), strict=True)]
    assert [v.path for v, change in zip(model.weights, changed, strict=True) if not change] == []


@pytest.mark.any_backend
@pytest.mark.slow_on_tensorflow
def test_masked_lm_config_round_trip():
    model = make_masked_lm(hidden_act="gelu_tanh")
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    inputs = make_inputs(masks_per_sequence=3)
    ours, theirs = (m.predict(inputs, verbose=0)["mlm"] for m in (model, twin))
    np.testing.assert_array_equal(ours, theirs)


def test_heads_refuse_a_backbone_that_does_not_fit():
    with pytest.raises(ValueError, match="without a pooler.*Received: use_pooler=True"):
        MaskedLM(BertBackbone(**SMALL))
    bare = BertBackbone(**SMALL, use_pooler=False)
    for make in (BertPretrainer, lambda backbone: TextClassifier(backbone, 2, pooling="cls")):
        with pytest.raises(ValueError, match="with a pooler. Received: use_pooler=False"):
            make(bare)
