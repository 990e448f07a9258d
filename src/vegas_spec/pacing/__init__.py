"""How much to draft: gamma, budget, or not at all."""
