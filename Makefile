# nearfar: `make` or `make help` lists what can be made.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml') Cargo.toml $(wildcard machines/*.toml workloads/*.toml papers/*/*.toml)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
.DEFAULT_GOAL := help

$(VENV)/.packages: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'maturin>=1.7,<2'
	$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*p['dependencies'], *p['optional-dependencies']['dev'], sep='\n')" > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet -r $(VENV)/requirements.txt
	touch $@

$(VENV)/.engine: $(VENV)/.packages $(RUST_SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	touch $@

PLUGIN := python/nearfar/_plugin/libnearfar_qemu_plugin.so
PLUGIN_SOURCES := $(wildcard capture/qemu-plugin/src/*.rs) capture/qemu-plugin/Cargo.toml capture/qemu-plugin/Cargo.lock crates/capture/src/layout.rs

$(PLUGIN): $(PLUGIN_SOURCES)
	cd capture/qemu-plugin && cargo build --release --quiet
	mkdir -p $(@D)
	cp capture/qemu-plugin/target/release/$(@F) $@.partial
	mv $@.partial $@

.PHONY: plugin
plugin: $(PLUGIN) ## QEMU plugin for nearfar capture

# Clippy and the tests: what is compiled for the engine, with the workspace's assertions on.
CHECKED := --release --config profile.release.debug-assertions=true --config profile.release.overflow-checks=true

.PHONY: env
env: $(VENV)/.engine $(PLUGIN) ## Virtual environment and engine, in release mode

.PHONY: declared
declared: env ## What the engine declares, as Python source and as tables of the docs
	$(BIN)/python docs/declared.py

.PHONY: demo
demo: env ## Capture real programs and study their page sizes (installs what it may)
	@workloads/install.sh qemu-user gzip gnugo
	$(BIN)/python workloads/demo.py

.PHONY: workloads
workloads: env ## Install the programs of every workload (nearfar workload list)
	@workloads/install.sh qemu-user $$($(BIN)/python -c "from nearfar import workload as w; print(*sorted({p for n in w.names() for p in w.load(n).packages}))")

.PHONY: lint
lint: env ## Formatters and linters
	cargo fmt --all --check
	cargo clippy $(CHECKED) --workspace --all-targets --quiet -- -D warnings
	cd capture/qemu-plugin && cargo fmt --check && cargo clippy --release --quiet -- -D warnings
	$(BIN)/ruff check python tests bench workloads docs/*.py examples fuzz
	$(BIN)/ruff format --check python tests bench workloads docs/*.py examples fuzz
	$(BIN)/mypy

.PHONY: test-packages
test-packages:
	@workloads/install.sh qemu-user chromium pigz gzip libvirt-clients libxml2-utils qemu-system-x86 qemu-system-arm systemd hwloc-nox numactl acpica-tools cpio \
	  sqlite3 redis-server redis-tools xvfb xdotool zsh fish mandoc

# Minutes of processor time that `make test` may use after `make clean` (CONTRIBUTING.md, Tests).
TEST_BUDGET := 18
STEPS := build/processor-time
STEP := @$(PYTHON) tests/processor.py run $(STEPS)

.PHONY: test
test: test-packages ## Everything: lint, Rust tests, Python tests, documentation
	@rm -f $(STEPS)
	$(STEP) 'engine and plugin' $(MAKE) --no-print-directory env
	$(STEP) 'formatters and linters' $(MAKE) --no-print-directory lint
	$(STEP) 'Rust tests, compiled' cargo test $(CHECKED) --workspace --quiet --no-run
	$(STEP) 'Rust tests, run' cargo test $(CHECKED) --workspace --quiet
	$(STEP) 'Python tests' $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadgroup
	@$(PYTHON) tests/processor.py report $(STEPS) $(TEST_BUDGET)

$(VENV)/.docs: $(VENV)/.packages
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(VENV)/requirements-docs.txt
	$(BIN)/pip install --quiet -r $(VENV)/requirements-docs.txt
	touch $@

.PHONY: site
site: env $(VENV)/.docs ## The documentation as HTML in build/docs; warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs -d build/doctrees . build/docs
	@echo build/docs/index.html

.PHONY: docs
docs: site ## The site, and every command and snippet of README.md and docs/ run
	$(BIN)/pytest tests/test_docs.py tests/test_notebooks.py

.PHONY: man
man: env ## Manual pages of every command in build/man
	$(BIN)/python -m nearfar.cli._reference man build/man

FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: env ## Fuzz every reader for FUZZ_SECONDS in all (docs/robustness.md)
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)

CHAOS_ROUNDS ?= 30
.PHONY: chaos
chaos: env ## Kill commands at random points, CHAOS_ROUNDS times each; full disks
	$(BIN)/python tests/chaos.py --rounds $(CHAOS_ROUNDS)

.PHONY: deny
deny: env ## Licences and origins of dependencies; advisories where cargo-deny is installed
	$(BIN)/python tests/licences.py
	if command -v cargo-deny > /dev/null; then cargo deny --all-features check; fi

.PHONY: wheel
wheel: env ## A wheel, installed into a clean environment and used there
	rm -rf target/wheels
	$(BIN)/maturin build --release --quiet --out target/wheels
	$(BIN)/python tests/wheel.py target/wheels/*.whl

# What is measured or given away is optimised across crates; `make env` and `make test` are built sooner.
bench wheel: export CARGO_PROFILE_RELEASE_LTO := thin
bench wheel: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS := 4

.PHONY: bench
bench: env ## Ratios against peers, in one run (docs/bench.md)
	@workloads/install.sh qemu-user gzip pigz valgrind
	$(BIN)/python bench/run.py

.PHONY: validate
validate: env ## The real kernel's placement of memory beside the model's, under QEMU (docs/numa.md)
	@workloads/install.sh qemu-system-x86
	$(BIN)/python bench/numa-kernel/validate.py

.PHONY: clean
clean: ## Remove everything made, but the captures of out/
	rm -rf $(VENV) build target fuzz/target fuzz/artifacts capture/qemu-plugin/target python/nearfar/_plugin python/nearfar/*.so
