"""Instances of an objective, made of documents in which every token is another one."""

from collections import namedtuple

import numpy as np

from keras_bert_flow.text.masking import TOKEN, MaskingRule
from keras_bert_flow.text.objectives.objective import InstanceRule, build_instances
from keras_bert_flow.text.rows import TokenizedDocument

Instance = namedtuple("Instance", "token_ids segment_ids mask_positions mask_ids unmasked_ids is_random_next")
CLS, SEP, MASK = 2, 3, 4
FIRST_WORD = 1000  # below are special tokens and what random replacement alone gives


def make_documents(count=30, seed=0):
    """Return documents of two to twenty sentences, every token of which is another one."""
    rng, documents, token = np.random.default_rng(seed), [], FIRST_WORD
    for number in range(count):
        lengths = rng.integers(1, 30, rng.integers(2, 21))
        documents.append(TokenizedDocument(f"d{number}", np.arange(token, token + lengths.sum()), lengths))
        token += int(lengths.sum())
    return documents


def make_rule(objective, unit=TOKEN, sequence_length=64):
    masking = MaskingRule(0.15, 20, MASK, (CLS, SEP), np.ones(30_000, bool), unit)
    return InstanceRule(objective, sequence_length, 0.1, CLS, SEP, masking)


def build(objective, documents=None, copies=2, seed=1, **settings):
    """Return every instance without padding; past the lengths that they tell, all matrices hold zeros."""
    instances = []
    for built in build_instances(documents or make_documents(), copies, make_rule(objective, **settings), seed):
        rows, masked = built.rows, built.masked
        matrices = (masked.token_ids, rows.segment_ids, masked.positions, masked.mask_ids, rows.token_ids)
        for *arrays, is_random_next, length, count in zip(
            *matrices, rows.sentence_labels, rows.lengths, masked.counts, strict=True
        ):
            ends = (length, length, count, count, length)
            assert not any(array[end:].any() for array, end in zip(arrays, ends, strict=True))
            arrays = [array[:end] for array, end in zip(arrays, ends, strict=True)]
            instances.append(Instance(*arrays, bool(is_random_next)))
    return instances


def original_of(instance):
    token_ids = instance.token_ids.copy()
    token_ids[instance.mask_positions] = instance.mask_ids
    assert np.array_equal(token_ids, instance.unmasked_ids)
    return token_ids


def describe(instances):
    return [[np.asarray(value).tolist() for value in instance] for instance in instances]
