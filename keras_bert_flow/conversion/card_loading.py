"""Loading examples of a model card, for whole models and adapters; without Keras."""

import json
import re

SENTENCES = "sentence-similarity"  # the Hub's name for the task of an embedder
PEFT = "peft"
OURS = "keras-bert-flow"
_EXAMPLE = re.compile(
    r"```python\n.*?keras_bert_flow\.(\w+)\.from_preset.*?PeftModel\.from_pretrained\(transformers\.(\w+)\..*?\n```",
    re.DOTALL,
)
_LIBRARY = f"\nlibrary_name: {PEFT}\n"


def find_library(pipeline: str) -> str:
    """Return the library that loads whole models of one of the Hub's tasks."""
    return "sentence-transformers" if pipeline == SENTENCES else "transformers"


def show_loading(ours: str, theirs: str, base: str | None = None, num_classes: int | None = None) -> str:
    """Return the loading example of a model card.

    Args:
        ours: class of this package.
        theirs: class of `transformers`.
        base: for an adapter, the name of its base model.
        num_classes: the number of classes of the head, if it has any.
    """
    if base is None:
        return _write_example("transformers", ours, f'transformers.{theirs}.from_pretrained("this folder")')
    classes = f", num_labels={num_classes}" if num_classes else ""
    reference = f"transformers.{theirs}.from_pretrained({json.dumps(base)}{classes})"
    return _write_example("peft, transformers", ours, f'peft.PeftModel.from_pretrained({reference}, "this folder")')


def show_own_head(ours: str, encoder: str, pooling: str, is_adapter: bool) -> str:
    """Return the loading example for a model whose head `transformers` lacks, with a warning about it.

    Args:
        ours: class of this package.
        encoder: class of `transformers`.
        pooling: the pooling of the head.
    """
    alone = f'transformers.{encoder}.from_pretrained("this folder")  # the encoder alone'
    warning = (
        f"Its head has the pooling `{pooling}`, which no class of `transformers` has. Its classes with a head, and so "
        "its pipelines, refuse this folder: the kernel of the head has one more axis than theirs, as they would make "
        "up a pooler and answer at random. `kbf export` writes the whole model for other runtimes."
    )
    return "\n\n".join([_write_example("transformers", ours, *([] if is_adapter else [alone])), warning])


def _write_example(modules: str, ours: str, *references: str) -> str:
    lines = [
        f"import keras_bert_flow, {modules}",
        "",
        f'keras_bert_flow.{ours}.from_preset("this folder")  # on TensorFlow, JAX or PyTorch',
        *references,
        'transformers.AutoTokenizer.from_pretrained("this folder")',
    ]
    return "\n".join(["```python", *lines, "```"])


def describe_merged(card: str) -> str | None:
    """Turn the card of an adapter into that of the merged model; None if this package did not write the card."""
    example = _EXAMPLE.search(card)
    if example is None or _LIBRARY not in card:
        return None
    pipeline = SENTENCES if f"\npipeline_tag: {SENTENCES}\n" in card else ""
    card = card.replace(example[0], show_loading(example[1], example[2]))
    return card.replace(_LIBRARY, f"\nlibrary_name: {find_library(pipeline)}\n", 1)
