"""Pre-train with one change to the recipe at a time, on as many tokens, and print the losses, as a Markdown table.

    python -m benchmarks.recipe_candidates --records RECORDS --steps 600 --seeds 1 2

The recipe is that of `docs/recipes.md`: Muon, co-occurrence embeddings, unigram bias, dynamic masks of 15 %, no
dropout, a learning rate that falls to 0 linearly. RECORDS are of the objective mlm. Every candidate sees `steps` times
64 sequences, and its learning rate falls to 0 with the last of them. Processor time is that of the steps alone. The
held-out loss is that of the records' own masks. Candidates that are no setting of the package exist here only.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.runtime import arithmetic, seed_everything
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.defaults import TokenLoss
from keras_bert_flow.models.pretraining.bag_of_words import WORDS, BagOfWordsPretrainer
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer
from keras_bert_flow.training.optimizers.schedules import LINEAR, TRAPEZOID, WarmupDecay
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer, set_initial_tokens
from keras_bert_flow.training.pretraining.validation import score_pretraining

BATCH = 64
PEAK, MATRIX_PEAK = 1e-3, 0.02
WARMUP_SHARE = 0.02
HELD_OUT = 2000  # instances
STARTS = {}  # seed → token embeddings and output bias


@dataclass(frozen=True)
class Candidate:
    """One change to the recipe.

    Attributes:
        change: in words, with its source.
        parts: (share of the tokens, sequences of a batch, masked fraction or None), one after another.
        optimizer: its name.
        peak: highest learning rate.
        decay: how the rate falls; see `WarmupDecay`.
        z_weight: of the squared log-normaliser in the loss.
        averaging: of an exponential average of the weights, which is measured in place of the last ones.
        bag_of_words: its weight.
        halves: share of the steps in which sequences are cut in two.
    """

    change: str
    parts: tuple[tuple[float, int, float | None], ...] = ((1.0, BATCH, None),)
    optimizer: str = "muon"
    peak: float = PEAK
    decay: str = LINEAR
    z_weight: float = 0.0
    averaging: float = 0.0
    bag_of_words: float = 0.0
    halves: float = 0.0


CANDIDATES = {
    "recipe": Candidate("none"),
    "masks 30": Candidate("30 % masked (Wettig et al. 2023)", parts=((1.0, BATCH, 0.3),)),
    "masks fall": Candidate(
        "30, 25, 20, then 15 % masked (Ankner et al. 2024)",
        parts=tuple((0.25, BATCH, share) for share in (0.3, 0.25, 0.2, 0.15)),
    ),
    "batches rise": Candidate(
        "batches of 16, 32, then 64 (Smith et al. 2018)", parts=tuple((1 / 3, size, None) for size in (16, 32, 64))
    ),
    "trapezoid": Candidate("a constant rate that falls in the last fifth (Hägele et al. 2024)", decay=TRAPEZOID),
    "z-loss": Candidate("1e-4 log² Z added to the loss (Chowdhery et al. 2022)", z_weight=1e-4),
    "averaging": Candidate("an average of the weights, decay 0.99 (Izmailov et al. 2018)", averaging=0.99),
    "halves first": Candidate("sequences cut in two for half of the steps (Press et al. 2021)", halves=0.5),
    "lamb": Candidate("LAMB, rate 0.005 (You et al. 2020)", optimizer="lamb", peak=0.005),
    "bag of words": Candidate("a bag of words of weight 2 (Ma et al. 2024)", bag_of_words=2.0),
}


class ZLoss(TokenLoss):
    """The cross-entropy, with the square of the log-normaliser times a weight."""

    def __init__(self, weight):
        super().__init__(reduction="mean_with_sample_weight")
        self.weight = weight

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) + self.weight * ops.square(ops.logsumexp(y_pred, axis=-1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    return parser.parse_args()


def draw_batches(records: PretrainingRecords, candidate: Candidate, seed: int, steps: int) -> Iterator[tuple]:
    """Yield the batches of all parts; each goes on in the data where the one before ended."""
    done = 0  # sequences
    for share, size, masked_fraction in candidate.parts:
        sequences = round(share * steps * BATCH)
        dataset = pretraining_dataset(
            records,
            size,
            seed,
            start_step=done // size,
            masking="dynamic",
            bag_of_words=candidate.bag_of_words > 0,
            masked_fraction=masked_fraction,
        )
        yield from islice(iter(dataset), sequences // size)
        done += sequences


def cut_in_two(batch: tuple[dict, dict, dict]) -> tuple[dict, dict, dict]:
    """Make two rows of each: its first half with the predictions there, then its second half with the others."""
    x, y, weights = batch
    half, positions = x["token_ids"].shape[1] // 2, x["mask_positions"]
    is_first = positions < half
    cut = {
        name: np.concatenate([values[:, :half], values[:, half:]])
        for name, values in x.items()
        if name != "mask_positions"
    }
    cut["mask_positions"] = np.concatenate([np.where(is_first, positions, 0), np.where(is_first, 0, positions - half)])
    weight = weights["mlm"]
    return (
        cut,
        {"mlm": np.concatenate([y["mlm"]] * 2)},
        {"mlm": np.concatenate([weight * is_first, weight * ~is_first])},
    )


def start_tokens(model, records: PretrainingRecords, settings: PretrainingConfig, seed: int) -> None:
    """Set token embeddings and output biases from counts, which are made once for each seed."""
    if seed not in STARTS:
        set_initial_tokens(model, records, settings, seed)
        STARTS[seed] = model.backbone.token_embedding.get_weights(), model.get_layer("mlm").get_weights()
    embeddings, bias = STARTS[seed]
    model.backbone.token_embedding.set_weights(embeddings)
    for name in {"mlm", WORDS} & model.output.keys():
        model.get_layer(name).set_weights(bias)


def make_model(arguments: argparse.Namespace, records: PretrainingRecords, candidate: Candidate, seed: int, steps: int):
    """Return a compiled model with new weights."""
    seed_everything(seed)
    shape = {"size": arguments.size, "max_positions": 128, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    counts = {"token_embeddings": "co_occurrence", "output_bias": "unigram"}
    config = PipelineConfig.model_validate({"model": shape, "pretraining": counts})
    model = make_pretrainer(config.model, records.manifest.config["vocabulary_size"], records.objective)
    trained = BagOfWordsPretrainer(model, candidate.bag_of_words) if candidate.bag_of_words else model
    start_tokens(trained, records, config.pretraining, seed)
    warmup = max(1, round(WARMUP_SHARE * steps))
    schedule = WarmupDecay(candidate.peak, warmup, steps, candidate.decay)
    muon = {"matrices": model.backbone.list_matrices(), "matrix_rate_factor": MATRIX_PEAK / PEAK}
    muon["product_type"] = "bfloat16" if arguments.precision == "mixed_bfloat16" else "float32"
    optimizer = make_guarded_optimizer(candidate.optimizer, schedule, precision=arguments.precision, muon_options=muon)
    loss = {"mlm": ZLoss(candidate.z_weight)} if candidate.z_weight else None
    trained.compile(optimizer=optimizer, loss=loss, auto_scale_loss=False)
    return trained


def measure(arguments: argparse.Namespace, candidate: Candidate, seed: int) -> dict[str, float]:
    """Train with a candidate; return processor seconds, million tokens and the held-out loss."""
    keras.backend.clear_session(free_memory=True)
    records, held_out = PretrainingRecords(arguments.records), PretrainingRecords(arguments.records, "held_out")
    steps = sum(int(share * arguments.steps * BATCH) // size for share, size, _ in candidate.parts)
    with arithmetic(arguments.precision):
        model = make_model(arguments, records, candidate, seed, steps)
    average, tokens, started_at = None, 0, time.process_time()
    for step, batch in enumerate(draw_batches(records, candidate, seed, arguments.steps)):
        tokens += batch[0]["token_ids"].size
        model.train_on_batch(*(cut_in_two(batch) if step < candidate.halves * steps else batch))
        if candidate.averaging:
            average = mix(average, model.get_weights(), candidate.averaging)
    seconds = time.process_time() - started_at
    if average is not None:
        model.set_weights(average)
    scores = score_pretraining(model, ordered_batches(held_out, BATCH, HELD_OUT), find_objective("mlm"))
    return {"seconds": seconds, "tokens": tokens / 1e6, "loss": scores["masked_lm_loss"]}


def mix(average: list[np.ndarray] | None, weights: list[np.ndarray], decay: float) -> list[np.ndarray]:
    """Return the exponential average of weights."""
    if average is None:
        return weights
    return [decay * old + (1 - decay) * new for old, new in zip(average, weights, strict=True)]


def describe(values: list[float], spec: str) -> str:
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:{spec}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{spec}}{error}"


def main() -> None:
    arguments = parse_arguments()
    print(
        "| change | processor seconds | million tokens | held-out loss |", "|---|---:|---:|---:|", sep="\n", flush=True
    )
    for name in arguments.candidates:
        candidate = CANDIDATES[name]
        found = [measure(arguments, candidate, seed) for seed in arguments.seeds]
        seconds, tokens, losses = ([row[key] for row in found] for key in ("seconds", "tokens", "loss"))
        cells = f"{statistics.fmean(seconds):.0f} | {statistics.fmean(tokens):.1f} | {describe(losses, '.3f')}"
        print(f"| {name}: {candidate.change} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
