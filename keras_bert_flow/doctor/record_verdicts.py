"""Judge the contents of records by the rules that they are made by, within the ranges of chance."""

from collections.abc import Mapping
from typing import Any

from keras_bert_flow.doctor.findings import Finding, Verdict, grade, judge, judge_lost, percent, share
from keras_bert_flow.doctor.measures import chance_range
from keras_bert_flow.doctor.record_counts import FAULTS, RecordCounts
from keras_bert_flow.text.masking import KEEP_SHARE, MASK_SHARE
from keras_bert_flow.text.objectives.objective import MOST_MISTAKEN, NEAR_COPIES, mistaken_share
from keras_bert_flow.text.tokenizers.lost_characters import LEARN, advise_unknown

LOWEST_FILLED = 0.8  # of the predictions expected, if whole words or spans must fit
COUNTED = {"masked_tokens": "masked_tokens", "instance_tokens": "tokens"}  # the job's name → ours
_REBUILD = "Build the records again with `kbf records`."
_FINE = {
    "decoding": "every record is a tf.train.Example with the features of BERT",
    "shapes": "every feature has its length",
    "ids": "all below the size of the vocabulary",
    "padding": "only at the end, all zeros",
    "special tokens": "[CLS] and [SEP] at their places",
    "segments": "as [CLS] and [SEP] say",
    "predictions": "of words, in ascending places, with zeros after them",
    "labels": "all allowed",
}
_REMEDIES = {
    "ids": "The vocabulary is not the one that the records were made with: " + _REBUILD,
    "special tokens": "Is it the vocabulary that the records were made with? Else build them again.",
}


def judge_records(counts: RecordCounts, counters: Mapping[str, Any], is_whole: bool) -> list[Finding]:
    """Judge layout, labels, masks and text of the counted records.

    Args:
        counters: counters of the manifest; may be empty.
        is_whole: every record was counted, so sums must equal the counters.
    """
    form = [_judge_form(counts, fault) for fault in FAULTS]
    if not counts.totals["counted"]:
        return form
    return [
        *form,
        *_judge_counters(counts, counters, is_whole),
        _judge_padding(counts),
        *_judge_labels(counts),
        *_judge_mistaken(counts, counters),
        *_judge_amount_masked(counts),
        *_judge_replacements(counts),
        *_judge_unknown(counts, counters),
        judge(
            "repeated records",
            grade(counts.repeats.repeated_share, 0.01, 0.5),
            f"{percent(counts.repeats.repeated_share)} were there before",
            "Remove copies of documents from the corpus; very short documents repeat by themselves.",
        ),
    ]


def _judge_form(counts: RecordCounts, fault: str) -> Finding:
    wrong = counts.faults[fault]
    value = (
        f"{wrong:,} of {counts.totals['records']:,} records are wrong, first {counts.first_fault[fault]}"
        if wrong
        else _FINE[fault]
    )
    return judge(fault, not wrong, value, _REMEDIES.get(fault, _REBUILD))


def _judge_counters(counts: RecordCounts, counters: Mapping[str, Any], is_whole: bool) -> list[Finding]:
    """Compare sums with the job's own, if it kept them and every record was read."""
    label = counts.layout.sentence_label
    ours = COUNTED | ({label.counter: "positive_labels"} if label else {})
    known = {name: counters[name] for name in ours if name in counters}
    if not known or not is_whole:
        return []
    wrong = [
        f"{name} {counts.totals[ours[name]]:,}, not {number:,}"
        for name, number in known.items()
        if counts.totals[ours[name]] != number
    ]
    value = "; ".join(wrong) or f"{', '.join(known)} as the job counted them"
    return [judge("counters", not wrong, value, "The files are not those that the job made. " + _REBUILD)]


def _judge_padding(counts: RecordCounts) -> Finding:
    empty = 1 - share(counts.totals["tokens"], counts.totals["places"])
    value = f"{percent(empty)} of places; mean {share(counts.totals['tokens'], counts.totals['counted']):.1f} tokens"
    return judge(
        "padding share",
        grade(empty, counts.layout.most_padding),
        value,
        "Lower records.sequence_length, or give longer documents.",
    )


