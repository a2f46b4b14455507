"""Names of the ways in which a head for whole texts pools them; known without Keras."""

CLS, MEAN = "cls", "mean"
TEXT_POOLINGS = (CLS, MEAN)
