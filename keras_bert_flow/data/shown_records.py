"""Show pre-training records as text, with their masks."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bert_flow.records.checking import check_records
from keras_bert_flow.records.schema import decode_record
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, RECORD_SUFFIX, TFRecordFile
from keras_bert_flow.records.verification import verify
from keras_bert_flow.text.objectives.registry import DEFAULT, find_objective
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, list_tokenizer_files, read_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

PARTS = ("train", "held_out")
LEGEND = "[MASK: word] hidden, [KEPT: word] to predict though shown, [RANDOM other: word] replaced by another"


def show_examples(folder: str | Path, count: int = 3, part: str = "train") -> str:
    """Return the first records of a part as text; the order of records in a file is random.

    Args:
        folder: output of `kbf records`; the sizes of all files are checked, and the digests of those that are read.
        count: number of records.
        part: `train` or `held_out`.
    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file or record is damaged, ids are beyond the vocabulary, or the part has no records.
    """
    folder = Path(folder)
    if part not in PARTS:
        raise ValueError(f"The part must be one of {', '.join(PARTS)}. Received: {part}.")
    manifest = check_records(folder, digests=False)
    vocabulary = find_tokenizer_file(folder)
    verify(*list_tokenizer_files(vocabulary))
    tokenizer = read_tokenizer_file(vocabulary)
    objective = manifest.config.get("objective", DEFAULT)
    names = [file.name for file in manifest.files if file.name.startswith(f"{part}-")]
    blocks = [LEGEND]
    for path in (folder / name for name in names if name.endswith(RECORD_SUFFIX)):
        if len(blocks) > count:
            break
        verify(path, f"{path}{INDEX_SUFFIX}")
        file = TFRecordFile(path)
        for position in range(min(len(file), count + 1 - len(blocks))):
            place = f"record {position} of {path.name}"
            blocks.append(show_record(decode_record(file[position]), tokenizer, place, objective))
    if len(blocks) == 1:
        raise ValueError(f"There must be {part} records to show. Received: {folder}, with none. Try the other --part.")
    return "\n\n".join(blocks)


def show_record(features: Mapping[str, np.ndarray], tokenizer: Tokenizer, place: str, objective: str) -> str:
    """Format one record: a header line, then each segment on its own line."""
    pieces, ids, length = tokenizer.pieces, features["input_ids"], int(np.count_nonzero(features["input_mask"]))
    largest = int(max(ids.max(), features["masked_lm_ids"].max()))
    if largest >= len(pieces) or min(ids.min(), features["masked_lm_ids"].min()) < 0:
        raise ValueError(
            f"Token ids must be below the vocabulary's size, {len(pieces)}. Received: {largest} in {place}. "
            "Rebuild the records."
        )
    words = [pieces[token] for token in ids[:length]]
    predicted = features["masked_lm_weights"] > 0
    for position, original in zip(
        features["masked_lm_positions"][predicted], features["masked_lm_ids"][predicted], strict=True
    ):
        if position >= length:
            raise ValueError(f"A masked place must hold a token. Received: {position} in {place}. Rebuild the records.")
        words[position] = show_prediction(words[position], pieces[original], tokenizer.mask_token)
    head = [place]
    if label := find_objective(objective).sentence_label:
        head.append(label.meanings[int(features["next_sentence_labels"][0])])
    head += [f"{length} tokens", f"{int(predicted.sum())} predictions", f"{len(ids) - length} padding"]
    is_second = features["segment_ids"][:length] == 1
    segments = [words[number] for number in np.flatnonzero(~is_second)], [words[n] for n in np.flatnonzero(is_second)]
    lines = [f"  {name}  {' '.join(segment)}" for name, segment in zip("AB", segments, strict=True) if segment]
    return "\n".join([", ".join(head), *lines])


def show_prediction(shown: str, original: str, mask_token: str = "[MASK]") -> str:
    """Format a masked token: the input that the model sees, and the token to predict."""
    if shown == mask_token:
        return f"[MASK: {original}]"
    return f"[KEPT: {original}]" if shown == original else f"[RANDOM {shown}: {original}]"
