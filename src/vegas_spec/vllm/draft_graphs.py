"""CUDA graphs of the whole draft loop."""

from __future__ import annotations

from typing import Any

from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
    SpeculatorBatchDescriptor,
    SpeculatorCudaGraphManager,
)


class DraftGraphs(SpeculatorCudaGraphManager):  # type: ignore[misc]
    """One graph per batch size, and per draft length where the schedule has several."""

    _capture_descs: dict[Any, list[Any]]

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture; see `SpeculatorCudaGraphManager.capture`.

        vLLM's own drafters get their first draft from another pass and so need no graph for a length of one; ours does.
        """
        speculative = self.vllm_config.speculative_config
        if speculative.uses_dynamic_speculative_decoding():
            lengths = build_dynamic_sd_schedule_lookup(
                speculative.num_speculative_tokens_per_batch_size,
                vllm_max_batch_size=self.max_num_reqs,
                vllm_num_speculative_tokens=self.vllm_config.num_speculative_tokens,
            )
            self._capture_descs = {
                mode: [
                    SpeculatorBatchDescriptor(**vars(desc), num_speculative_tokens=length)
                    for desc in descs
                    for length in sorted(set(lengths) - {0}, reverse=True)
                ]
                for mode, descs in self._capture_descs.items()
            }
        super().capture(*args, **kwargs)
