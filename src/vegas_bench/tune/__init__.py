"""The three-step tuning of the paper, by measurement."""
