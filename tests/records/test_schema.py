import numpy as np
import pytest

from keras_bert_flow.records.example import FEATURE_KINDS, decode_example, decode_record
from tests.oracles.examples import encode_example
from tests.oracles.tiny_records import encode_record

PAIR = {
    "token_ids": np.array([101, 700, 103, 102, 29000, 102], np.int32),
    "segment_ids": np.array([0, 0, 0, 0, 1, 1], np.int32),
    "mask_positions": np.array([2, 4]),
    "mask_ids": np.array([5, 29000], np.int32),
    "sentence_label": True,
}


def test_record_has_the_features_of_google_research_bert():
    features = decode_example(encode_record(**PAIR, sequence_length=8, max_predictions=4))
    assert {name: values.tolist() for name, values in features.items()} == {
        "input_ids": [101, 700, 103, 102, 29000, 102, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
        "masked_lm_positions": [2, 4, 0, 0],
        "masked_lm_ids": [5, 29000, 0, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0, 0.0],
        "next_sentence_labels": [1],  # 0 = IsNext, 1 = random
    }


@pytest.mark.parametrize("sentence_label", [True, False])
def test_record_is_read_as_it_was_written(sentence_label):
    pair = PAIR | {"sentence_label": sentence_label}
    record = decode_record(encode_record(**pair, sequence_length=6, max_predictions=2))
    assert record.keys() == FEATURE_KINDS.keys()
    assert record["input_ids"].tolist() == PAIR["token_ids"].tolist()
    assert record["input_mask"].tolist() == [1] * 6
    assert record["next_sentence_labels"].tolist() == [int(sentence_label)]


def test_record_may_hold_more_features():
    features = decode_example(encode_record(**PAIR, sequence_length=8, max_predictions=4)) | {"more": np.array([1])}
    assert "more" in decode_record(encode_example(features))


@pytest.mark.parametrize("name", FEATURE_KINDS)
@pytest.mark.parametrize("damage", ["missing", "other type"])
def test_record_names_the_feature_that_is_wrong(name, damage):
    features = decode_example(encode_record(**PAIR, sequence_length=8, max_predictions=4))
    values = features.pop(name)
    if damage == "other type":
        features[name] = values.astype(np.float32 if FEATURE_KINDS[name] == "i" else np.int64)
    with pytest.raises(ValueError, match=f"feature `{name}`"):
        decode_record(encode_example(features))
