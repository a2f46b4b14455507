"""Return small results of a pipeline as one file of JSON lines, the pipeline's only sink.

Beam's own metrics count a retried bundle twice, and not every runner has them; counters summed as data are exact.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_jobs.places import new_place, open_bytes, put
from beam_jobs.remote_files import remove
from keras_bert_flow.text.corpus.storage import is_remote

COUNTERS = "counters"  # tag of the outputs with (name, number) pairs
_FILE = "results"  # lines of JSON


class WriteResults(beam.PTransform):
    """Sum the counters, and write them and the given results to a folder.

    Args:
        folder: the folder to pass to `read_results`; every worker must reach it.
    """

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        results = inputs["results"] | "TagResults" >> beam.Map(lambda result: json.dumps(["result", result]))
        counters = (
            inputs[COUNTERS]
            | "SumCounters" >> beam.CombinePerKey(sum)
            | "TagCounters" >> beam.Map(lambda counter: json.dumps(["counter", counter]))
        )
        return (
            (results, counters)
            | "FlattenResults" >> beam.Flatten()
            | "ListResults" >> beam.combiners.ToList()
            | "WriteResults" >> beam.Map(write_lines, self._folder)
        )


def write_lines(lines: Sequence[str], folder: str) -> None:
    """Write the file of results. A retry replaces it."""
    with new_place(folder) as (local, place):
        (local / _FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    put({f"{place}/{_FILE}": f"{folder}/{_FILE}"})


def read_results(folder: str) -> tuple[Sequence[Any], dict[str, int]]:
    """Read and remove the file that the pipeline wrote, and return (results, counters by name)."""
    path = f"{folder}/{_FILE}"
    results, counters = [], {}
    with open_bytes(path) as file:
        for kind, value in map(json.loads, file.read().decode().splitlines()):
            if kind == "result":
                results.append(value)
            else:
                counters[value[0]] = value[1]
    if is_remote(path):
        remove(folder, [path])
    else:
        Path(path).unlink()
    return results, dict(sorted(counters.items()))


class CountingDoFn(beam.DoFn):
    """DoFn with counters `self.counts`, whose sums are emitted at the end of a bundle, besides its main output.

    Counts emitted one by one would take about 1 kB of the runner's memory per element. A subclass that overrides
    `start_bundle` or `finish_bundle` must call the one here.
    """

    def start_bundle(self) -> None:
        self.counts: Counter = Counter()

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        for name, number in self.counts.items():
            yield beam.pvalue.TaggedOutput(COUNTERS, GlobalWindows.windowed_value((name, int(number))))
