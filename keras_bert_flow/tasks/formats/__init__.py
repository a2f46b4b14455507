"""Task tables, plain or compressed, and official prediction formats."""
