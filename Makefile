# `make serve` and `make test` work from a clean clone with Python 3.11 or newer, make and a
# package index. `make help` lists everything.

VENV ?= .venv
BIN := $(VENV)/bin

# The first Python that is new enough; override with `make PYTHON=/path/to/python test`.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	command -v $$python >/dev/null 2>&1 && \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ echo $$python; exit 0; }; done; exit 0)

# What tox runs; the first one carries the name of the Python at hand.
TOX_TESTS = $(shell $(BIN)/python -c 'import sys; print("py%d%d" % sys.version_info[:2])')
TOX_ENVS ?= $(TOX_TESTS),spark

# What needs neither a JVM nor programs that we did not write, and starts few processes.
FAST_ARGS ?= tests --seeds 2 --hypothesis-profile quick \
	$(addprefix --ignore=tests/,\
		backup cli client columnar crash fuzz index load server sinks spark storage/test_kill.py system \
		tap_adapter xdcr) \
	-k "not (sim and is_noticed)"

SERVE_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve spark spark-zip docs wheel deb man test test-fast bench bench-kv bench-memory bench-quota bench-flush bench-purge bench-warmup bench-queue bench-lateness bench-upr bench-replica bench-tap bench-spark bench-xdcr bench-index bench-growth bench-page bench-packages changelog system-packages clean

help: ## show what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '%-24s %s\n' "$$name" "$$text"; done
	@echo "options: SERVE_ARGS='--data DIR ...'  BENCH_ARGS='--rounds 3 ...'  TOX_ENVS=py311  PYTHON=python3.12"

$(BIN)/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "uprmc needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >&2 || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }

# Stamps: a step is repeated only when what it depends on has changed.
PIP_EDITABLE := pip install --quiet --disable-pip-version-check --editable

