"""Build the small records in a process of its own: `python -m tests.beam_jobs.job TEXT VOCABULARY OUTPUT [options]`.

`--objective=NAME` is ours, other options are Beam's.
"""

import sys

from beam_jobs.build_records import build_records
from keras_bert_flow.config.text import CorpusConfig
from tests.beam_jobs.conftest import make_records_config

if __name__ == "__main__":
    text, vocabulary_file, output, *options = sys.argv[1:]
    corpus = CorpusConfig(input=(text,), lines="sentences")
    ours = [option.removeprefix("--").split("=", 1) for option in options if option.startswith("--objective=")]
    options = [option for option in options if not option.startswith("--objective=")]
    build_records(corpus, make_records_config(**dict(ours)), vocabulary_file, False, output, 1, options)
