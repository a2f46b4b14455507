"""Write small model directories to be asked."""

from pathlib import Path

import keras_bert_flow as kbf
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL

PIECES = (*SPECIAL_PIECES, "paris", "is", "the", "of", ".", "##s", "cat", *(f"w{n}" for n in range(38)))
LONGEST = 128


class Watched:
    """A model that notes the shapes that it is asked with and that it answers; it says that it compiles each."""

    def __init__(self, model, compiles_shapes=True):
        self.model, self.output, self.compiles_shapes = model, model.output, compiles_shapes
        self.asked, self.answered = [], []

    def predict_on_batch(self, inputs):
        self.asked.append(inputs["token_ids"].shape)
        found = self.model.predict_on_batch(inputs)
        self.answered += [values.shape for values in found.values()] if isinstance(found, dict) else [found.shape]
        return found


def make_backbone(**settings) -> kbf.BertBackbone:
    return kbf.BertBackbone(**SMALL | {"max_positions": LONGEST, "num_layers": 1} | settings)


def save(model, folder: Path) -> Path:
    numpy_bert.randomise_weights(model, seed=3)
    write_vocabulary(folder / "words.txt", PIECES)
    model.save_to_preset(folder / "model", vocabulary_path=folder / "words.txt")
    return folder / "model"


def save_masked_lm(folder: Path) -> Path:
    return save(kbf.MaskedLM(make_backbone(use_pooler=False)), folder)


def save_classifier(folder: Path) -> Path:
    """Write what `kbf finetune` makes, with weights that nobody trained."""
    task = make_task("classification", labels=("no", "yes"))
    save(kbf.TextClassifier(make_backbone(), labels=task.labels, num_classes=2), folder)
    task.save(folder / "model", LONGEST)
    return folder / "model"
