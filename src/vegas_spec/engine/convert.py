"""Unpack a GGUF file into a folder that transformers and vLLM load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def dequantise() -> dict[str, Any]:
    """Give the arguments with which transformers unpacks a GGUF's weights, in whichever version is installed."""
    # Newer ones keep the weights packed unless told otherwise; older ones always unpack them.
    if hasattr(transformers, "GgufConfig"):
        return {"quantization_config": transformers.GgufConfig(dequantize=True)}
    return {}


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as bfloat16 safetensors.

    Parameters
    ----------
    gguf : Path
        A GGUF file of an architecture that transformers reads; its packed weights are dequantised.
    folder : Path
        Receives ``config.json``, ``generation_config.json``, ``model.safetensors``, tokenizer and chat template.

    """
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, **dequantise(), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
