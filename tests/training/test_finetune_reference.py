"""Fine-tuning takes the steps of `transformers` and PyTorch where nothing is drawn, and where both drop the same."""

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.backends import kernels
from keras_bert_flow.backends.fused import STEPS
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from keras_bert_flow.layers import attention, dense, masks
from tests.oracles.numpy_bert import randomise_weights
from tests.tasks.kinds import make_case
from tests.training.finetune_cases import LENGTH, OF_ANY_LENGTH, SETTINGS, finetune_case, write_tiny_model

torch = pytest.importorskip("torch", reason="the reference needs torch")
pytest.importorskip("transformers", reason="the reference needs transformers")

ROWS = 32  # four whole batches: filler would change the order of the draws
# Keras adds epsilon before the second moment is corrected for its start at 0, PyTorch after: so small a one hides it.
OPTIONS = OF_ANY_LENGTH | {"epsilon": 1e-12, "warmup_fraction": 0.3, "clip_norm": 1.5}  # norms are 0.4 to 3.3
KINDS = ["token_classification", pytest.param("classification", marks=pytest.mark.any_backend)]
PARTS = pytest.mark.parametrize("accumulate_batches", [1, pytest.param(4, marks=pytest.mark.any_backend)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("reference"))


class Draws:
    """Dropout whose masks are those of their numbers, for texts of whatever width, in the place of both sides' own."""

    def __init__(self):
        self.count = 0

    def drop(self, values, dropped):
        rate = dropped / STEPS
        shape = values.shape if values.dim() == 2 else [*values.shape[:-2], LENGTH, max(LENGTH, values.shape[-1])]
        mask = np.random.default_rng([7, self.count]).random(shape) >= rate
        self.count += 1
        mask = mask[tuple(slice(size) for size in values.shape)]
        return values * torch.tensor(mask / (1 - rate), dtype=values.dtype, device=values.device)


def finetune_both(model, folder, name, **changes):
    """Return the weights at the start, and at the end here and there."""
    from benchmarks.peers import finetune_transformers as peer  # needs both; that it cannot be imported is no skip

    case, head, options = make_case(name, ROWS), folder / "head", OPTIONS | changes
    first = load_task_model(name, model, labels=case.task.labels)
    randomise_weights(first, 7)  # attention that is uniform has no gradient but rounding
    save_model_directory(first, head, model / "vocab.txt")
    (ours,), _ = finetune_case(head, folder / "run", name, rows=ROWS, **options)
    settings = make_config(PipelineConfig, {"finetuning": SETTINGS | options}, "task").finetuning
    reference = peer.load_model(head, case.task, settings.dropout_rate)
    reference.set_attn_implementation("eager")
    peer.train(reference, peer.Windows(head, case.task, case.training, LENGTH), settings, 1, reference)
    theirs = {name: value.numpy() for name, value in reference.state_dict().items()}
    return load_file(head / "model.safetensors"), ours, theirs


def assert_steps_agree(start, ours, theirs):
    """Of 0.003 and less each, they add up to 0.01; gradients differ by roundings, a millionth of their mean size."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if name.endswith(".key.bias"):  # no loss depends on it: Adam makes steps of full size from rounding
            continue
        assert np.abs(expected - start[name]).max() > 3e-3, name
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.slow_compiled
@PARTS
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.slow_on_tensorflow
@pytest.mark.first_form
def test_steps_are_those_of_transformers(model, tmp_path, name, accumulate_batches):
    assert_steps_agree(*finetune_both(model, tmp_path, name, accumulate_batches=accumulate_batches))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="a compiled step would keep its first masks")
@PARTS
@pytest.mark.parametrize("name", ["token_classification", "classification"])
@pytest.mark.first_form
def test_steps_are_those_of_transformers_with_the_same_masks(model, tmp_path, monkeypatch, name, accumulate_batches):
    ours, theirs = Draws(), Draws()

    def drop_here(values, seed, dropped):
        return ours.drop(values, dropped)

    def drop_there(values, p=0.5, training=True, inplace=False):
        return theirs.drop(values, dense.dropped_steps(p)) if training and p > 0 else values

    for module in (dense, attention, kernels):
        monkeypatch.setattr(module, "drop_values", drop_here)
    monkeypatch.setattr(masks, "is_unpaddable", lambda padding_mask: False)  # there padding takes masks as well
    monkeypatch.setattr(torch.nn.functional, "dropout", drop_there)
    found = finetune_both(model, tmp_path, name, dropout_rate=0.1, accumulate_batches=accumulate_batches)
    assert ours.count == theirs.count > 0
    assert_steps_agree(*found)
