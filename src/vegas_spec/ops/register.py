"""Registration with torch, so that compiled and captured code sees each kernel as one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

LIBRARY = torch.library.Library("vegas_spec", "DEF")  # type: ignore[no-untyped-call]


def register(name: str, launch: Callable[..., None], reference: Callable[..., None], mutates: Sequence[str]) -> None:
    """Define ``torch.ops.vegas_spec.<name>``: `launch` on a GPU, `reference` on a CPU, nothing on fake tensors.

    Through the library object rather than `torch.library.custom_op`, whose wrappers for autograd and mutation cost the
    host several times what the rest of a call does; an eager step makes two calls per layer.

    Parameters
    ----------
    name : str
        Of the op.
    launch, reference : callable
        Of the same annotated signature, from which torch reads the schema.
    mutates : sequence of str
        Parameters that are written to.

    """
    LIBRARY.define(name + torch.library.infer_schema(launch, mutates_args=list(mutates)))  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, launch, "CUDA")  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, reference, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"vegas_spec::{name}", lambda *_: None, lib=LIBRARY)