def _judge_labels(counts: RecordCounts) -> list[Finding]:
    pairs, label = counts.totals["counted"], counts.layout.sentence_label
    if label is None:
        return []
    low, high = chance_range(label.shares[0], pairs)[0], chance_range(label.shares[1], pairs)[1]
    seen = share(counts.totals["positive_labels"], pairs)
    value = f"{percent(seen)} of {pairs:,} pairs; expected {percent(low)} to {percent(high)}"
    value += f", {label.usual}" if label.usual else ""
    wrong: Verdict = "error" if label.is_drawn or seen in (0, 1) else "warning"
    remedy = label.remedies[seen > high] or f"The label of a pair must be drawn evenly. {_REBUILD}"
    return [judge(label.counter.replace("_", " "), "ok" if low <= seen <= high else wrong, value, remedy)]


def _judge_amount_masked(counts: RecordCounts) -> list[Finding]:
    totals, layout = counts.totals, counts.layout
    value = f"{totals['masked_tokens']:,}, {percent(share(totals['masked_tokens'], totals['tokens']))} of tokens"
    if layout.masked_fraction is None:
        return [judge("masked tokens", totals["masked_tokens"] > 0, value, _REBUILD)]
    wanted, remedy = totals["wanted_predictions"], "Masks are not by the rule of the manifest. " + _REBUILD
    if layout.mask_unit == "token":
        value += f"; expected {wanted:,}"
        return [
            judge("masked tokens", totals["masked_tokens"] == wanted and not totals["over_predicted"], value, remedy)
        ]
    value += f"; expected {round(LOWEST_FILLED * wanted):,} to {wanted:,}: what does not fit as a whole is left out"
    if totals["over_predicted"]:
        return [judge("masked tokens", False, f"{value}; {totals['over_predicted']:,} records have too many", remedy)]
    verdict: Verdict = "ok" if totals["masked_tokens"] >= LOWEST_FILLED * wanted else "warning"
    return [judge("masked tokens", verdict, value, "Raise records.max_predictions: few words or spans fit.")]


def _judge_replacements(counts: RecordCounts) -> list[Finding]:
    """Check the split of the masked tokens against 80/10/10; a random token is at times [MASK] or the token itself."""
    totals, layout = counts.totals, counts.layout
    masked, one_of_all = totals["masked_tokens"], 1 / layout.vocabulary_size
    # The tokens of a span share one draw: use the number of independent draws that gives a mean the same variance.
    draws = share(masked**2, totals["squared_runs"]) if layout.mask_unit == "span" else masked
    random_share = 1 - MASK_SHARE - KEEP_SHARE
    expected = {
        "hidden": MASK_SHARE + random_share * one_of_all,
        "kept": KEEP_SHARE + random_share * one_of_all,
        "replaced": random_share * (1 - 2 * one_of_all),
    }
    findings = []
    for name, probability in expected.items():
        low, high = chance_range(probability, draws)
        seen = share(totals[name], masked)
        value = f"{percent(seen)} of masked tokens; expected {percent(low)} to {percent(high)}"
        findings.append(judge(name, low <= seen <= high, value, "Masks are not drawn 80/10/10. " + _REBUILD))
    return findings


def _judge_mistaken(counts: RecordCounts, counters: Mapping[str, Any]) -> list[Finding]:
    """Judge the labels that the text contradicts, as the job counted them."""
    label = counts.layout.sentence_label
    if label is None or (wrong := mistaken_share(label, counters)) is None:
        return []
    value = f"{percent(wrong)} of the pairs labelled {label.meanings[1]!r} are of a B that could follow A"
    return [judge("labels by text", grade(wrong, MOST_MISTAKEN, 0.1), value, NEAR_COPIES)]


def _judge_unknown(counts: RecordCounts, counters: Mapping[str, Any]) -> list[Finding]:
    """Judge what the tokenizer lost: by characters, if the job counted them, since a lost sentence is one token."""
    unknown, known = share(counts.totals["unknown_tokens"], counts.totals["words"]), bool(counters.get("characters"))
    value = f"{percent(unknown)} of {counts.totals['words']:,} tokens"
    remedy = advise_unknown(counters) if known else LEARN
    return [judge("unknown tokens", grade(unknown, 0.01, 0.1), value, remedy), *(judge_lost(counters) if known else ())]
