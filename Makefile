# Each target sets up .venv by itself; nothing needs to be installed beforehand but Python 3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev

.PHONY: setup demo test soak lint bench clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): requirements/cpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing vLLM, MLX and the rest into $(VENV) (2.7 GB, about three minutes)..."
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(READY_DEV): requirements/dev.txt $(READY)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/dev.txt
	# trio-typing, which libp2p imports, brings stubs of a trio of years ago that hide trio's own types.
	rm -rf $(VENV)/lib/python3*/site-packages/*trio-stubs $(VENV)/lib/python3*/site-packages/outcome-stubs
	@touch $@

demo: $(READY)
	$(BIN)/baton demo

test: $(READY_DEV)
	$(BIN)/python -m pytest -m "not soak"

soak: $(READY_DEV)
	$(BIN)/python -m pytest -m soak

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --warnings

bench: $(READY)
	$(BIN)/python -m bench.transport
	$(BIN)/baton bench kv
	$(BIN)/baton bench prefill

clean:
	rm -rf $(VENV)
