"""Text files, plain or packed, to documents and sentences, with what was rejected of them."""
