"""Tokenizers: normalisation, WordPiece, and token offsets in the text."""
