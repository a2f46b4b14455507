"""BERT: learned position and segment embeddings, post-layer normalisation.

Source: Devlin et al. 2019; arXiv:1810.04805.
"""

from keras_bert_flow.models.families.family import Family

FAMILY = Family("bert", "BERT")
