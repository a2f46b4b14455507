"""Count the floating-point operations of pre-training from the architecture."""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape


@dataclass(frozen=True)
class Flops:
    """Operations of one sequence, a multiplication and an addition being two.

    Attributes:
        encoder: forward, of all blocks, and of what widens the embeddings to them.
        embeddings: forward, of the segment embeddings, which are a product here. Tokens are looked up, positions added.
        pooler: forward, with the two-way head; 0 where there is none.
        gather: forward, of picking the masked positions, which is a product here.
        masked_lm: forward, of the head at those positions, with the projection to the vocabulary.
        bag_of_words: forward, of the head on the mean of the tokens, with that projection; 0 where there is none.
        generator: forward, of the blocks of a generator, and of what widens the embeddings to them; 0 without one.
        detector: forward, of the head that tells replaced tokens; 0 without a generator.
    """

    encoder: int
    embeddings: int
    pooler: int
    gather: int
    masked_lm: int
    bag_of_words: int
    generator: int = 0
    detector: int = 0

    @property
    def forward(self) -> int:
        heads = self.pooler + self.gather + self.masked_lm + self.bag_of_words + self.detector
        return self.encoder + self.generator + self.embeddings + heads

    @property
    def training(self) -> int:
        """Forward and backward: each product has two gradients, of its inputs and of its weights, of the same size.

        Those of `embeddings` and `gather` have one: their one-hot side needs none.
        """
        return 3 * self.forward - self.embeddings - self.gather


def count_flops(
    shape: EncoderShape,
    sequence_length: int,
    masks_per_sequence: int,
    use_pooler: bool = True,
    bag_of_words: bool = False,
    generator: EncoderShape | None = None,
) -> Flops:
    """Count the operations of the matrix products of one sequence.

    With h `hidden_dim`, e `embedding_dim`, i `intermediate_dim`, T `sequence_length`, V `vocabulary_size` and m
    `masks_per_sequence`:

        block, per token     6 h² (query, key, value) + 2 h² (output) + 4 h i (feed-forward)
                             + 2 T h (scores) + 2 T h (their product with the values)
        segments, per token  2 e · `num_segments`
        widening, per token  2 e h, where there is one
        gather, per sequence 2 m T h
        masked LM, per m     2 e h (transform) + 2 e V
        pooler, per sequence 2 h² + 4 h (next sentence)
        bag of words, per sequence 2 e h (transform) + 2 e V

    A generator has blocks, segments and a widening of its own, and the masked LM and its gather have its h; then

        detector, per token  2 h² + 2 h, and the segments twice

    Padding and unfilled predictions count, since the device computes them. Left out: what is done element by element
    (dropout, activations, softmax, layer norms, biases, losses), the look-up of tokens, and the optimizer. The number
    of heads makes no difference.

    Source: Kaplan et al. 2020, section 2.1 (2 N per token and forward pass, 6 N with the backward one, N the weights
    that are multiplied; arXiv:2001.08361), who count the attention scores but not their product with the values;
    Chowdhery et al. 2022, appendix B (6 N + 12 · layers · h · T; arXiv:2204.02311), who count both, as here. In both,
    every token meets the vocabulary; here the masked ones alone do.
    """
    hidden, embedding = shape.hidden_dim, shape.embedding_dim
    filler = (generator or shape).hidden_dim  # width of the encoder that fills the gaps
    prediction = 2 * embedding * (filler + shape.vocabulary_size)
    return Flops(
        encoder=_count_blocks(shape, sequence_length),
        embeddings=2 * sequence_length * shape.num_segments * embedding * (2 if generator else 1),
        pooler=2 * hidden**2 + 4 * hidden if use_pooler else 0,
        gather=2 * masks_per_sequence * sequence_length * filler,
        masked_lm=masks_per_sequence * prediction,
        bag_of_words=prediction if bag_of_words else 0,
        generator=_count_blocks(generator, sequence_length) if generator else 0,
        detector=sequence_length * (2 * hidden**2 + 2 * hidden) if generator else 0,
    )


def _count_blocks(shape: EncoderShape, sequence_length: int) -> int:
    hidden = shape.hidden_dim
    block = 8 * hidden**2 + 4 * hidden * shape.intermediate_dim + 4 * sequence_length * hidden
    widening = 2 * shape.embedding_dim * hidden if shape.widens_embeddings else 0
    return sequence_length * (shape.num_layers * block + widening)
