"""Fine-tuning in parts: a step is that of the whole batch, whatever the loss; a killed run ends in the same bits."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.config_file import make_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.text.vocabulary import write_vocabulary
from keras_bert_flow.training.logs import read_log
from keras_bert_flow.training.precision import seed_everything
from keras_bert_flow.training.pretrain import make_pretrainer
from keras_bert_flow.training.task_data import TaskData
from keras_bert_flow.training.task_runs import PRETRAINED, TaskRuns
from tests.oracles.tiny_records import make_tiny_config
from tests.tasks.kinds import LETTERS, TOKENIZER, make_case

ROWS = 29  # batches of 8: the last of a pass has 5, and one of its parts is all filler
LENGTH = 32
SETTINGS = {
    "batch_size": 8,
    "epochs": 2,
    "sequence_length": LENGTH,
    "learning_rate": 0.003,
    "warmup_fraction": 0,
    "dropout_rate": 0,
    "clip_norm": 0.1,  # less than the norms, and that of the mean of the parts, not of each
    "max_widths": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_vocabulary(folder / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
    seed_everything(5)
    pretrainer = make_pretrainer(make_tiny_config({"max_positions": LENGTH}).model, 5 + len(LETTERS))
    save_model_directory(pretrainer, folder / "model", folder / "vocab.txt")
    return folder / "model"


def finetune_case(model, folder, name, report=lambda line: None, seeds=(1,), **changes):
    """Fine-tune on a case, once a seed; return the weights of each run, and the losses of the first."""
    case, table = make_case(name, ROWS), str(model / "vocab.txt")  # as good as any: examples are drawn, not read
    values = {"task": {"name": name, "train": table, "dev": table}, "finetuning": SETTINGS | changes}
    train, dev = (case.task.encode(TOKENIZER, examples, LENGTH) for examples in (case.training, case.dev))
    config = make_config(PipelineConfig, values, "task")
    runs = TaskRuns(config, model, TOKENIZER, TaskData(case.task, train, case.dev, dev), report, ())
    for seed in seeds:
        runs.finish(folder / PRETRAINED / f"seed-{seed}", PRETRAINED, seed)
    folders = [folder / PRETRAINED / f"seed-{seed}" for seed in seeds]
    weights = [load_file(run / "model" / "model.safetensors") for run in folders]
    return weights, [line["loss"] for line in read_log(folders[0])]


def largest_difference(some, others):
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)


OF_ANY_LENGTH = {"group_by_length": False}
CASES = [
    ("classification", OF_ANY_LENGTH),
    ("question_answering", OF_ANY_LENGTH),
    *(
        pytest.param(name, options, marks=pytest.mark.any_backend)
        for name, options in [
            ("classification", {}),
            ("regression", OF_ANY_LENGTH),
            ("multi_label", OF_ANY_LENGTH),
            ("multiple_choice", OF_ANY_LENGTH),
            ("token_classification", OF_ANY_LENGTH),
            ("token_classification", {"optimizer": "lamb"}),
            ("scored_pairs", OF_ANY_LENGTH),
        ]
    ),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_parts_make_the_step_of_the_whole(model, tmp_path, name, options):
    (whole,), whole_losses = finetune_case(model, tmp_path / "whole", name, **options)
    (parts,), losses = finetune_case(model, tmp_path / "parts", name, accumulate_batches=4, **options)
    # Gradients differ by roundings of about 1e-8. Adam divides by their size, but by no less than epsilon, 1e-6: where
    # a gradient is rounding alone (that of the bias of keys is 0) a step of 0.003 differs by a hundredth, 3e-5.
    assert largest_difference(parts, whole) < 3e-5
    np.testing.assert_allclose(losses, whole_losses, rtol=1e-5, atol=1e-5)  # of such weights
    assert len(losses) == 8


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
