"""How many bytes decoding with a model reads."""

from __future__ import annotations

from dataclasses import dataclass

from vegas_spec.engine.model import Model


@dataclass(frozen=True)
class ModelSize:
    """Bytes that decoding with a model reads.

    Attributes
    ----------
    weight_bytes : float
        Per step. An embedding that is no output layer is not among them: a step reads few of its rows.
    kv_bytes_per_token : float
        Of the layers with full attention. Those with a sliding window are left out; their drafts read as much as
        verification does.

    """

    weight_bytes: float
    kv_bytes_per_token: float

    @classmethod
    def of(cls, model: Model) -> ModelSize:
        """Measure a loaded model; of a mixture of experts, all weights count."""
        module = model.module
        embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
        apart = embedding is not None and (head is None or head.weight is not embedding.weight)
        skipped = {id(embedding.weight)} if apart else set()
        weights = sum(each.numel() * each.element_size() for each in module.parameters() if id(each) not in skipped)
        per_token = sum(
            2 * layer.num_kv_heads * layer.head_dim for layer in model.layers if layer.sliding_window is None
        )
        return cls(weights, per_token * model.dtype.itemsize)
