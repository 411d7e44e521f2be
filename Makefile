# Two commands do everything: `make build` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: build test test-long test-sglang verify check clean

build: $(READY)
	$(BIN)/lingen build --all
	$(BIN)/lingen verify tests/golden/bias-tiny

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-long: $(READY)
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -n 2 --dist worksteal -m "not sglang"
	$(BIN)/python tests/sglang/environment.py
	$(BIN)/python -m pytest tests/sglang -m sglang

# The real engine on a CPU, one run at a time. The first time it installs 2.6 GB of packages, outside
# of this folder: see CONTRIBUTING.md.
test-sglang: $(READY)
	$(BIN)/python tests/sglang/environment.py
	$(BIN)/python -m pytest tests/sglang -m "sglang and not long"

# ling3-kda is recorded for a kind of attention that is not supported yet.
verify: $(READY)
	$(BIN)/lingen verify $(filter-out %/ling3-kda/,$(wildcard tests/golden/*/))

check: $(READY)
	$(BIN)/lingen check --all

clean:
	rm -rf $(VENV) build *.egg-info

$(READY): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "No $(PYTHON) on PATH. Install Python 3.11 or newer, or name it: make build PYTHON=/path/to/python3"; exit 3; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$("$(PYTHON)" -V 2>&1); lingen needs Python 3.11 or newer: make build PYTHON=python3.11"; exit 3; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv"; exit 3; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[runtime,dev]'
	@touch $@
