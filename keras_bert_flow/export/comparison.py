"""Compare an exported model, loaded in its runtime, with the original model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from keras_bert_flow.console.job_progress import JobPart, note
from keras_bert_flow.data.tasks import make_inputs
from keras_bert_flow.export.format import Inputs, Run
from keras_bert_flow.export.request import MAX_CHANGED
from keras_bert_flow.export.served_model import INPUT_NAMES, LOGITS, ServedModel
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Maximum difference of float32 outputs, relative to the largest output if that is above 1. With another order of
# summation, twelve layers differ by some 1e-6 for outputs of about 1: the rounding of one product, 2^-24, accumulated.
TOLERANCE = 1e-5
# Maximum RMS error of int8, relative to the standard deviation of an output over texts. A model that outputs the mean
# over all texts for each text has an error of 1.
MOST_INT8_ERROR = 0.5
COMPARING = JobPart("comparing", "batches")
MASKED = -1e8  # outputs below it are masked: `MASKED_SCORE` of padding
CHOICES = 2  # texts per row, for a model that takes several
MARGIN = 5  # padding beyond the longest row

# They have various lengths and contain what tokenizers differ on: accents, scripts without spaces, digits, symbols and
# marks.
SENTENCES = (
    "Yes.",
    "No way!",
    "It rained all night.",
    "Where did you put the keys?",
    "A fine film, if a little long.",
    "The soup was cold and the waiter did not care.",
    "Ada Lovelace was born in London in 1815.",
    "Please send the invoice to accounts@example.com by Friday.",
    "Prices rose by 3.7% in March, more than anyone had expected.",
    "I have never been so bored in my life, and I have sat through tax law.",
    "The committee will meet again on 14 May at 10:30 in room 2-117.",
    "Café, naïve, façade, jalapeño, Zoë and Ångström keep their accents here.",
    "Der Zug nach Köln fährt heute von Gleis 7 ab.",
    "Il n'y a pas de fumée sans feu, disait ma grand-mère.",
    "¿Dónde está la biblioteca? Está cerrada los lunes.",
    "Быстрая лиса перепрыгнула через ленивую собаку.",
    "我们明天早上八点在车站见面。",
    "東京タワーの高さは333メートルです。",
    "서울은 대한민국의 수도이다.",
    "القاهرة هي عاصمة مصر.",
    "आज मौसम बहुत अच्छा है।",
    "Good morning 😀 see you at 8 🚀",
    "x = f(y) + 2*z[0]; // not a sentence, but people type such things",
    "https://www.example.org/path?query=1&other=two#part",
    "“Quoted”, ‘single’, and — with dashes – of two kinds…",
    "She said that he said that they had said nothing at all.",
    "The 19th-century railway, long abandoned, is now a path for cyclists.",
    "Water boils at 100 °C (212 °F) at sea level.",
    "Antidisestablishmentarianism is a long word; pneumonoultramicroscopicsilicovolcanoconiosis is longer.",
    "The patient was given 5 mg of the drug twice a day for two weeks, without any improvement.",
    "Under the terms of this contract neither party may disclose the price to anybody else before the closing date.",
    "He opened the door, saw the mess, closed the door again, and went for a walk.",
    "Of all the restaurants in town this is the only one that I would go back to, and the only one I cannot afford.",
    "The museum holds more than 40,000 objects, of which fewer than 2,000 are on display at any time.",
    "If the battery does not charge, unplug the cable, wait for ten seconds, and try another socket before you call.",
    "Scientists have found water on the moon, though far less of it than in the driest desert on Earth.",
    "The second half of the book, in which nothing happens for two hundred pages, is by far the better one.",
    "After three extensions, two lawsuits and one change of government, the bridge was opened to traffic on Tuesday "
    "by a minister who had voted against it.",
    "The model was trained on text from the encyclopedia, evaluated on questions written by students, and compared "
    "with two baselines, neither of which had seen the questions before; on the hardest of them all three did badly.",
    "Bring a warm coat, a torch, something to eat, enough water for a day, a map of the area that is made of paper, "
    "and tell somebody who stays at home where you are going and when you intend to be back, because there is no "
    "telephone network beyond the last village and the weather on the pass can change within minutes.",
)


@dataclass(frozen=True)
class Comparison:
    """Result of comparing an exported model with the original.

    Attributes:
        texts, batches: number of each compared.
        largest_difference: largest absolute difference of two outputs.
        error: largest RMS difference of an output, relative to its standard deviation over texts.
        agreement: fraction of equal predictions; None if the model predicts neither classes nor positions.
        predictions: number of them.
    """

    texts: int
    batches: int
    largest_difference: float
    error: float
    agreement: float | None
    predictions: int

    @property
    def changed(self) -> int:
        """Number of predictions that are not those of the original."""
        return 0 if self.agreement is None else round((1 - self.agreement) * self.predictions)


def compare(
    model: ServedModel, run: Run, tokenizer: Tokenizer, title: str, int8: bool, max_changed: float = MAX_CHANGED
) -> Comparison:
    """Compare the outputs of an exported model with the original's.

    Args:
        run: computes the exported model in its runtime.
        title: name of the format, for messages.
        int8: whether its weights are int8; then the tolerance is `MOST_INT8_ERROR`, else `TOLERANCE`.
        max_changed: the share of the predictions that int8 may change.
    Raises:
        ValueError: the runtime refuses a batch, the outputs differ by more than the tolerance, or int8 changes more
            predictions.
    """
    found = _Differences(model, title, int8)
    for inputs in make_batches(model, tokenizer):
        wanted = model.model.predict_on_batch({name: ids.astype(np.int32) for name, ids in inputs.items()})
        with in_runtime(title):
            received = run(inputs)
        found.add(wanted, received, inputs)
        note(COMPARING)
    done = found.summarise()
    if int8 and done.error > MOST_INT8_ERROR:
        raise ValueError(
            f"A model with int8 weights must say what the model says. Received: {title} with errors of "
            f"{done.error:.2f} of the outputs' standard deviation, at most {MOST_INT8_ERROR}. Leave --int8 out."
        )
    if int8 and done.changed > max_changed * done.predictions:
        raise ValueError(
            f"A model with int8 weights must keep its predictions. Received: {title} with {done.changed} of "
            f"{done.predictions} changed ({1 - (done.agreement or 0):.1%}), at most {max_changed:.1%}. Leave --int8 "
            "out, or allow more by --max-changed."
        )
    return done


@contextmanager
def in_runtime(title: str) -> Iterator[None]:
    """Turn any error of a runtime that loads or runs an exported model into a ValueError.

    Args:
        title: name of the format.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"An exported model must run in its runtime. Received: {title}, refused: {reason}. "
            "Try another --format or --backend."
        ) from error


