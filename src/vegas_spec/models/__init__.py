"""Small real models by name: fetched once, checked, converted, kept in the user's cache folder."""

from vegas_spec.models.catalogue import KnownModel, get_model, known_models
from vegas_spec.models.child import FetchError
from vegas_spec.models.fetching import Progress, Step, cache_folder, fetch, is_fetched, model_folder

__all__ = [
    "FetchError",
    "KnownModel",
    "Progress",
    "Step",
    "cache_folder",
    "fetch",
    "get_model",
    "is_fetched",
    "known_models",
    "model_folder",
]
