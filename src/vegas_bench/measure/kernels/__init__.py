"""What the kernels cost on a GPU, beside stock FlashAttention 3, torch.topk and the bandwidth floor, in one run.

Per layer, bfloat16, 7 query rows, pages of 16 tokens in random order, joint K|V cache, random keys. (Values matter to
time only where scores are counted: how often counters of the same level meet.) The floor is the bytes of keys and
values over the bandwidth of a large copy.
"""
