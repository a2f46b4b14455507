"""One vector for each text, from which its head predicts."""

from keras_bert_flow.layers.pooling import TokenPooling
from keras_bert_flow.models.backbone import refuse_pooler, require_pooler
from keras_bert_flow.models.base import encode
from keras_bert_flow.models.poolings import CLS, MEAN, TEXT_POOLINGS


def pool_text(backbone, inputs, pooling):
    """Return one vector for each text, float, (batch, hidden).

    Args:
        pooling: `cls`, the pooler's output for the first token (Devlin et al. 2019, section 3), or `mean`, the mean of
            the last hidden states of the real tokens. [CLS] takes part in no objective without sentence pairs, and
            what it holds after such pre-training has to be learnt from the labels.
    Raises:
        ValueError: `pooling` is neither, or the backbone has a pooler that it does not need, or lacks one.
    """
    if pooling not in TEXT_POOLINGS:
        raise ValueError(f"`pooling` must be one of {', '.join(TEXT_POOLINGS)}. Received: pooling={pooling!r}.")
    if pooling == CLS:
        require_pooler(backbone)
        return encode(backbone, inputs)["pooled_output"]
    refuse_pooler(backbone)
    sequence = encode(backbone, inputs)["sequence_output"]
    return TokenPooling(MEAN, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])
