"""Tasks on words: reading, schemes of tags, windows, spans and their scores."""
