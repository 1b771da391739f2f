# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# `make results` works through results/queue.yaml at low priority, in the background of other work; kill it at any time, rerun to resume.
# `make test-system` needs a PostgreSQL server's programs (it installs the Debian package if they are absent) and several minutes.
.PHONY: demo test test-system docs results lint types unit format clean

demo: $(INSTALLED)
	$(BIN)/python -m favorit.demo

test: lint types unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# One thread for each of two workers: four OpenMP threads on two cores wait for each other more than they compute.
unit: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=10

test-system: $(INSTALLED)
	sh tests/system/install.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/system --durations=10

# The site opens offline: build/docs/index.html. `pip install 'favorit[docs]'` is all that this command needs.
docs: $(INSTALLED)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

results: $(INSTALLED)
	$(BIN)/favorit study queue results/queue.yaml --out .queue --pack results/runs --discard --workers 2

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build/docs docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis
