"""Vegas: lossless long-context decoding. A model drafts for itself over the KV entries that its verification chose."""

__version__ = "0.1.0"
