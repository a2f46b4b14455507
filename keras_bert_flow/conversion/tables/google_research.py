"""BERT's names in the checkpoints of google-research/bert.

Source: google-research/bert, modeling.py, run_pretraining.py, run_classifier.py and run_squad.py.
"""

import re

PREFIX = "bert/"
# Hugging Face's name → google-research's, where no rule derives it. None of these kernels is transposed.
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
_THEIR_HEADS = {theirs: ours for ours, theirs in _HEADS.items()}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_NORM = {"weight": "gamma", "bias": "beta"}
_THEIR_NORM = {theirs: ours for ours, theirs in _NORM.items()}
# Head trained by google-research's programs → class of `transformers`; the first one present counts.
ARCHITECTURES = {
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
}
# What a training program stores besides the weights: the step, and the moments of Adam, LAMB and others.
_BESIDE = re.compile(
    r".*/(adam|lamb)_[mv](_\d+)?|.*/(Adam|Momentum)(_\d+)?|(beta[12]_power|loss_scale|good_steps|global_step).*"
)


def name_there(name: str) -> tuple[str, bool]:
    """Return google-research's name for a Hugging Face tensor, and whether it is transposed there.

    Args:
        name: without the prefix `bert.`.
    """
    if name in _HEADS:
        return _HEADS[name], False
    layer, _, variable = name.rpartition(".")
    place = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", f".{layer}.").strip(".").replace(".", "/")
    place = place if place.startswith("cls/") else PREFIX + place
    last = place.rpartition("/")[2]
    if last in _TABLES:
        return place, False
    if last == "LayerNorm":
        return f"{place}/{_NORM[variable]}", False
    return (f"{place}/kernel", True) if variable == "weight" else (f"{place}/{variable}", False)


def name_here(name: str) -> tuple[str, bool] | None:
    """Return Hugging Face's name for a google-research tensor, without `bert.`, and whether it is transposed there.

    Returns None for what is not a weight: optimizer moments and the step.
    """
    if name in _THEIR_HEADS:
        return _THEIR_HEADS[name], False
    if _BESIDE.fullmatch(name):
        return None
    place, _, variable = name.removeprefix(PREFIX).rpartition("/")
    layer = re.sub(r"/layer_(\d+)/", r"/layer/\1/", f"/{place}/").strip("/").replace("/", ".")
    if variable in _TABLES:
        return f"{layer}.{variable}.weight", False
    if variable in _THEIR_NORM:
        return f"{layer}.{_THEIR_NORM[variable]}", False
    return (f"{layer}.weight", True) if variable == "kernel" else (f"{layer}.{variable}", False)
