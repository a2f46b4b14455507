"""Heads that choose: one of several texts, or the span that answers a question."""

from typing import Any

import keras

from keras_bert_flow.backends.batches import Rule, as_host_array, position_rule
from keras_bert_flow.layers.encoder import ChoiceScores, MergeTexts
from keras_bert_flow.layers.heads import SpanScores
from keras_bert_flow.models.backbone import Backbone, refuse_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.heads.classifiers import pool_text, with_pooling
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD, SPAN_HEAD, TEXT_POOLING, SavedAs
from keras_bert_flow.models.with_head import (
    ModelWithHead,
    classify,
    encode,
    make_inputs,
    project,
    transform,
    with_transform,
)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultipleChoice(ModelWithHead):
    """Multiple choice model, one logit for each of several texts, such as a question with each of its answers.

    Inputs: those of the backbone, int32, (batch, choices, length). Output: float32 logits, (batch, choices). A choice
    without tokens is filler, for rows with fewer choices, and gets a very low logit. Default loss of `compile()`: the
    cross-entropy of the index of the right choice, (batch,).

    Args:
        pooling: `cls`, `mean` or `bag_of_words`; see `pool_text`. Only `cls` needs a pooler, and it is the default
            where there is one; elsewhere `mean` is.
    Raises:
        ValueError: `pooling` does not fit the backbone.
    Source: Devlin et al. 2019, section 4.4 (SWAG).
    Example:
        >>> model = kbf.MultipleChoice.from_preset("model")
        >>> texts = model.preprocessor([("the film was", "fine"), ("the film was", "house")])
        >>> inputs = {name: values[np.newaxis] for name, values in texts.items()}  # one row of two choices
        >>> model.predict(inputs, verbose=0).shape
        (1, 2)
    """

    saved_as = SavedAs("ForMultipleChoice", "chooser", CLASSIFIER_HEAD, outputs=(1, 1), options=TEXT_POOLING)
    saved_arguments = ("dropout_rate", "pooling")
    default_measures = {None: (token_loss, token_accuracy)}

    def __init__(
        self,
        backbone: Backbone,
        dropout_rate: float = 0.1,
        pooling: str | None = None,
        name: str = "multiple_choice",
    ) -> None:
        inputs = make_inputs(axes=(None, None))
        merge = MergeTexts(name="merge_choices")
        merged = {key: merge(value) for key, value in inputs.items()}
        pooled, pooling = pool_text(backbone, merged, pooling)
        logits = classify(backbone, pooled, 1, dropout_rate)  # (batch * choices, 1)
        scores = ChoiceScores(dtype="float32", name="choice_scores")(logits, inputs["padding_mask"])
        super().__init__(backbone, inputs, scores, name)
        self.dropout_rate = dropout_rate
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling, backbone)

    def make_rules(self, x: Any) -> dict[str | None, Rule]:
        mask = as_host_array(x.get("padding_mask"))
        return {} if mask is None else {None: position_rule("choices", (mask != 0).any(axis=-1))}


# Extractive question answering: find the answer span in a text.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QuestionAnswerer(ModelWithHead):
    """Extractive question answering model, with start and end logits for each token.

    Inputs: those of the backbone, with the question in segment 0 and the text in segment 1. Outputs: `start` and `end`,
    float32 logits, (batch, length), very low for padding. Default loss of `compile()`: the mean of both
    cross-entropies. Labels are {"start": (batch,), "end": (batch,)}, token positions, the end inclusive. If there is no
    answer, both are 0, the position of [CLS].

    Args:
        backbone: built with `use_pooler=False`.
    Raises:
        ValueError: the backbone has a pooler.
    Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert, run_squad.py, `create_model`.
    Example:
        >>> model = kbf.QuestionAnswerer.from_preset("model")
        >>> model.compile()
        >>> inputs = model.preprocessor([("the film", "the film was fine")])  # the question, then the text
        >>> history = model.fit(inputs, {"start": np.array([7]), "end": np.array([7])}, verbose=0)
        >>> sorted(model.predict(inputs, verbose=0))
        ['end', 'start']
    """

    saved_as = SavedAs("ForQuestionAnswering", "question answerer", SPAN_HEAD, use_pooler=False, outputs=(2, 2))
    default_measures = {"start": (token_loss, token_accuracy), "end": (token_loss, token_accuracy)}
    default_loss_weights = {"start": 0.5, "end": 0.5}

    def __init__(self, backbone: Backbone, name: str = "question_answerer") -> None:
        refuse_pooler(backbone)
        inputs = make_inputs()
        hidden = transform(backbone, encode(backbone, inputs)["sequence_output"])
        logits = project(backbone, hidden, 2, "span")
        scores = SpanScores(dtype="float32", name="span_scores")(logits, inputs["padding_mask"])
        super().__init__(backbone, inputs, scores, name)
        self.saved_as = with_transform(self.saved_as, backbone)

    def make_rules(self, x: Any) -> dict[str | None, Rule]:
        mask = as_host_array(x.get("padding_mask"))
        if mask is None:
            return {}
        is_real = mask != 0
        is_real[:, :1] = True  # the place of no answer, also in an empty row
        return {name: position_rule(f"{name} labels", is_real) for name in ("start", "end")}
