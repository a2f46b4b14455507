import pytest

from keras_bert_flow.data.pretraining_records import show_examples, show_record
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.oracles.plain_records import PIECES, make_many, publish_plain
from tests.oracles.tiny_records import write_tiny_records

pytestmark = pytest.mark.any_backend
ROWS = make_many(400)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##ting", "dog", "ran")
TOKENIZER = WordPieceTokenizer(WORDS)
#        [CLS] the [MASK: cat] sat ##ting→dog [SEP] ran(kept) dog [SEP]
RECORD = {
    "input_ids": [2, 5, 4, 7, 9, 3, 10, 9, 3, 0, 0],
    "input_mask": [1] * 9 + [0, 0],
    "segment_ids": [0] * 6 + [1] * 3 + [0, 0],
    "masked_lm_positions": [2, 4, 6, 0],
    "masked_lm_ids": [6, 8, 10, 0],
    "masked_lm_weights": [1.0, 1.0, 1.0, 0.0],
    "next_sentence_labels": [1],
}


def show(objective="mlm_nsp", **changed):
    import numpy as np

    return show_record(
        {name: np.array(values) for name, values in (RECORD | changed).items()}, TOKENIZER, "record 0 of f", objective
    )


def test_packed_record_is_shown_by_text():
    packed = show("mlm", input_mask=[1] * 6 + [2] * 3 + [0, 0], segment_ids=[0] * 11, next_sentence_labels=[0])
    assert packed.splitlines()[1:] == [
        "  1  [CLS] the [MASK: cat] sat [RANDOM dog: ##ting] [SEP]",
        "  2  [KEPT: ran] dog [SEP]",
    ]


def test_record_is_shown_with_its_masks():
    assert show() == (
        "record 0 of f, B is random, 9 tokens, 3 predictions, 2 padding\n"
        "  A  [CLS] the [MASK: cat] sat [RANDOM dog: ##ting] [SEP]\n"
        "  B  [KEPT: ran] dog [SEP]"
    )


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        ("mlm_nsp", 0, "f, B follows A, 9"),
        ("mlm_sop", 0, "f, A before B, 9"),
        ("mlm_sop", 1, "f, A and B swapped, 9"),
        ("mlm", 0, "record 0 of f, 9 tokens"),
    ],
)
def test_label_is_said_in_words(objective, label, words):
    assert words in show(objective, next_sentence_labels=[label])


def test_sequence_without_pairs_has_one_line():
    assert show("mlm", segment_ids=[0] * 11).splitlines()[1:] == [
        "  A  [CLS] the [MASK: cat] sat [RANDOM dog: ##ting] [SEP] [KEPT: ran] dog [SEP]"
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"input_ids": [2, 11, *RECORD["input_ids"][2:]]},
        {"input_ids": [2, -1, *RECORD["input_ids"][2:]]},
        {"masked_lm_ids": [6, 99, 10, 0]},
        {"masked_lm_positions": [2, 4, 9, 0]},
    ],
)
def test_record_that_cannot_be_shown_is_named(changed):
    with pytest.raises(ValueError, match="record 0 of f"):
        show(**changed)


def test_examples_go_on_in_the_next_file(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS[:6])  # three in each file
    legend, *blocks = show_examples(folder, 5).split("\n\n")
    assert "[KEPT: word]" in legend
    assert [block.split(",")[0] for block in blocks] == [
        *(f"record {number} of train-00000-of-00002.tfrecord" for number in range(3)),
        *(f"record {number} of train-00001-of-00002.tfrecord" for number in range(2)),
    ]
    assert len(show_examples(folder, 100).split("\n\n")) == 1 + 6


def test_every_token_of_a_record_is_shown_once(tmp_path):
    """Take the masks away again: what is left must be the text that the record was made of."""
    folder = publish_plain(tmp_path / "records", ROWS[:40])
    for block, row in zip(show_examples(folder, 40).split("\n\n")[1:], ROWS, strict=False):
        shown = " ".join(line[5:] for line in block.splitlines()[1:])
        originals = [PIECES[token] for token in row["input_ids"][: sum(row["input_mask"])]]
        for place, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
            originals[place or 0] = PIECES[original] if place else originals[0]
        bare = shown.replace("[MASK: ", "").replace("[KEPT: ", "")
        words = []
        for word in bare.split():
            if words[-2:-1] == ["[RANDOM"] and words[-1].endswith(":"):
                del words[-2:]
            words.append(word)
        assert [word if word in PIECES else word.removesuffix("]") for word in words] == originals


def test_parts_are_apart(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS[:6], held_out=make_many(2, seed=5))
    assert len(show_examples(folder, 9, "held_out").split("\n\n")) == 3
    with pytest.raises(ValueError, match="one of train, held_out. Received: dev"):
        show_examples(folder, 1, "dev")
    empty = publish_plain(tmp_path / "empty", ROWS[:6], held_out=[])
    with pytest.raises(ValueError, match="must be held_out records"):
        show_examples(empty, 1, "held_out")


def test_folder_that_is_not_whole_is_refused(tmp_path):
    folder = write_tiny_records(tmp_path / "records")
    (folder / "train-00001-of-00002.tfrecord").unlink()
    with pytest.raises(FileNotFoundError, match="train-00001"):
        show_examples(folder)
