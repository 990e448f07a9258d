"""Unpack a GGUF file into a folder that transformers and vLLM load."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


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
    # Without dequantize=True the weights stay packed and cannot be saved.
    quantization = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=quantization, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
