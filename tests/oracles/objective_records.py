"""Write a small published folder of records of any objective, without Beam, of text that a model can learn from."""

import numpy as np

from keras_bert_flow.records.example import encode_records
from keras_bert_flow.records.tfrecord import write_tfrecords
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.text.masking import SPAN, TOKEN, MaskingRule
from keras_bert_flow.text.objectives.objective import InstanceRule, build_instances, find_objective
from keras_bert_flow.text.rows import TokenizedDocument
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

VOCABULARY_SIZE = 40
SEQUENCE_LENGTH = 16
MAX_PREDICTIONS = 4
MASKED_FRACTION = 0.2
UNK, CLS, SEP, MASK = range(1, 5)
FIRST_PIECE = 30  # this id and those above are ## pieces


def write_objective_records(
    folder, objective="mlm_nsp", mask_unit=None, documents=40, seed=0, sequence_length=SEQUENCE_LENGTH, copies=2
):
    """Publish records of documents on one of four topics each, of three words: neighbours tell what may be hidden."""
    folder.mkdir(parents=True)
    mask_unit = mask_unit or (SPAN if find_objective(objective).has_spans else TOKEN)
    starts_word = np.arange(VOCABULARY_SIZE) < FIRST_PIECE
    masking = MaskingRule(MASKED_FRACTION, MAX_PREDICTIONS, MASK, (CLS, SEP), starts_word, mask_unit)
    rule = InstanceRule(objective, sequence_length, 0.1, CLS, SEP, masking)
    files = []
    for part, count in (("train", documents), ("held_out", documents // 4)):
        documents = _make_documents(part, count, seed)
        records = [record for built in build_instances(documents, copies, rule, seed) for record in _encode(built)]
        files += write_tfrecords(folder / f"{part}-00000-of-00001.tfrecord", records)
    pieces = [*SPECIAL_PIECES, *(f"word{n}" for n in range(5, 30)), *(f"##piece{n}" for n in range(30, 40))]
    write_vocabulary(folder / "vocab.txt", pieces)
    config = {
        "objective": objective,
        "mask_unit": mask_unit,
        "masked_fraction": MASKED_FRACTION,
        "max_predictions": MAX_PREDICTIONS,
        "sequence_length": sequence_length,
        "vocabulary_size": VOCABULARY_SIZE,
        "cased": False,
    }
    write_manifest(folder, "records", f"{objective}-{mask_unit}-{seed}", config, {}, {}, files)
    return folder


def _make_documents(part: str, count: int, seed: int) -> list[TokenizedDocument]:
    rng = np.random.default_rng([seed, len(part)])
    documents = []
    for number in range(count):
        lengths = rng.integers(2, 7, rng.integers(3, 9))
        topic = rng.integers(4)
        words = np.array([5 + topic, 15 + topic, 30 + topic])  # the last one is a ## piece
        documents.append(TokenizedDocument(f"{part}{number}", rng.choice(words, lengths.sum()), lengths))
    return documents


def _encode(instances) -> list[bytes]:
    return encode_records(
        token_ids=instances.masked.token_ids,
        segment_ids=instances.rows.segment_ids,
        lengths=instances.rows.lengths,
        mask_positions=instances.masked.positions,
        mask_ids=instances.masked.mask_ids,
        mask_counts=instances.masked.counts,
        sentence_labels=instances.rows.sentence_labels,
        span_ids=instances.span_ids,
    )
