"""Vegas: lossless long-context decoding in which a model drafts for itself over the KV entries its verification chose."""

__version__ = "0.1.0"
