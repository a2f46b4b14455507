"""Time parts of the training step, Keras' form beside ours, and its matrix products, and print two Markdown tables.

    KERAS_BACKEND=torch OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/step_parts.py [--precision mixed_bfloat16]

Shapes are those of one layer at 32 sequences of 128 tokens, 12 heads, 384 wide. The parts run forward and backward.
Processor time, median of five.
"""

import argparse
import statistics
import time

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.fused import drop_values, dropped_steps
from keras_bert_flow.backends.products import split_heads
from keras_bert_flow.backends.runtime import keep_freed_memory
from keras_bert_flow.layers.attention import attention_bias, softmax_and_drop
from keras_bert_flow.layers.dense import get_activation
from keras_bert_flow.models.defaults import make_adamw, token_loss

BATCH, LENGTH, HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 32, 128, 12, 32, 384, 30_522
RNG = np.random.default_rng(1)
MASK = np.ones((BATCH, LENGTH), "int32")
LABELS = RNG.integers(0, VOCABULARY, (BATCH, 20)).astype("int32")
KERAS_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SEED, STEPS = np.array([7, 1], "int32"), dropped_steps(0.1)


def keras_softmax_and_drop(scores):
    probabilities = ops.softmax(ops.cast(scores, "float32") + attention_bias(MASK), axis=-1)
    return keras.random.dropout(ops.cast(probabilities, scores.dtype), 0.1, seed=7)


def keras_split(fused):
    fused = ops.reshape(fused, (-1, LENGTH, HEADS, 3, HEAD_DIM))
    return [ops.transpose(fused[:, :, :, index, :], (0, 2, 1, 3)) for index in range(3)]


def make_seed():
    return ops.convert_to_tensor(SEED)


# name → shape, Keras' form, ours
PARTS = {
    "dropout of the probabilities": (
        (BATCH, HEADS, LENGTH, LENGTH),
        lambda x: keras.random.dropout(x, 0.1, seed=7),
        lambda x: drop_values(x, make_seed(), STEPS),
    ),
    "softmax and dropout of the scores": (
        (BATCH, HEADS, LENGTH, LENGTH),
        keras_softmax_and_drop,
        lambda x: softmax_and_drop(x, MASK, make_seed(), STEPS),
    ),
    "cutting the fused projection": (
        (BATCH, LENGTH, 3 * HIDDEN),
        keras_split,
        lambda x: list(split_heads(x, LENGTH, HEADS, HEAD_DIM)),
    ),
    "erf GELU": (
        (BATCH, LENGTH, 4 * HIDDEN),
        lambda x: ops.gelu(x, approximate=False),
        lambda x: get_activation("gelu", is_for_training=True)(x),
    ),
    "loss of the masked tokens": (
        (BATCH, 20, VOCABULARY),
        lambda x: KERAS_LOSS(LABELS, ops.cast(x, "float32")),
        lambda x: token_loss()(LABELS, ops.cast(x, "float32")),
    ),
}

# name → shapes of the two factors
TOKENS = BATCH * LENGTH
PRODUCTS = {
    "query, key and value": ((TOKENS, HIDDEN), (HIDDEN, 3 * HIDDEN)),
    "attention scores": ((BATCH, HEADS, LENGTH, HEAD_DIM), (BATCH, HEADS, HEAD_DIM, LENGTH)),
    "feed-forward": ((TOKENS, HIDDEN), (HIDDEN, 4 * HIDDEN)),
    "masked tokens to the vocabulary": ((BATCH * 20, HIDDEN), (HIDDEN, VOCABULARY)),
}


def compile_product():
    """Return what multiplies two arrays, compiled where the backend compiles, and waits for the product."""
    if keras.backend.backend() == "jax":
        import jax

        compiled = jax.jit(ops.matmul)
        return lambda x, y: jax.block_until_ready(compiled(x, y))
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        return tensorflow.function(ops.matmul)
    return ops.matmul


def differentiate(function):
    """Return what runs a function and its gradient, compiled where the backend compiles, and waits for them."""

    def loss(x):
        outputs = function(x)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        return sum(ops.sum(ops.square(ops.cast(output, "float32"))) for output in outputs)

    if keras.backend.backend() == "jax":
        import jax

        compiled = jax.jit(jax.value_and_grad(loss))
        return lambda x: jax.block_until_ready(compiled(x))
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        @tensorflow.function
        def run(x):
            with tensorflow.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            return value, tape.gradient(value, x)

        return lambda x: run(x)[0].numpy()
    return lambda x: loss(x.detach().requires_grad_()).backward()


def measure(run, *arguments) -> float:
    """Return milliseconds of the processor."""
    seconds = []
    for _ in range(6):
        started_at = time.process_time()
        run(*arguments)
        seconds.append(time.process_time() - started_at)
    return 1000 * statistics.median(seconds[1:])


def cast_normal(shape: tuple[int, ...], precision: str):
    return ops.cast(RNG.normal(size=shape).astype("float32"), precision.removeprefix("mixed_"))


def step_of(optimizer):
    """Return what takes one step of an optimizer over as many weights as the 6 × 384 model has."""
    variables = [keras.Variable(np.full((VOCABULARY, HIDDEN), 0.1, "float32"))]
    variables += [keras.Variable(np.full((HIDDEN, 4 * HIDDEN), 0.1, "float32")) for _ in range(18)]
    optimizer.build(variables)
    gradients = [ops.full(variable.shape, 0.01) for variable in variables]
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        return tensorflow.function(lambda: optimizer.apply(gradients, variables))
    return lambda: optimizer.apply(gradients, variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="float32", choices=("float32", "mixed_bfloat16"))
    precision = parser.parse_args().precision
    keep_freed_memory()
    print(f"| {keras.backend.backend()}, {precision} | Keras' form, ms | ours, ms |", "|---|---:|---:|", sep="\n")
    for name, (shape, *forms) in PARTS.items():
        values = cast_normal(shape, precision)
        times = [measure(differentiate(form), values) for form in forms]
        print(f"| {name} | " + " | ".join(f"{time:,.0f}" for time in times) + " |", flush=True)
    if keras.backend.backend() != "jax":  # where Keras' own is compiled with the step
        own = keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0)
        times = [measure(step_of(optimizer)) for optimizer in (own, make_adamw(1e-4))]
        print("| AdamW with clipping | " + " | ".join(f"{time:,.0f}" for time in times) + " |")
    print(f"\n| product, {keras.backend.backend()}, {precision} | GFLOP/s |", "|---|---:|", sep="\n")
    product = compile_product()
    for name, shapes in PRODUCTS.items():
        factors = [cast_normal(shape, precision) for shape in shapes]
        flops = 2 * np.prod(shapes[0]) * shapes[1][-1]
        print(f"| {name} | {flops / measure(product, *factors) / 1e6:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
