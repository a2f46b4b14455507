"""Time pre-training steps of each family of encoders, and print operations a second beside those of BERT, in Markdown.

    KERAS_BACKEND=torch python -m benchmarks.family_speed --precision mixed_bfloat16

Every family has its own objective, AdamW and dropout of 0.1; a DistilBERT is also distilled from a BERT of twice its
layers, whose forward pass counts.
All are in one process of one backend, warmed up; then they take turns, a few steps each. Operations are those of matrix
products (`models/sizes.py`); what is done element by element counts for nothing, so a family with more of it is slower
by this measure.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.peers.serving import endless
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.text.objectives.mlm import Distillation
from keras_bert_flow.text.objectives.objective import Objective, find_objective

BERT = "BERT"
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    BERT: ("bert", "mlm_nsp", {}),
    "RoBERTa": ("roberta", "mlm", {}),
    "ALBERT": ("albert", "mlm_sop", {"embedding_dim": 128}),
    "ELECTRA": ("electra", "rtd", {"embedding_dim": 128}),
    "DistilBERT": ("distilbert", "mlm", {}),
    "ModernBERT": ("modernbert", "mlm", {}),
}
STUDENT = "DistilBERT, distilled"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    return parser.parse_args()


def make_config(arguments: argparse.Namespace, family: str, options: dict[str, Any], **more: Any) -> PipelineConfig:
    positions = max(64, arguments.sequence_length)
    return PipelineConfig(
        model={"family": family, "size": arguments.size, "max_positions": positions, "options": options},
        records={"sequence_length": arguments.sequence_length, "max_predictions": arguments.predictions},
        pretraining={"precision": arguments.precision, "batch_size": arguments.batch_size},
        finetuning={"sequence_length": positions},
        **more,
    )


def make_batch(arguments: argparse.Namespace, objective: Objective) -> tuple:
    """Make a batch without padding, of random tokens."""
    rng = np.random.default_rng(1)
    rows, length, masks = arguments.batch_size, arguments.sequence_length, arguments.predictions
    features = {
        "input_ids": rng.integers(5, arguments.vocabulary_size, (rows, length)),
        "input_mask": np.ones((rows, length), int),
        "segment_ids": np.zeros((rows, length), int),
        "masked_lm_positions": np.stack([1 + rng.permutation(length - 1)[:masks] for _ in range(rows)]),
        "masked_lm_ids": rng.integers(5, arguments.vocabulary_size, (rows, masks)),
        "masked_lm_weights": np.ones((rows, masks), "float32"),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)),
    }
    drawn = [objective.draw({name: value[row] for name, value in features.items()}, row) for row in range(rows)]
    return objective.make_batch({name: np.stack([row[name] for row in drawn]) for name in drawn[0]})


def make_steps(arguments: argparse.Namespace) -> dict[str, tuple[Callable[[int], None], int]]:
    """Return for each model what runs steps, and the operations of a step."""
    import keras

    import keras_bert_flow as kbf
    from keras_bert_flow.models.sizes import count_flops, resolve_shape
    from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer

    keras.config.set_dtype_policy(arguments.precision)
    length, masks = arguments.sequence_length, arguments.predictions

    def prepare(model: Any, config: PipelineConfig, objective: Objective, flops: int):
        compile_pretrainer(model, config)
        batch = make_batch(arguments, objective)

        def run(steps: int) -> None:
            model.fit(endless(batch), steps_per_epoch=steps, shuffle=False, verbose=0)

        return run, arguments.batch_size * flops

    found = {}
    for name, (family, objective, options) in MODELS.items():
        config = make_config(arguments, family, options)
        model, chosen = make_pretrainer(config.model, arguments.vocabulary_size, objective), find_objective(objective)
        shape = model.backbone.shape
        generator = shape.narrow(config.pretraining.generator_size) if chosen.has_generator else None
        flops = count_flops(shape, length, masks, use_pooler=chosen.has_pairs, generator=generator)
        found[name] = prepare(model, config, chosen, flops.training)

    layers = resolve_shape(config.model, arguments.vocabulary_size).num_layers
    student = {
        "family": "distilbert",
        "size": arguments.size,
        "num_layers": layers // 2,
        "max_positions": max(64, length),
    }
    config = make_config(arguments, "bert", {}, distillation={"student": student, "batch_size": arguments.batch_size})
    small, large = (
        kbf.MaskedLM(kbf.Backbone(part.family, use_pooler=False, **asdict(shape)))
        for part in (config.distillation.student, config.model)
        for shape in [resolve_shape(part, arguments.vocabulary_size)]
    )
    counts = [count_flops(model.backbone.shape, length, masks, use_pooler=False) for model in (small, large)]
    flops = counts[0].training + counts[1].forward
    found[STUDENT] = prepare(kbf.Distiller(small, large), config.student, Distillation(), flops)
    return found


def main() -> None:
    arguments = parse_arguments()
    steps = make_steps(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(arguments.rounds + 1):
        for name, (run, _) in steps.items():
            started = time.process_time()
            run(arguments.steps)
            if turn:  # the first compiles
                seconds[name].append((time.process_time() - started) / arguments.steps)
    print("| family | ms a step | GFLOP a step | GFLOP/s | of BERT's |", "|---|---:|---:|---:|---:|", sep="\n")
    rates = {name: flops / statistics.median(seconds[name]) for name, (_, flops) in steps.items()}
    for name, (_, flops) in steps.items():
        milliseconds, share = 1000 * statistics.median(seconds[name]), rates[name] / rates[BERT]
        print(f"| {name} | {milliseconds:,.0f} | {flops / 1e9:,.1f} | {rates[name] / 1e9:,.0f} | {share:.2f} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
