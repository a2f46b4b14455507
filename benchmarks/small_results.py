"""Print and draw what `benchmarks/small_students.py` measured, and put both into a page.

python -m benchmarks.small_results out/small/results.json --figure docs/images/small.svg --page docs/small.md
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exported_models import INT8

WORDS = "TF-IDF"
EIGHT = f"onnx{INT8}"
FORMATS = ("torch", "transformers", "onnx", EIGHT)
WEIGHED = ("torch", "onnx", EIGHT)
MARKERS = {"torch": ("o", "PyTorch"), "onnx": ("s", "ONNX"), EIGHT: ("^", "ONNX int8")}
BEGIN, END = "[measured]: #", "[as measured]: #"  # Markdown shows neither
ALTERNATIVE = "Accuracy on SST-2 of a teacher and its students, over the time of a text and the size of the model"
HEADER = (
    *("model", "layers × width", "million weights", "steps", "minutes", "minutes of fine-tuning"),
    *("dev, %", "test, %", "% of the teacher's", "test, ONNX int8, %", "MB, safetensors", "MB, ONNX", "MB, ONNX int8"),
    *("ms a text, PyTorch", "ms, transformers", "ms, ONNX", "ms, ONNX int8"),
)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that `show` takes."""
    parser.add_argument("--figure", type=Path, help=".svg or .png to draw")
    parser.add_argument("--page", type=Path, help=f"Markdown to put both into, between {BEGIN} and {END}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="results.json of `benchmarks/small_students.py`")
    add_outputs(parser)
    arguments = parser.parse_args()
    show(json.loads(arguments.results.read_text()), arguments.figure, arguments.page)


def show(results: Mapping[str, Any], figure: Path | None, page: Path | None) -> None:
    """Print the table, draw the figure, and write both into a page.

    Args:
        results: `seeds`, and `models`: name → what was measured.
    """
    models, seeds = results["models"], ", ".join(map(str, results["seeds"]))
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|" + "---:|" * (len(HEADER) - 2)]
    lines += ["| " + " | ".join(row) + " |" for row in list_rows(models)]
    lines += [
        "",
        f"Mean ± standard error over seeds {seeds}. Minutes and milliseconds are those of the processor, on one",
        "thread: minutes of pre-training or distillation as measured, and of fine-tuning per seed; milliseconds of one",
        "sentence of SST-2 by itself with its tokenization, in transformers of the encoder alone.",
    ]
    print("\n".join(lines))
    if figure is not None:
        draw(models, figure)
    if page is not None:
        text = page.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        image = [f"![{ALTERNATIVE}]({os.path.relpath(figure, page.parent)})", ""] if figure else []
        page.write_text("\n".join([f"{before}{BEGIN}", "", *image, *lines, "", f"{END}{after}"]), encoding="utf-8")


def list_rows(models: Mapping[str, Any]) -> Iterator[list[str]]:
    teacher = statistics.fmean(next(iter(models.values()))["test"])
    for name, values in models.items():
        kept = f"{100 * statistics.fmean(values['test']) / teacher:.1f}"
        scores = [spread(values["dev"]), spread(values["test"]), kept]
        if name == WORDS:
            yield [name, *["-"] * 5, *scores, *["-"] * 8]
            continue
        times = values["times"]
        megabytes = [f"{values['bytes'][form] / 1e6:.1f}" if form in times else "-" for form in WEIGHED]
        milliseconds = [f"{1000 * times[form]:.2f}" if form in times else "-" for form in FORMATS]
        spent = [f"{values['steps']:,}", f"{values['minutes']:.1f}", f"{values['tuning_minutes']:.1f}"]
        size = [values["shape"], f"{values['parameters'] / 1e6:.2f}"]
        yield [name, *size, *spent, *scores, spread(values.get(f"test{INT8}", [])), *megabytes, *milliseconds]


def spread(values: Sequence[float]) -> str:
    """Write a mean in percent with its standard error."""
    if not values:
        return "-"
    return f"{100 * statistics.fmean(values):.1f}" + (f" ± {100 * find_error(values):.1f}" if len(values) > 1 else "")


def find_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def draw(models: Mapping[str, Any], path: Path) -> None:
    """Draw the accuracy over the time of a text, with a point for each format, and over the size."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from keras_bert_flow.evaluation.curves import COLOURS, GREY

    drawn = {name: values for name, values in models.items() if name != WORDS}
    with rc_context({"svg.hashsalt": "small", "svg.fonttype": "none", "font.size": 9.5}):
        figure = Figure(figsize=(7.6, 4.0), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for (name, values), colour in zip(drawn.items(), COLOURS * 2, strict=False):
            scores = {form: values["test"] for form in MARKERS if form in values["times"]}
            if EIGHT in scores:
                scores[EIGHT] = values[f"test{INT8}"]
            heights = [100 * statistics.fmean(score) for score in scores.values()]
            for axes, scale, unit in ((panels[0], 1000, "times"), (panels[1], 1e-6, "bytes")):
                places = [scale * values[unit][form] for form in scores]
                axes.plot(places, heights, color=colour, linewidth=0.8, label=name if axes is panels[0] else None)
                for (form, score), place, height in zip(scores.items(), places, heights, strict=True):
                    error = 100 * find_error(score)
                    axes.errorbar(place, height, error, fmt=MARKERS[form][0], color=colour, markersize=5, linewidth=0.8)
        for axes, label in zip(panels, ("milliseconds a text, one thread", "MB of the model"), strict=True):
            axes.axhline(100 * statistics.fmean(models[WORDS]["test"]), color=GREY, linestyle="--", linewidth=1)
            axes.set(xscale="log", xlabel=label)
            low, high = axes.get_xlim()
            ticks = [step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)]
            axes.set_xticks([tick for tick in ticks if low <= tick <= high])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("SST-2 test accuracy, %")
        for marker, title in MARKERS.values():
            panels[1].plot([], [], marker, color=GREY, markersize=5, label=title)
        panels[1].plot([], [], "--", color=GREY, label=WORDS)
        handles = [handle for axes in panels for handle in axes.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})


if __name__ == "__main__":
    main()
