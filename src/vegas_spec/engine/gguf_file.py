"""GGUF files: what transformers drops of them, and how to unpack one into a folder that transformers and vLLM load."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from vegas_spec.engine.support import ModelError

# Names of tensors and metadata stand before all weights, in far less than this: 64 MiB, chosen by hand.
_HEADER_BYTES = 1 << 26
# A key, its type (8 is a string), the length of its value in eight bytes, the value.
_SCALING_TYPE = re.compile(rb"\.rope\.scaling\.type\x08\0\0\0(.)\0{7}(\w+)", re.DOTALL)
_FACTORS = "rope_freqs.weight"


def dequantise() -> dict[str, Any]:
    """Give the arguments with which transformers unpacks a GGUF's weights, in whichever version is installed."""
    # Newer ones keep the weights packed unless told otherwise; older ones always unpack them.
    if hasattr(transformers, "GgufConfig"):
        return {"quantization_config": transformers.GgufConfig(dequantize=True)}
    return {}


def rope_factors(gguf: Path) -> torch.Tensor | None:
    """Read what the rotary embedding's inverse frequencies are to be divided by, which transformers leaves out.

    Llama 3.1 and its successors keep the scaling of their contexts there. Float32, shape ``[head_dim / 2]``; None if
    the file has no such factors.

    Raises
    ------
    ModelError
        If the file scales its rotary embedding in another way.

    """
    with gguf.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    found = _SCALING_TYPE.search(header)
    kind = found[2][: found[1][0]].decode() if found else "none"
    if kind == "none" and b"rope_factors_long.weight" in header:
        kind = "longrope"
    if kind != "none":
        raise ModelError(
            f"{gguf} scales its rotary embedding ({kind}), which is not read from GGUF files; "
            "load the model's safetensors instead"
        )
    if _FACTORS.encode() not in header:
        return None
    from gguf import GGUFReader

    # Seconds for a large vocabulary, so only where it is needed.
    [factors] = [tensor.data for tensor in GGUFReader(gguf).tensors if tensor.name == _FACTORS]
    return torch.tensor(factors, dtype=torch.float32)


def apply_rope_factors(module: Any, factors: torch.Tensor, name: str) -> None:
    """Divide a model's inverse frequencies by factors of its GGUF file."""
    frequencies = getattr(getattr(module.base_model, "rotary_emb", None), "inv_freq", None)
    if frequencies is None or frequencies.shape != factors.shape:
        raise ModelError(f"cannot load {name}: its {_FACTORS} does not fit its rotary embedding")
    frequencies.div_(factors.to(frequencies.device))


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as bfloat16 safetensors.

    Parameters
    ----------
    gguf : Path
        A GGUF file of an architecture that transformers reads; its packed weights are dequantised.
    folder : Path
        Receives ``config.json``, ``generation_config.json``, ``model.safetensors``, tokenizer and chat template.

    Raises
    ------
    ModelError
        If the file scales its rotary embedding: ``config.json`` cannot say how.

    """
    if rope_factors(gguf) is not None:
        raise ModelError(f"{gguf} scales its rotary embedding, which a folder cannot say; use the file as it is")
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, **dequantise(), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
