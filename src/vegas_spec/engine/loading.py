"""Models, tokenizers and configurations by name: hub id, folder, GGUF file, or a name of `vegas models`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from vegas_spec.config import ConfigError, check_choice, invalid
from vegas_spec.engine.model import Model
from vegas_spec.engine.support import ModelError, check_supported, is_out_of_memory, memory_explained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
) -> Model:
    """Load a model by hub id, folder or GGUF file: safetensors or GGUF only, and no code from the model.

    Parameters
    ----------
    name : str
        Hub id, path of a folder that transformers reads, path of a ``.gguf`` file, or a name of `vegas_spec.models`
        that has been fetched.
    dtype : {"auto", "float32", "bfloat16", "float16"}
        ``auto`` is the checkpoint's own (bfloat16 for a GGUF file).
    device : str
        ``auto`` is the first GPU, else the CPU.
    revision : str, optional
        Of a hub model.
    hf_overrides : mapping, optional
        Values for keys of the model's Hugging Face configuration, such as ``max_position_embeddings``, as if its
        config.json had them; a mapping changes the keys that it has of one there, such as ``rope_parameters``. Not for
        GGUF files.

    Raises
    ------
    ConfigError
        If the configuration has no such key.
    ModelError
        If it cannot be found or read, or its architecture is not supported.
    MemoryError, torch.OutOfMemoryError
        If it does not fit.

    """
    if dtype != "auto" and dtype not in DTYPES:
        raise invalid("dtype", f"one of auto, {', '.join(DTYPES)}", dtype)
    place = _device(device)
    source, options = _source(name, revision)
    from transformers import AutoConfig, AutoModelForCausalLM

    with memory_explained(name, place), _explained(name):
        if "gguf_file" in options:
            if hf_overrides:
                raise ConfigError("hf_overrides are for models in folders and on the hub; a GGUF file is read as it is")
            from vegas_spec.engine.gguf_file import apply_rope_factors, dequantise, rope_factors

            factors = rope_factors(Path(source, options["gguf_file"]))
            options |= dequantise()
        else:
            # Refuse by the config, before gigabytes of weights are read.
            config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
            if hf_overrides:
                raw, _ = config.get_config_dict(source, **options)
                config = config.from_dict(_overridden(config, raw, hf_overrides))
            options["config"] = config
            check_supported(config, name)
            factors = None
        module, loaded = AutoModelForCausalLM.from_pretrained(
            source,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            dtype=_torch_dtype(dtype, options),
            **options,
        )
        if missing := sorted(loaded["missing_keys"]):
            # transformers draws them at random, and only warns.
            raise ModelError(
                f"cannot load {name}: its files lack {len(missing)} of the weights that its configuration asks for, "
                f"such as {missing[0]}"
            )
        if factors is not None:
            apply_rope_factors(module, factors, name)
        module = module.to(place)
    return Model(module, load_tokenizer(name, revision), name)


_ROPE_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}
"""Keys of each kind of rotary embedding under which cached keys stay exact; transformers only warns of others."""
_ROPE_KEYS_OF_ALL = ("rope_type", "rope_theta", "partial_rotary_factor")
_MOVED = {
    "rope_scaling": "rope_parameters",
    "rope_theta": 'rope_parameters, as in {"rope_parameters": {"rope_theta": 1000000.0}}',
    "torch_dtype": "dtype",
}


def _overridden(config: Any, raw: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Write values into what was read from a config.json: transformers derives other values from it."""
    now = {key: value for key, value in vars(config).items() if not key.startswith("_")}
    raw |= _merged("", now, values)
    if "rope_parameters" in values:
        raw.pop("rope_scaling", None)  # the old name, which would win
    return raw


