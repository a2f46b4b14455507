"""Print how much of the records of each objective is padding, as a Markdown table.

    python benchmarks/padding.py --input wiki_en_train.txt --vocab vocab.txt
    python benchmarks/padding.py --input wiki_en_train.txt --vocab vocab.txt --sequence-length 512 --max-predictions 76
    python benchmarks/padding.py --input sentences.txt --vocab vocab.txt --objectives mlm --packing

Builds the records of each objective in a temporary folder and reads the counters of their manifests.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from beam_jobs.build_records import build_records
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.objectives import OBJECTIVES

HEADER = ("objective", "sequence length", "instances", "tokens", "positions", "padding %", "masked tokens % of tokens")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, nargs="+", help="files of text")
    parser.add_argument("--vocab", required=True, help="vocab.txt")
    parser.add_argument("--cased", action="store_true", help="the vocabulary keeps case")
    parser.add_argument("--lines", default="paragraphs", choices=("paragraphs", "sentences"))
    parser.add_argument("--objectives", nargs="+", default=[*OBJECTIVES], choices=OBJECTIVES)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--max-predictions", type=int, default=20)
    parser.add_argument("--short-fraction", type=float, default=0.1)
    parser.add_argument("--duplication", type=int, default=1)
    parser.add_argument("--packing", action="store_true", help="fill rows with whole documents: mlm and rtd")
    return parser.parse_args()


def count_records(arguments: argparse.Namespace, objective: str, folder: Path) -> Mapping[str, int]:
    corpus = CorpusConfig(input=tuple(arguments.input), lines=arguments.lines)
    records = RecordsConfig(
        objective=objective,
        sequence_length=arguments.sequence_length,
        max_predictions=arguments.max_predictions,
        short_fraction=arguments.short_fraction,
        duplication=arguments.duplication,
        packing=arguments.packing,
    )
    return read_manifest(build_records(corpus, records, arguments.vocab, arguments.cased, folder)).counters


def main() -> None:
    arguments = parse_arguments()
    print("| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for objective in arguments.objectives:
            counters = count_records(arguments, objective, Path(folder) / objective)
            tokens, positions = counters["instance_tokens"], counters["positions"]
            row = (
                f"`{objective}`",
                f"{arguments.sequence_length}",
                f"{counters['instances_train'] + counters.get('instances_held_out', 0):,}",
                f"{tokens:,}",
                f"{positions:,}",
                f"{100 * counters['padding_positions'] / positions:.2f}",
                f"{100 * counters['masked_tokens'] / tokens:.2f}",
            )
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
