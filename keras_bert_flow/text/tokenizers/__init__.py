"""Text to tokens and back: normalisation, WordPiece, and where in the text each token stands."""