def _merged(where: str, now: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check names and give the values; a mapping in the place of another one has what the other says beside."""
    known, kept = list(now), {}
    if "rope_type" in now:
        values = {"rope_type" if key == "type" else key: value for key, value in values.items()}  # its old name
        kind = values.get("rope_type", now["rope_type"])
        if kind != now["rope_type"]:
            check_choice(f"{where}rope_type", kind, _ROPE_KEYS)
            known = []
        known += [*_ROPE_KEYS_OF_ALL, *_ROPE_KEYS.get(kind, ())]
    if where:
        kept = {key: value for key, value in now.items() if key in known}
    for key, value in values.items():
        if key not in known:
            near = _MOVED.get(key) or next(iter(map(repr, difflib.get_close_matches(key, known, n=1))), None)
            hint = f"; did you mean {near}?" if near else ""
            of_kind = f" for rope_type {kind!r}" if "rope_type" in now else ""
            raise ConfigError(
                f"hf_overrides must name keys of the model's configuration; got {where + key!r}{of_kind}{hint}"
            )
        old = now.get(key)
        nested = isinstance(value, Mapping) and isinstance(old, Mapping)
        kept[key] = _merged(f"{where}{key}.", old, value) if nested else value  # type: ignore[arg-type]
    return kept


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Load a model's tokenizer alone; names are those of `load_model`.

    Raises
    ------
    ModelError
        If it cannot be found or read.

    """
    source, options = _source(name, revision)
    from transformers import AutoTokenizer

    with _explained(name):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            # Where tokenizer files are missing, some types of tokenizer are made of their special tokens alone.
            raise ModelError(f"cannot load {name}: it brings no tokenizer (such as tokenizer.json)")
    return tokenizer


def read_context_length(name: str, revision: str | None = None) -> int:
    """Most tokens that a model was made for, from its configuration alone; names are those of `load_model`.

    Raises
    ------
    ModelError
        If it cannot be found or read.

    """
    source, options = _source(name, revision)
    from transformers import AutoConfig

    with _explained(name):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
        return int(config.get_text_config().max_position_embeddings)


def _source(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    path = Path(name).expanduser()
    is_gguf = path.suffix.lower() == ".gguf" and not path.is_dir()
    if revision is not None and (is_gguf or path.is_dir()):
        raise ConfigError(f"revision is for models of the hub; {name} is a file or folder. Leave it out")
    if is_gguf:
        if not path.is_file():
            raise ModelError(f"there is no GGUF file {name}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {name} holds no model: it has no config.json")
        return str(path), {}
    if path.is_file():
        raise ModelError(f"{name} is no model; a model is a hub id, a folder, a .gguf file or a name of `vegas models`")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no model folder {name}")
    if "/" not in name and (folder := _known_folder(name)) is not None:
        return str(folder), {}
    return name, {} if revision is None else {"revision": revision}


def _known_folder(name: str) -> Path | None:
    """Find a model of `vegas_spec.models` where it was fetched to; None if it is not one of them."""
    from vegas_spec.models import is_fetched, known_models, model_folder

    if name not in [known.name for known in known_models()]:
        return None
    if not is_fetched(name):
        raise ModelError(f"{name} is not on this machine yet; fetch it with: vegas models fetch {name}")
    return model_folder(name)


def _torch_dtype(dtype: str, options: dict[str, Any]) -> torch.dtype | str:
    if dtype == "auto":
        return torch.bfloat16 if "gguf_file" in options else "auto"
    return DTYPES[dtype]


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise invalid("device", "auto, cpu, cuda or cuda:N", device)
    if place.type == "cuda" and not (torch.cuda.is_available() and (place.index or 0) < torch.cuda.device_count()):
        raise ModelError(f"device {device} is not there: this torch sees {torch.cuda.device_count()} GPUs; use cpu")
    return place


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say in one sentence why a model cannot be read; loaders raise whatever their file formats raise."""
    try:
        yield
    except (ModelError, ConfigError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        cause = str(error).strip().splitlines()
        what = cause[0] if cause else type(error).__name__
        from vegas_spec.models import known_models

        near = difflib.get_close_matches(name, [known.name for known in known_models()], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(f"cannot load {name}: {what} ({type(error).__name__}){hint}") from error
