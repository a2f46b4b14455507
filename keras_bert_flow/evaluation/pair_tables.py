"""Tables of the results on minimal pairs: for the terminal, for Markdown and for the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_flow.evaluation.page import paragraph, table
from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.markdown import as_markdown
from keras_bert_flow.terminal import abridge

HEADER = ("minimal pairs", "pairs", "accuracy %", "standard error", "ties")
_NOUNS = {"fields": "field", "linguistics_terms": "term", "phenomena": "phenomenon"}
_COARSE = ("fields", "linguistics_terms")


def pairs_text(results: Mapping[str, Any]) -> str:
    """Return the results as an aligned table for the terminal: all pairs, then every group."""
    return align([HEADER, *_list_rows(results)])


def pairs_markdown(results: Mapping[str, Any]) -> str:
    """Return the results over all pairs, fields and linguistics terms as a Markdown table."""
    return as_markdown([HEADER, *_list_rows(results, _COARSE)])


def describe_minimal_pairs(results: Mapping[str, Any] | None) -> list[str]:
    """Return the section of the report; empty if no pairs were scored."""
    if results is None:
        return []
    limit = f", the first {results['limit']:,} of each phenomenon" if results["limit"] else ""
    note = (
        f"{results['pairs']:,} pairs of an acceptable and an unacceptable sentence{limit}, scored by the pre-trained "
        "model without fine-tuning. Accuracy: how often the acceptable sentence has the higher pseudo-log-likelihood; "
        "a tie counts one half, and guessing gives 50 %. The standard error is over pairs."
    )
    return [table(HEADER, _list_rows(results)), paragraph(note, "note")]


def _list_rows(results: Mapping[str, Any], groupings: Sequence[str] = tuple(_NOUNS)) -> list[list[str]]:
    rows = [_make_row("all", results)]
    for grouping in groupings:
        rows += [_make_row(f"{_NOUNS[grouping]} {abridge(name)}", group) for name, group in results[grouping].items()]
    return rows


def _make_row(name: str, group: Mapping[str, Any]) -> list[str]:
    error = group["standard_error"]
    return [
        name,
        f"{group['pairs']:,}",
        f"{100 * group['accuracy']:.1f}",
        f"{100 * error:.1f}" if error else "",  # equal pairs have an error of 0, which says nothing of others
        f"{group['ties']:,}",
    ]
