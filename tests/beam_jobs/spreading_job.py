"""Say which process reads which document: `python -m tests.beam_jobs.spreading_job TEXT OUTPUT [options]`."""

import json
import os
import sys
from pathlib import Path

import apache_beam as beam

from beam_jobs.exchange import FileExchange
from beam_jobs.reading import ReadCorpus, WriteResults, read_results
from beam_jobs.running import run_pipeline
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.text.corpus.documents import make_document


def tell_process(texts):
    for lines in texts:
        yield make_document(lines, split_lines=False).id, os.getpid()


if __name__ == "__main__":
    text, output, *options = sys.argv[1:]

    def build(pipeline: beam.Pipeline) -> None:
        read = pipeline | ReadCorpus(CorpusConfig(input=(text,)), FileExchange(Path(output)))
        processes = read.texts | beam.FlatMap(tell_process)
        _ = {"results": processes, "counters": read.counters} | WriteResults(output)

    run_pipeline(build, options, Path(output))
    Path(output, "processes.json").write_text(json.dumps(dict(read_results(output)[0])))
