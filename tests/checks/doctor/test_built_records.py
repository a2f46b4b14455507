"""Records of the Beam job are fine, and what the doctor counts in them TensorFlow counts, too."""

import importlib.util
import json
import subprocess
import sys

import pytest

from beam_jobs.build_records import build_records
from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.data.pretraining_records import show_examples
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.oracles import tensorflow_counts
from tests.patience import PATIENCE_SECONDS

LETTERS = "abcdefghijkl"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    documents = [[f"{x} {y} {x} q {y} d{number}" for y in LETTERS] for number, x in enumerate(LETTERS * 8)]
    (folder / "a.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    words = [f"d{number}" for number in range(len(documents))]  # q is unknown
    write_vocabulary(folder / "vocab.txt", [*SPECIAL_PIECES, *(f"[unused{n}]" for n in range(90)), *LETTERS, *words])
    corpus = CorpusConfig(input=(str(folder / "a.txt"),), lines="sentences")
    config = RecordsConfig(sequence_length=32, max_predictions=5, duplication=2, held_out_fraction=0.1, shards=2)
    return build_records(corpus, config, folder / "vocab.txt", False, folder / "records")


def test_built_records_are_all_ok_but_for_their_unknown_word(built):
    diagnosis = examine_records(built)
    assert {finding.what for finding in diagnosis.findings if finding.verdict != "ok"} == {
        "unknown tokens",
        "unknown characters",
    }
    assert "counters" in {finding.what for finding in diagnosis.findings}


@pytest.mark.slow
def test_built_records_are_counted_as_tensorflow_counts_them(built):
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    command = [sys.executable, tensorflow_counts.__file__, built, "4", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    theirs, numbers = json.loads(done.stdout), examine_records(built).numbers
    ours = {
        "records": numbers["records_read"],
        "tokens": numbers["tokens"],
        "places": 32 * numbers["records"],
        "labels": numbers["positive_labels"],
        "hidden": numbers["hidden_tokens"],
        "kept": numbers["kept_tokens"],
        "replaced": numbers["replaced_tokens"],
        "unknown": numbers["unknown_tokens"],
    }
    assert ours == theirs
    assert min(theirs.values()) > 0
    assert numbers["padding_share"] == pytest.approx(1 - theirs["tokens"] / theirs["places"])


def test_built_records_are_shown(built):
    blocks = show_examples(built, 20).split("\n\n")[1:]
    assert len(blocks) == 20
    for block in blocks:
        _, first, second = block.splitlines()
        assert first.startswith("  A  [CLS] ") and first.endswith(" [SEP]")
        assert second.startswith("  B  ") and second.endswith(" [SEP]")
