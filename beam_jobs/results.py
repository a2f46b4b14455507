"""Bring small results of a pipeline home: one text file of JSON lines, the pipeline's single end.

Beam's own metrics count a retried bundle twice and not every runner has them; what is summed as data is exact.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindows

from beam_jobs.places import open_bytes

COUNTERS = "counters"  # tag of the outputs that hold (name, number)
_FILE = "results.jsonl"


class WriteResults(beam.PTransform):
    """Sum the counters and write them, and the results given with them, into a folder.

    Args:
        folder: where `read_results` will look; every worker must reach it.
    """

    def __init__(self, folder: str):
        super().__init__()
        self._prefix = f"{folder}/{_FILE}"

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
            | "WriteResults" >> beam.io.WriteToText(self._prefix, shard_name_template="")
        )


def read_results(folder: str) -> tuple[Sequence[Any], dict[str, int]]:
    """Read what the pipeline wrote, remove the file, and return (results, counters by name)."""
    path = f"{folder}/{_FILE}"
    results, counters = [], {}
    with open_bytes(path) as file:
        for kind, value in map(json.loads, file.read().decode().splitlines()):
            if kind == "result":
                results.append(value)
            else:
                counters[value[0]] = value[1]
    FileSystems.delete([path])
    return results, dict(sorted(counters.items()))


class CountingDoFn(beam.DoFn):
    """A DoFn that adds to `self.counts` and emits their sums at the end of a bundle, beside its main output.

    Counts that are emitted one by one take about 1 kB of the runner's memory for each element. A subclass that has a
    `start_bundle` or `finish_bundle` of its own calls the one here.
    """

    def start_bundle(self) -> None:
        self.counts: Counter = Counter()

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        for name, number in self.counts.items():
            yield beam.pvalue.TaggedOutput(COUNTERS, GlobalWindows.windowed_value((name, int(number))))
