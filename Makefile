# On a fresh machine, `make demo` and `make test` install everything that they need.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# `make results` trains the runs of results/queue.yaml at low priority. Stop it at any time; rerun it to resume.
# `make test-system` takes several minutes. It needs PostgreSQL server programs and installs the Debian package if they are missing.
.PHONY: demo test test-system docs results report lint types unit format clean

demo: $(INSTALLED)
	$(BIN)/python -m favorit.demo

test: lint types unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# Two workers with one thread each: on two cores, four OpenMP threads spend more time waiting than computing.
unit: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=10

test-system: $(INSTALLED)
	sh tests/system/install.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/system --durations=10

# The site, build/docs/index.html, works offline. The build needs only the packages of `favorit[docs]`.
docs: $(INSTALLED)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

results: $(INSTALLED)
	$(BIN)/favorit study queue results/queue.yaml --out .queue --pack results/runs --discard --workers 2

# The report of the runs of this repository, build/report/index.html.
report: $(INSTALLED)
	$(BIN)/favorit report --runs results/runs --out build/report

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build/docs build/report build/demo docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis
