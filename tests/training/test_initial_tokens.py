"""A new model that starts from token counts: which weights change, and that a killed or continued run keeps its own."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer, set_initial_tokens
from tests.oracles.killed_pretraining import pretrain_killed_and_whole
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

COUNTED = {"token_embeddings": "co_occurrence", "output_bias": "unigram"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("initial_tokens") / "records", train=(40, 60))


def read_words(records):
    """Return the words of every record, those that are masked included."""
    words = []
    for record in PretrainingRecords(records):
        is_masked = record["masked_lm_weights"] > 0
        words.extend(word for word in record["input_ids"] if word > 4)
        words.extend(record["masked_lm_ids"][is_masked])
    return np.array(words)


def values_of(model):
    paths = [variable.path for variable in model.weights]
    return {path: np.array(values) for path, values in zip(paths, model.get_weights(), strict=True)}


def set_and_compare(records, **settings):
    model = make_pretrainer(make_tiny_config().model, 50)
    before = values_of(model)
    set_initial_tokens(model, PretrainingRecords(records), make_tiny_config(**settings).pretraining, seed=1)
    after = values_of(model)
    return before, after, {path for path, values in before.items() if (after[path] != values).any()}


def test_defaults_change_nothing(records):
    assert set_and_compare(records)[2] == set()


def test_bias_is_the_logarithm_of_the_frequencies(records):
    _, after, changed = set_and_compare(records, output_bias="unigram")
    assert changed == {"mlm/bias"}
    counts = np.bincount(read_words(records), minlength=50) + 1  # one more each, special pieces included
    np.testing.assert_allclose(after["mlm/bias"], np.log(counts / counts.sum()), rtol=1e-6)


def test_embeddings_keep_their_spread_and_special_pieces_theirs(records):
    before, after, changed = set_and_compare(records, token_embeddings="co_occurrence")
    assert changed == {"token_embedding/embeddings"}
    old, new = before["token_embedding/embeddings"], after["token_embedding/embeddings"]
    np.testing.assert_array_equal(new[:5], old[:5])
    words = np.unique(read_words(records))
    assert (new[words] != old[words]).all()
    assert np.sqrt(np.mean(new[words] ** 2)) == pytest.approx(old.std(), rel=1e-5)


@pytest.mark.any_backend
def test_run_that_goes_on_from_a_model_keeps_its_tokens(records, tmp_path):
    first = pretrain(make_tiny_config(total_steps=3), records, tmp_path / "first", lambda line: None) / "model"
    still = {"total_steps": 1, "warmup_steps": 0, "learning_rate": 1e-12, "matrix_learning_rate": 1e-12}
    config = make_tiny_config(**still, **COUNTED)
    then = pretrain(config, records, tmp_path / "then", lambda line: None, initial_model=first) / "model"
    before, after = (load_file(folder / "model.safetensors") for folder in (first, then))
    assert max(float(np.abs(after[name] - values).max()) for name, values in before.items()) < 1e-9


@pytest.mark.any_backend
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.first_form
def test_token_embeddings_have_a_rate_of_their_own(records, tmp_path, optimizer):
    settings = {"total_steps": 1, "warmup_steps": 0, "optimizer": optimizer, "learning_rate": 1e-2}
    folders = {}
    for rate in (1e-2, 1e-3):
        config = make_tiny_config(**settings, token_embedding_learning_rate=rate)
        folders[rate] = pretrain(config, records, tmp_path / str(rate), lambda line: None) / "model/model.safetensors"
    start = pretrain(
        make_tiny_config(**settings | {"learning_rate": 1e-12, "matrix_learning_rate": 1e-12}),
        records,
        tmp_path / "start",
        lambda line: None,
    )
    first, fast, slow = map(load_file, (start / "model/model.safetensors", folders[1e-2], folders[1e-3]))
    for name, values in first.items():
        moves = np.abs(fast[name] - values).max(), np.abs(slow[name] - values).max()
        # The rate is also that of the decay; float32 weights near 0.06 are known to 4e-9, steps are 1e-3 or more.
        assert moves[0] == pytest.approx(moves[1] * (10 if "word_embeddings" in name else 1), rel=1e-4), name


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_run_ends_in_the_same_bits_with_muon(records, tmp_path):
    settings = {"total_steps": 6, "log_every_steps": 2, "checkpoint_every_steps": 3, "batch_size": 4, "warmup_steps": 1}
    config = make_tiny_config(**settings, **COUNTED, optimizer="muon", masking="static")
    killed, finished = pretrain_killed_and_whole(config, records, tmp_path)
    assert killed == finished
