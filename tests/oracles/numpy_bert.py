"""Compute BERT in float64 NumPy, head by head, as the papers write it."""

import numpy as np
from scipy.special import erf


def randomise_weights(model, seed):
    """Give every weight, also biases and layer norms, a value that no default hides."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        center = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(rng.normal(center, 0.2, variable.shape).astype("float32"))


def weights_of(model):
    """Return {path: float64 array}."""
    return {
        v.path: np.asarray(value, dtype=np.float64) for v, value in zip(model.weights, model.get_weights(), strict=True)
    }


def forward(weights, inputs, num_layers, num_heads, hidden_act="gelu"):
    """Return (hidden states, embeddings first; pooled output, None without a pooler)."""
    token_ids, segment_ids, mask = (inputs[key] for key in ("token_ids", "segment_ids", "padding_mask"))
    hidden = (
        weights["token_embedding/embeddings"][token_ids]
        + weights["embeddings/position_embedding"][np.arange(token_ids.shape[1])]
        + weights["embeddings/segment_embedding"][segment_ids]
    )
    states = [_normalise(hidden, weights, "embeddings/layer_norm")]
    for index in range(num_layers):
        prefix = f"encoder_block_{index}"
        attended = _attend(states[-1], mask, weights, f"{prefix}/attention", num_heads)
        hidden = _normalise(states[-1] + attended, weights, f"{prefix}/attention_layer_norm")
        inner = _gelu(_dense(hidden, weights, f"{prefix}/intermediate"), hidden_act)
        outer = _dense(inner, weights, f"{prefix}/output")
        states.append(_normalise(hidden + outer, weights, f"{prefix}/output_layer_norm"))
    has_pooler = "pooler/dense/kernel" in weights
    return states, np.tanh(_dense(states[-1][:, 0], weights, "pooler/dense")) if has_pooler else None


def attention_scores(weights, states, mask, num_heads):
    """Return the scores of each layer before the softmax, -1e9 for masked keys, (batch, heads, query, key)."""
    found = []
    for index, hidden in enumerate(states[:-1]):
        heads = _score_heads(hidden, mask, weights, f"encoder_block_{index}/attention", num_heads)
        found.append(np.stack([scores for scores, _ in heads], axis=1))
    return found


def pretraining_logits(weights, sequence, pooled, mask_positions, hidden_act="gelu"):
    """Return (masked-LM logits, next-sentence logits)."""
    picked = np.stack([row[positions] for row, positions in zip(sequence, mask_positions, strict=True)])
    hidden = _gelu(_dense(picked, weights, "mlm_transform/dense"), hidden_act)
    hidden = _normalise(hidden, weights, "mlm_transform/layer_norm")
    mlm = hidden @ weights["token_embedding/embeddings"].T + weights["mlm/bias"]
    return mlm, _dense(pooled, weights, "nsp")


def _attend(hidden, mask, weights, name, num_heads):
    heads = []
    for scores, value in _score_heads(hidden, mask, weights, name, num_heads):
        exponents = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(exponents / exponents.sum(-1, keepdims=True) @ value)
    return _dense(np.concatenate(heads, axis=-1), weights, f"{name}/output")


def _score_heads(hidden, mask, weights, name, num_heads):
    """Yield (scores, values) of each head."""
    kernel, bias = weights[f"{name}/query_key_value/kernel"], weights[f"{name}/query_key_value/bias"]
    head_dim = hidden.shape[-1] // num_heads
    for head in range(num_heads):
        start = head * 3 * head_dim  # heads-major: the three parts of a head lie together
        query, key, value = (
            hidden @ kernel[:, cut] + bias[cut]
            for cut in (slice(start + part * head_dim, start + (part + 1) * head_dim) for part in range(3))
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(head_dim)
        yield np.where(mask[:, None, :] > 0, scores, -1e9), value


def _dense(inputs, weights, name):
    return inputs @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def _normalise(inputs, weights, name):
    centered = inputs - inputs.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def _gelu(inputs, hidden_act):
    if hidden_act == "gelu":
        return 0.5 * inputs * (1 + erf(inputs / np.sqrt(2)))
    return 0.5 * inputs * (1 + np.tanh(np.sqrt(2 / np.pi) * (inputs + 0.044715 * inputs**3)))