# What is compiled where there is a C compiler; the stamp is made by the build itself.
NATIVE := setup.py $(filter-out %/stamp.py,$(wildcard uprmc/core/native/*.py))

$(VENV)/installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing uprmc into $(VENV)" >&2
	@$(BIN)/python -m $(PIP_EDITABLE) . >&2
	@touch $@

$(VENV)/spark-installed: $(VENV)/installed
	@echo "installing Spark into $(VENV): about 800 MB on disk" >&2
	@$(BIN)/python -m $(PIP_EDITABLE) '.[spark]' >&2
	@touch $@

$(VENV)/tox-installed: | $(BIN)/python
	@echo "installing tox into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'tox>=4.26,<5' >&2
	@touch $@

serve: $(VENV)/installed ## install the package and start the server
	@exec $(BIN)/uprmc serve $(SERVE_ARGS)

spark: $(VENV)/spark-installed ## install Spark for `--engine spark` and programs, try it, say what is missing
	@$(BIN)/python -m uprmc.spark.session

spark-zip: $(VENV)/installed ## make dist/uprmc_spark.zip for spark-submit --py-files
	@$(BIN)/python -m uprmc.spark.shipping dist/uprmc_spark.zip

# Documentation needs nothing of the server's environment but the package itself.
DOCS_BIN := $(VENV)-docs/bin

$(VENV)-docs/installed: pyproject.toml
	@echo "installing MkDocs into $(VENV)-docs" >&2
	@$(PYTHON) -m venv $(VENV)-docs >&2
	@$(DOCS_BIN)/python -m $(PIP_EDITABLE) '.[docs]' >&2
	@touch $@

docs: $(VENV)-docs/installed ## build the documentation into site/
	@rm -rf docs/reference
	@$(DOCS_BIN)/python -m tools.reference docs/reference --journeys
	$(DOCS_BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

wheel: | $(BIN)/python ## build dist/uprmc-*.whl for this Python and platform
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . >&2
	@ls -t dist/uprmc-*.whl | head -n 1

man: $(VENV)/installed ## make the manual pages dist/man/man1/uprmc*.1
	@$(BIN)/uprmc manual --dir dist/man/man1

deb: wheel ## build dist/uprmc_*.deb for this release of Debian
	@packaging/deb.sh "$$(ls -t dist/uprmc-*.whl | head -n 1)"

system-packages: ## install what the interop tests need from the system, if that is possible
	@tools/system_packages.sh

test: system-packages $(VENV)/tox-installed ## run every test and check
	$(BIN)/python -m tox run-parallel --parallel-live -e $(TOX_ENVS)

test-fast: $(VENV)/tox-installed ## run the checks and the tests that take no time
	$(BIN)/python -m tox run -e $(TOX_TESTS) -- $(FAST_ARGS)

bench: bench-kv bench-memory bench-quota bench-flush bench-purge bench-warmup bench-queue bench-lateness bench-upr bench-replica bench-tap bench-spark bench-xdcr bench-index bench-growth bench-page ## run all benchmarks

bench-kv: $(VENV)/installed ## key-value operations against memcached
	$(BIN)/python -m bench.kv $(BENCH_ARGS)

bench-memory: $(VENV)/installed ## memory for each item against memcached
	$(BIN)/python -m bench.memory $(BENCH_ARGS)

bench-quota: $(VENV)/installed ## whether the memory quota holds while three times as much arrives
	$(BIN)/python -m bench.quota $(BENCH_ARGS)

bench-flush: $(VENV)/installed ## writing documents to disk against SQLite
	$(BIN)/python -m bench.flush $(BENCH_ARGS)

bench-purge: $(VENV)/installed ## purging: its cost, latency meanwhile, the file's size, reports
	$(BIN)/python -m bench.purge $(BENCH_ARGS)
	$(BIN)/python -m bench.purge_cycles
	$(BIN)/python -m bench.reports

bench-warmup: $(VENV)/installed ## loading a data directory against a bare scan of it
	$(BIN)/python -m bench.warmup $(BENCH_ARGS)

bench-queue: $(VENV)/installed ## the write queue and its views against plain structures
	$(BIN)/python -m bench.write_queue $(BENCH_ARGS)

bench-lateness: $(VENV)/installed ## how late the reactor is while it flushes
	$(BIN)/python -m bench.lateness $(BENCH_ARGS)

bench-page: $(VENV)/installed ## what open pages cost the node
	$(BIN)/python -m bench.page $(BENCH_ARGS)

bench-packages:
	@tools/system_packages.sh bench

# Without redis-py the parts that compare with Redis are left out; the benchmark says so.
$(VENV)/bench-installed: $(VENV)/installed
	@$(BIN)/python -m $(PIP_EDITABLE) '.[bench]' >&2 && touch $@ || \
		echo "redis-py could not be installed" >&2

bench-upr: $(VENV)/bench-installed bench-packages ## streams against those of Redis
	$(BIN)/python -m bench.upr $(BENCH_ARGS)

$(VENV)/javascript-installed: $(VENV)/installed
	@$(BIN)/python -m $(PIP_EDITABLE) '.[javascript]' >&2
	@touch $@

bench-growth: $(VENV)/bench-installed bench-packages ## how cost grows with items, connections, vBuckets and consumers
	$(BIN)/python -m bench.growth --plot docs/growth.svg $(BENCH_ARGS)

bench-replica: $(VENV)/installed ## replicas, takeover and the client library
	$(BIN)/python -m bench.replica $(BENCH_ARGS)

bench-tap: $(VENV)/installed ## TAP dumps against UPR backfills
	$(BIN)/python -m bench.tap $(BENCH_ARGS)

bench-spark: $(VENV)/spark-installed ## Spark against plain programs; local backups against the consumer of bench-upr
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

bench-xdcr: $(VENV)/installed ## links between nodes against a waiting copy
	$(BIN)/python -m bench.xdcr $(BENCH_ARGS)

bench-index: $(VENV)/javascript-installed bench-packages ## views: building and asking them, against PouchDB
	$(BIN)/python -m bench.index $(BENCH_ARGS)

changelog: $(VENV)/tox-installed ## show the news since the last release
	$(BIN)/python -m tox run -q -e changelog

clean: ## remove everything that was made here, except data directories
	rm -rf $(VENV) .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf $(VENV)-docs build dist docs/reference site *.egg-info bench/mcload
	rm -f uprmc/core/native/*.so uprmc/core/native/stamp.py
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
