"""Fine-tuning tasks: reading, encoding, decoding and official metrics of each, without Keras."""
