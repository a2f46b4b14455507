"""Compile a step of a small model for a device: DEVICE FOLDER STEP ROWS COUNT; prints a line of JSON."""

import json
import re
import sys


def main(name: str, folder: str, step: str, rows: int, count: int) -> None:
    sys.path.insert(0, folder)
    import keras
    import numpy as np

    import keras_bert_flow as kbf
    from keras_bert_flow.checks.devices import find_device
    from keras_bert_flow.distribution.jax_ahead import compile_step, describe_chips, read_program, share_copy
    from keras_bert_flow.models.families.family import find_family

    device = find_device(name)
    keras.config.set_dtype_policy("mixed_bfloat16")
    step, _, kind = step.partition(" ")  # `deep` has 5 layers, `scanned` as well, in one scan; `long` has longer rows
    length, masks = 512 if kind == "long" else 48, 6
    layers = 5 if kind in ("deep", "scanned") else 2
    sizes = {"vocabulary_size": 2048, "num_layers": layers, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
    shape = find_family("bert").shape(max_positions=length, **sizes)
    with share_copy(shape, find_family("bert").sharding, count):
        backbone = kbf.BertBackbone(max_positions=length, **sizes)
        model = kbf.BertPretrainer(backbone) if step == "pretraining" else kbf.TextClassifier(backbone, num_classes=3)
        backbone.set_scanned(kind == "scanned")
        model.compile(optimizer=kbf.adamw(learning_rate=1e-4, warmup_steps=10, total_steps=100))
        x = {key: np.zeros((rows, length), tensor.dtype) for key, tensor in backbone.input.items()}
        if step == "pretraining":
            x["mask_positions"] = np.zeros((rows, masks), "int32")
            y = {"mlm": np.zeros((rows, masks), "int32"), "nsp": np.zeros(rows, "int32")}
            batch = x, y, {"mlm": np.ones((rows, masks), "float32"), "nsp": np.ones(rows, "float32")}
        else:
            batch = x, np.zeros(rows, "int32")
        chips = describe_chips(device.topology, device.target)
        compiled = compile_step(model, batch, chips, count, training=step != "evaluation")
    text, memory = compiled.as_text(), compiled.memory_analysis()
    program = read_program(text, device.bytes_per_second, device.peak_flops)
    found = {
        "collectives": program.collectives,
        "flops": program.flops,
        "splash": len(re.findall(r"custom-call\(.*tpu_custom_call", text)),
        "host": re.findall(r" (?:infeed|outfeed|send|recv)\(|MoveToHost|MoveToDevice|host_callback", text),
        "whole_batches": re.findall(rf"\[{rows},[\d,]*\]", text) if device.chips > count else [],
        "weights": model.count_params(),
        "state_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
