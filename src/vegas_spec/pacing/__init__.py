"""How much to draft: gamma, budget, or not at all.

Constants that name no other source were chosen in the simulations of ``tests/pacing``.
"""
