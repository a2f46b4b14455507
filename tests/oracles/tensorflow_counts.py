"""Count what a folder of pre-training records holds, with TensorFlow's readers, in a process of its own.

Run as `python tensorflow_counts.py FOLDER MASK_ID UNKNOWN_ID`; prints one JSON object.
"""

import json
import sys
from pathlib import Path


def main(folder: Path, mask_id: int, unknown_id: int) -> None:
    import tensorflow as tf

    counts = dict.fromkeys(("records", "tokens", "places", "labels", "hidden", "kept", "replaced", "unknown"), 0)
    for record in tf.data.TFRecordDataset([str(path) for path in sorted(folder.glob("*.tfrecord"))]):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        ids = list(feature["input_ids"].int64_list.value)
        counts["records"] += 1
        counts["places"] += len(ids)
        counts["tokens"] += sum(feature["input_mask"].int64_list.value)
        counts["labels"] += feature["next_sentence_labels"].int64_list.value[0]
        for place, original, weight in zip(
            feature["masked_lm_positions"].int64_list.value,
            feature["masked_lm_ids"].int64_list.value,
            feature["masked_lm_weights"].float_list.value,
            strict=True,
        ):
            if weight:
                shown = ids[place]
                counts["hidden" if shown == mask_id else "kept" if shown == original else "replaced"] += 1
                ids[place] = original
        counts["unknown"] += ids.count(unknown_id)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
