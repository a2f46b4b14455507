"""Muon steps as PyTorch's own does, takes query, key and value apart, and moves weights together as one by one."""

import keras
import numpy as np
import pytest

from keras_bert_flow.training.optimizers.adam import make_optimizer as make_any_optimizer
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config
from tests.training.optimizer_cases import (
    DECAY,
    DECAYED,
    HEADS,
    MUON,
    SHAPES,
    make_optimizer,
    make_variables,
    values_of,
)


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16)])
def test_muon_steps_as_that_of_pytorch(shape):
    """PyTorch's own orthogonalises in bfloat16, whose roundings of 0.4 % five products can raise to a few per cent."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    first, gradients = rng.normal(size=shape).astype("float32"), rng.normal(size=(5, *shape)).astype("float32")
    theirs = torch.nn.Parameter(torch.from_numpy(first.T.copy()))  # (outputs, inputs) there
    reference = torch.optim.Muon([theirs], lr=0.3, weight_decay=DECAY, momentum=0.95, adjust_lr_fn="original")
    (ours,) = make_variables({"encoder_block_0/kernel": first})
    optimizer = make_any_optimizer("muon", 0.1, DECAY, None, muon_options=MUON)
    optimizer.build([ours])
    for gradient in gradients:
        theirs.grad = torch.from_numpy(gradient.T.copy())
        reference.step()
        optimizer.apply([keras.ops.convert_to_tensor(gradient)])
    (found,), expected = values_of([ours]), theirs.detach().numpy().T
    # The first five steps move a weight by some 0.3 in all.
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert np.abs(expected - first).max() > 0.3


@pytest.mark.slow_compiled
def test_muon_takes_query_key_and_value_apart():
    """Each moves as it would if it were a matrix of its own."""
    inputs, heads, head_dim = 6, HEADS, 3
    rng = np.random.default_rng(0)
    kernel, gradient = rng.normal(size=(2, inputs, heads, 3, head_dim)).astype("float32")
    layer = keras.layers.Dense(heads * 3 * head_dim, use_bias=False, name="query_key_value")
    with keras.name_scope("encoder_block_0"):
        layer.build((None, inputs))
        whole = layer.kernel
        parts = make_variables(
            {f"{number}/kernel": np.zeros((inputs, heads * head_dim), "float32") for number in "012"}
        )
    assert whole.path == "encoder_block_0/query_key_value/kernel"
    whole.assign(kernel.reshape(inputs, -1))
    for number, part in enumerate(parts):
        part.assign(kernel[:, :, number].reshape(inputs, -1))
    for variables, gradients in (
        ([whole], [gradient.reshape(inputs, -1)]),
        (parts, [gradient[:, :, number].reshape(inputs, -1) for number in range(3)]),
    ):
        matrices = {variable.path: HEADS if variable is whole else 0 for variable in variables}
        optimizer = make_any_optimizer("muon", 0.1, DECAY, None, muon_options=MUON | {"matrices": matrices})
        optimizer.build(variables)
        optimizer.apply([keras.ops.convert_to_tensor(values) for values in gradients])
    moved = values_of([whole])[0].reshape(inputs, heads, 3, head_dim)
    for number, part in enumerate(values_of(parts)):
        np.testing.assert_allclose(moved[:, :, number].reshape(inputs, -1), part, atol=1e-6)
    assert np.abs(moved - kernel).min() > 0


def test_muon_takes_these_weights_for_matrices():
    model = make_pretrainer(make_tiny_config().model, 50)
    found = model.backbone.list_matrices()
    assert sorted(found) == [path for path in DECAYED if path.startswith("encoder_block")]
    heads = {path: model.backbone.num_heads if "query_key_value" in path else 0 for path in found}
    assert found == heads


@pytest.mark.slow_compiled
def test_muon_steps_together_as_one_by_one():
    """On PyTorch matrices of one shape are stacked, those that lie across among them."""
    shapes = SHAPES | {
        "encoder_block_2/kernel": (4, 4),
        "encoder_block_3/kernel": (3, 4),
        "encoder_block_4/query_key_value/kernel": (4, 12),
    }
    rng = np.random.default_rng(0)
    first, gradients = (
        {path: rng.normal(size=shape).astype("float32") for path, shape in shapes.items()} for _ in "12"
    )
    moved = []
    for is_together in (True, False):
        variables = make_variables(first)
        for chosen in [slice(None)] if is_together else [slice(place, place + 1) for place in range(len(shapes))]:
            optimizer = make_optimizer("muon", 0.1, DECAY, None)
            optimizer.build(variables[chosen])
            optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in [*gradients.values()][chosen]])
        moved.append(values_of(variables))
    for path, together, alone, before in zip(first, *moved, first.values(), strict=True):
        np.testing.assert_allclose(together, alone, atol=1e-6, err_msg=path)
        assert np.abs(together - before).min() > 0
