"""Initialise a student from layers of its teacher."""

import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.models.teacher_fit import check_start

POSITIONS, SEGMENTS = "embeddings/position_embedding", "embeddings/segment_embedding"


def copy_layers(teacher: MaskedLM, student: MaskedLM) -> None:
    """Copy the embeddings, the head and evenly spaced blocks of a teacher, from the lowest up, to a student.

    For a student without segments, the embedding of segment 0 is added to the position embeddings. As many positions
    are copied as both models have.

    Raises:
        ValueError: the layers do not fit; see `check_start`.
    Source: Sanh et al. 2019, section 3, who take every second layer.
    """
    theirs, ours = teacher.backbone, student.backbone
    check_start(ours.shape, theirs.shape)
    # Some families share one block among several layers.
    per_layer = [theirs.blocks[layer * len(theirs.blocks) // theirs.num_layers] for layer in range(theirs.num_layers)]
    chosen = [per_layer[number * theirs.num_layers // len(ours.blocks)] for number in range(len(ours.blocks))]
    pairs = [(theirs.token_embedding, ours.token_embedding), *zip(chosen, ours.blocks, strict=True)]
    pairs += [(teacher.get_layer(name), student.get_layer(name)) for name in ("mlm_transform", "mlm")]
    if ours.widening is not None and theirs.widening is not None:
        pairs.append((theirs.widening, ours.widening))
    for source, target in pairs:
        for value, variable in zip(source.weights, target.weights, strict=True):
            variable.assign(np.array(read_variable(value)))
    _copy_embeddings(theirs, ours)


def _copy_embeddings(theirs, ours) -> None:
    values = {weight.path: np.array(read_variable(weight)) for weight in theirs.get_layer("embeddings").weights}
    target = {weight.path: weight for weight in ours.get_layer("embeddings").weights}
    if SEGMENTS in values and SEGMENTS not in target:
        values[POSITIONS] = values[POSITIONS] + values[SEGMENTS][0]
    for path, variable in target.items():
        if path == POSITIONS:
            first, last = theirs.shape.position_offset, ours.shape.position_offset
            count = min(theirs.max_positions, ours.max_positions)
            rows = np.array(read_variable(variable))
            rows[last : last + count] = values[path][first : first + count]
            variable.assign(rows)
        elif path == SEGMENTS:
            rows = np.array(read_variable(variable))
            count = min(len(rows), len(values.get(path, ())))
            rows[:count] = values[path][:count] if count else 0.0
            variable.assign(rows)
        else:
            variable.assign(values[path])
