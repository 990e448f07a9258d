"""What a test can ask of CUDA graphs where there is no GPU: which ones would be captured, and which a batch would find.

Their managers look into vLLM's own bookkeeping: what they capture is not told otherwise.
"""

import inspect
from types import SimpleNamespace

from vllm.config import SpeculativeConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

from vegas_spec.vllm.start import options as vegas_options
from vegas_spec.vllm.worker import decode_graphs
from vegas_spec.vllm.worker.draft_graphs import DraftGraphs


class Graphs:
    """A part of `engine_child.Engines`."""

    def graphs_found(self, lengths, max_requests, sizes, replaced):
        """Which full graph vLLM's dispatcher finds for every uniform batch: requests in it, by requests and rows."""
        original = inspect.unwrap(CudaGraphManager._init_candidates)
        init = decode_graphs.init_candidates(original) if replaced else original
        most = max(lengths)
        schedule = [(index, index, length) for index, length in enumerate(lengths, 1)]
        speculative = SpeculativeConfig.__new__(SpeculativeConfig)
        vars(speculative).update(
            method="custom_class",
            model=vegas_options.SPECULATOR,
            num_speculative_tokens=most,
            num_speculative_tokens_per_batch_size=schedule,
        )
        manager = self.bare_manager(
            CudaGraphManager, speculative, lengths, max_requests, sizes, most + 1, CUDAGraphMode.FULL_AND_PIECEWISE
        )
        init(manager)
        found = {}
        for rows in (length + 1 for length in lengths):
            for requests in range(1, max_requests + 1):
                graph = manager.dispatch(requests, requests * rows, rows, 0)
                full = graph.cg_mode == CUDAGraphMode.FULL
                found[requests, rows] = graph.num_reqs if full else None
        # Batches of mixed rows still have piecewise graphs.
        assert manager.dispatch(2, 5, None, 0).cg_mode == CUDAGraphMode.PIECEWISE
        captured = manager._capture_descs[CUDAGraphMode.FULL]
        assert captured == sorted(captured, key=lambda graph: -graph.num_tokens)
        return found, len(captured)

    def bare_manager(self, kind, speculative, lengths, max_requests, sizes, rows, mode):
        """A manager of graphs that knows what it would capture, and believes that it has."""
        manager = kind.__new__(kind)
        vars(manager).update(
            vllm_config=SimpleNamespace(
                speculative_config=speculative,
                num_speculative_tokens=max(lengths),
                additional_config={"vegas": {"draft_lengths": list(lengths)}},
                cache_config=SimpleNamespace(use_kda_recoverssm=False),
            ),
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=sizes[-1]),
            max_num_reqs=max_requests,
            decode_query_len=rows,
            cudagraph_mode=mode,
            varlen_decode=False,
            ubatch_runner=None,
            lora_capture_cases=[0],
            _lora_dispatch_map={},
            _candidates={},
            _capture_descs={},
            _graphs_captured=True,
        )
        return manager

    def draft_graphs_found(self, max_requests, sizes):
        """Requests in the graph of the draft loop that is found for 1, 2, ... requests; None where there is none."""
        fixed = SimpleNamespace(
            method="custom_class", model=vegas_options.SPECULATOR, uses_dynamic_speculative_decoding=lambda: False
        )
        mode = CUDAGraphMode.FULL_DECODE_ONLY
        manager = self.bare_manager(DraftGraphs, fixed, [6], max_requests, sizes, 1, mode)
        manager._init_candidates()
        graphs = [manager.dispatch(n, n, 1, 0) for n in range(1, max_requests + 1)]
        return [graph.num_reqs if graph.cg_mode == CUDAGraphMode.FULL else None for graph in graphs]
