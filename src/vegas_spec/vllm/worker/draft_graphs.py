"""CUDA graphs of the whole draft loop."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
    SpeculatorBatchDescriptor,
    SpeculatorCudaGraphManager,
)

from vegas_spec.vllm.start.options import draft_lengths
from vegas_spec.vllm.worker.decode_graphs import arrange


class DraftGraphs(SpeculatorCudaGraphManager):  # type: ignore[misc]
    """One graph per batch size, and per draft length where there are several."""

    _capture_descs: dict[Any, list[Any]]

    def _init_candidates(self) -> None:
        """Have a graph for every batch up to ``max_num_seqs``.

        The sizes that vLLM captures may end before: for 12 requests, at 8. A larger batch would launch the kernels of
        the whole model one by one, for every draft step.
        """
        super()._init_candidates()
        arrange(self, [1])

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture; see `SpeculatorCudaGraphManager.capture`.

        vLLM's own drafters get their first draft from another pass and so need no graph for a length of one; ours does.
        """
        if self.vllm_config.speculative_config.uses_dynamic_speculative_decoding():
            lengths = [length for length in draft_lengths(self.vllm_config) if length]
            self._capture_descs = {
                mode: [
                    SpeculatorBatchDescriptor(**vars(desc), num_speculative_tokens=length)
                    for desc in descs
                    for length in reversed(lengths)
                ]
                for mode, descs in self._capture_descs.items()
            }
        super().capture(*args, **kwargs)
