"""What a model card says of loading the model, which is a whole one or an adapter; without Keras."""

import json
import re

SENTENCES = "sentence-similarity"  # what the Hub calls the task of an embedder
PEFT = "peft"
OURS = "keras-bert-flow"
_EXAMPLE = re.compile(
    r"```python\n.*?keras_bert_flow\.(\w+)\.from_preset.*?PeftModel\.from_pretrained\(transformers\.(\w+)\..*?\n```",
    re.DOTALL,
)
_LIBRARY = f"\nlibrary_name: {PEFT}\n"


def find_library(pipeline: str) -> str:
    """Return the library that loads a whole model of a task of the Hub."""
    return "sentence-transformers" if pipeline == SENTENCES else "transformers"


def show_loading(ours: str, theirs: str, base: str | None = None, num_classes: int | None = None) -> str:
    """Return the example of a model card that loads the model.

    Args:
        ours: class of this package.
        theirs: class of `transformers`.
        base: of an adapter, the name of the model that it is of.
        num_classes: of its head, where it has classes.
    """
    if base is None:
        modules, reference = "keras_bert_flow, transformers", f'transformers.{theirs}.from_pretrained("this folder")'
    else:
        classes = f", num_labels={num_classes}" if num_classes else ""
        modules = "keras_bert_flow, peft, transformers"
        reference = f"transformers.{theirs}.from_pretrained({json.dumps(base)}{classes})"
        reference = f'peft.PeftModel.from_pretrained({reference}, "this folder")'
    lines = [
        f"import {modules}",
        "",
        f'keras_bert_flow.{ours}.from_preset("this folder")  # on TensorFlow, JAX or PyTorch',
        reference,
        'transformers.AutoTokenizer.from_pretrained("this folder")',
    ]
    return "\n".join(["```python", *lines, "```"])


def show_encoder(ours: str, theirs: str, pooling: str) -> str:
    """Return the example for a model whose head `transformers` has not.

    Args:
        ours: class of this package.
        theirs: class of `transformers` for the encoder.
        pooling: what the head takes.
    """
    lines = [
        "import keras_bert_flow, transformers",
        "",
        f'keras_bert_flow.{ours}.from_preset("this folder")  # on TensorFlow, JAX or PyTorch',
        f'transformers.{theirs}.from_pretrained("this folder")  # the encoder alone',
        'transformers.AutoTokenizer.from_pretrained("this folder")',
    ]
    warning = (
        f"Its head has the pooling `{pooling}`, which no class of `transformers` has: one with a head would make up a "
        "pooler and answer at random. `kbf export` writes the whole model for other runtimes."
    )
    return "\n".join(["```python", *lines, "```", "", warning])


def describe_merged(card: str) -> str | None:
    """Return the card of an adapter as that of the model it was merged into; None of a card that others wrote."""
    example = _EXAMPLE.search(card)
    if example is None or _LIBRARY not in card:
        return None
    pipeline = SENTENCES if f"\npipeline_tag: {SENTENCES}\n" in card else ""
    card = card.replace(example[0], show_loading(example[1], example[2]))
    return card.replace(_LIBRARY, f"\nlibrary_name: {find_library(pipeline)}\n", 1)
