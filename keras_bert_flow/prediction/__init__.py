"""Ask a fine-tuned model in the terms of its task."""
