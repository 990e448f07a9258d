"""What is stored: rows, files, journals; and what they say together."""
