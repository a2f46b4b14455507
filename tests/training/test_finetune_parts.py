"""Fine-tuning in parts: a step is that of the whole batch, whatever the loss; a killed run ends in the same bits."""

import numpy as np
import pytest

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from tests.training.finetune_cases import OF_ANY_LENGTH, finetune_case, largest_difference, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("parts"))


CASES = [
    pytest.param("question_answering", OF_ANY_LENGTH, marks=pytest.mark.slow_on_tensorflow),
    *(
        pytest.param(name, options, marks=pytest.mark.any_backend)
        for name, options in [
            ("classification", OF_ANY_LENGTH | {"max_widths": 1}),  # the others have two
            ("multiple_choice", OF_ANY_LENGTH),
            ("token_classification", {"optimizer": "lamb"}),
        ]
    ),
    *(
        pytest.param(name, options, marks=[pytest.mark.any_backend, pytest.mark.slow])
        for name, options in [
            ("classification", {}),
            ("regression", OF_ANY_LENGTH),
            ("multi_label", OF_ANY_LENGTH),
            ("token_classification", OF_ANY_LENGTH),
            ("scored_pairs", OF_ANY_LENGTH),
        ]
    ),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.any_backend
@pytest.mark.first_form
def test_parts_make_the_step_of_the_whole(model, tmp_path, name, options):
    (whole,), whole_losses = finetune_case(model, tmp_path / "whole", name, **options)
    (parts,), losses = finetune_case(model, tmp_path / "parts", name, accumulate_batches=4, **options)
    # Gradients differ by roundings of about 1e-8. Adam divides by their size, but by no less than epsilon, 1e-6: where
    # a gradient is rounding alone (that of the bias of keys is 0) a step of 0.003 differs by a hundredth, 3e-5.
    assert largest_difference(parts, whole) < 3e-5
    np.testing.assert_allclose(losses, whole_losses, rtol=1e-5, atol=1e-5)  # of such weights
    assert len(losses) == 8


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_run_in_parts_ends_in_the_same_bits(model, tmp_path):
    class Killed(BaseException):
        pass

    def die(line):
        if line["run"].endswith("seed-2") and line["step"] > 5:
            raise Killed

    options = OF_ANY_LENGTH | {"accumulate_batches": 2, "dropout_rate": 0.1}
    whole, _ = finetune_case(model, tmp_path / "whole", "token_classification", seeds=(1, 2), **options)
    with pytest.raises(Killed):
        finetune_case(model, tmp_path / "killed", "token_classification", die, seeds=(1, 2), **options)
    steps = []
    again, _ = finetune_case(
        model, tmp_path / "killed", "token_classification", lambda line: steps.append(line["step"]), (1, 2), **options
    )
    alone, _ = finetune_case(model, tmp_path / "alone", "token_classification", seeds=(2,), **options)
    assert steps == [5, 6, 7, 8]  # on from the end of the first pass
    assert largest_difference(whole[0], whole[1]) > 1e-3
    for found, expected in ((again[0], whole[0]), (again[1], whole[1]), (alone[0], whole[1])):
        assert largest_difference(found, expected) == 0


def test_parts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="must be a multiple of `accumulate_batches`. Received: batch_size=6, accumul"):
        make_config(PipelineConfig, {"finetuning": {"batch_size": 6, "accumulate_batches": 4}}, "task")
    grid = {"batch_size": (16, 18)}
    with pytest.raises(ValueError, match="must be a multiple of `accumulate_batches`. Received: batch_size=18, accumu"):
        make_config(PipelineConfig, {"finetuning": {"grid": grid, "accumulate_batches": 4}}, "task")
    pairs = {"name": "pairs", "kind": "sentence_embedding", "train": "t", "dev": "t", "objective": "contrastive"}
    with pytest.raises(ValueError, match="compares all pairs of a batch.* Received: finetuning.accumulate_batches=2"):
        make_config(PipelineConfig, {"task": pairs, "finetuning": {"accumulate_batches": 2}}, "task")