def make_batches(model: ServedModel, tokenizer: Tokenizer) -> Iterator[dict[str, np.ndarray]]:
    """Yield int64 inputs by exported name: single texts, many, pairs, padding in every row, and the longest text."""
    longest = model.axes["length"]
    whole = " ".join(SENTENCES * (1 + longest // len(SENTENCES)))  # at least one token per sentence
    group = CHOICES if "choices" in model.axes else 1
    for texts in (
        [(text,) for text in SENTENCES[:group]],
        [(text,) for text in SENTENCES[-group:]],
        [(text,) for text in SENTENCES],
        [*zip(SENTENCES[::2], SENTENCES[1::2], strict=True)],
        [(whole,), *zip(SENTENCES[: group - 1])],
    ):
        features = encode_examples(tokenizer, [TextExample(*parts) for parts in texts], longest, labels={})
        if group > 1:
            features = replace(features, sequences_per_row=group, examples=np.arange(len(texts) // group))
        width = min(longest, int(features.lengths.max()) + (MARGIN if len(features) > 1 else 0))
        inputs = make_inputs(features, np.arange(len(features)), width)
        yield {
            INPUT_NAMES[name]: ids.astype(np.int64) for name, ids in inputs.items() if INPUT_NAMES[name] in model.inputs
        }


class _Differences:
    """Checks the outputs received for each batch against those expected, and sums up how they differ."""

    def __init__(self, model: ServedModel, title: str, int8: bool):
        self.model, self.title, self.int8 = model, title, int8
        self.texts, self.batches, self.largest = 0, 0, 0.0
        self._pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in model.outputs}
        self._agreeing: list[np.ndarray] = []

    def add(self, wanted: Mapping[str, np.ndarray], received: Mapping[str, np.ndarray], inputs: Inputs) -> None:
        ids, is_token = inputs[self.model.inputs[0]], inputs["attention_mask"].astype(bool)
        self.texts, self.batches = self.texts + len(ids), self.batches + 1
        place = f"{len(ids)} texts of {ids.shape[-1]} tokens"
        for name in self.model.outputs:
            values, others = np.asarray(wanted[name], np.float32), received.get(name)
            if others is None or others.shape != values.shape:
                shape = "none" if others is None else others.shape
                raise _different(self.title, f"{name} of the shape {shape}, not {values.shape}", place)
            difference = float(np.abs(values - others).max())
            self.largest = max(self.largest, difference)
            tolerance = TOLERANCE * max(1.0, float(np.abs(values[values > MASKED]).max(initial=0)))
            if not np.isfinite(others).all() or not self.int8 and difference > tolerance:
                raise _different(self.title, f"{name} off by {difference:.1e}, at most {tolerance:.1e}", place)
            if self.model.kind == "multi_label":
                self._agreeing.append(((values > 0) == (others > 0)).reshape(-1))
            elif name.endswith(LOGITS) and values.shape[-1] > 1:
                equal = values.argmax(-1) == others.argmax(-1)  # of each token, or of each row
                self._agreeing.append(equal[is_token] if equal.ndim > 1 else equal)
            axes = self.model.model.output[name].shape
            if "choices" not in self.model.axes and len(axes) > 1 and axes[1] is None:  # without those of padding
                values, others = values[is_token], others[is_token]
            size = axes[-1] or 1
            self._pairs[name].append((values.reshape(-1, size), others.reshape(-1, size)))  # (texts or tokens, values)

    def summarise(self) -> Comparison:
        errors = []
        for pairs in self._pairs.values():
            values, others = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
            spread = _root_mean_square(values - values.mean(axis=0))
            errors.append(_root_mean_square(values - others) / max(spread, TOLERANCE))
        agreeing = np.concatenate(self._agreeing) if self._agreeing else None
        agreement, predictions = (None, 0) if agreeing is None else (float(agreeing.mean()), len(agreeing))
        return Comparison(self.texts, self.batches, self.largest, max(errors), agreement, predictions)


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _different(title: str, what: str, place: str) -> ValueError:
    return ValueError(
        f"An exported model must give the numbers of the model. Received: {title} with {what}, in {place}. "
        "Try another --format or --backend."
    )
