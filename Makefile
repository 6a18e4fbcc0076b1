# nearfar: `make` or `make help` lists what can be made.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml') Cargo.toml $(wildcard machines/*.toml workloads/*.toml workloads/generated/*.toml papers/*/*.toml)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
.DEFAULT_GOAL := help

$(VENV)/.packages: requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r $<
	touch $@

$(VENV)/.engine: $(VENV)/.packages $(RUST_SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --locked --quiet
	touch $@

PLUGIN := python/nearfar/_plugin/libnearfar_qemu_plugin.so
PLUGIN_SOURCES := $(wildcard capture/qemu-plugin/src/*.rs) capture/qemu-plugin/Cargo.toml capture/qemu-plugin/Cargo.lock crates/capture/src/layout.rs $(wildcard crates/capture/src/layout/*.rs)

# A wheel must not contain paths of this machine.
REMAPPED := --remap-path-prefix=$(CURDIR)=/nearfar --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo

# Always with the plugin's own profile, as a wheel contains the plugin that was built last.
PLUGIN_BUILD := env -u CARGO_PROFILE_RELEASE_LTO -u CARGO_PROFILE_RELEASE_CODEGEN_UNITS CARGO_INCREMENTAL=0 RUSTFLAGS="$(REMAPPED)"

$(PLUGIN): $(PLUGIN_SOURCES)
	cd capture/qemu-plugin && $(PLUGIN_BUILD) cargo build --release --locked --quiet
	mkdir -p $(@D)
	cp capture/qemu-plugin/target/release/$(@F) $@.partial
	mv $@.partial $@

.PHONY: plugin
plugin: $(PLUGIN) ## QEMU plugin for nearfar capture

LIVE := python/nearfar/_live/libnearfar_preload.so

define MAKE_LIVE
	cargo build --release --locked --quiet -p nearfar-preload
	mkdir -p $(dir $(LIVE))
	cp target/release/$(notdir $(LIVE)) $(LIVE).partial
	mv $(LIVE).partial $(LIVE)
endef

$(LIVE): $(RUST_SOURCES)
	$(MAKE_LIVE)

.PHONY: live
live: $(LIVE) ## Library for nearfar run

# Clippy and the tests use the engine's profile, with assertions in the workspace's crates. Dependencies
# keep the engine's profile, so they are compiled once.
CHECKED := --release --config profile.release.debug-assertions=true --config profile.release.overflow-checks=true \
  --config 'profile.release.package."*".debug-assertions=false' --config 'profile.release.package."*".overflow-checks=false'

# Targets at once, as each alone leaves processors idle; the user's own `make -j` is kept.
AT_ONCE = @$(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j3)

.PHONY: env
env: ## Virtual environment and engine, in release mode
	$(AT_ONCE) $(LIVE) $(PLUGIN) $(VENV)/.engine

.PHONY: declared
declared: env ## What the engine declares, as Python source
	$(BIN)/python docs/declared.py

.PHONY: demo
demo: env ## Capture a server and a graph program; page size, memory and storage for each (installs what it may)
	@workloads/install.sh qemu-user redis-server redis-tools
	$(BIN)/python workloads/demo.py

.PHONY: workloads
workloads: env ## Install the programs of every workload (nearfar workload list)
	@workloads/install.sh qemu-user $$($(BIN)/python -c "from nearfar import workload as w; print(*sorted({p for n in w.names() for p in w.load(n).packages}))")

.PHONY: lint lint-rust lint-python
lint: env ## Formatters and linters
	$(AT_ONCE) lint-rust lint-python

lint-rust:
	git ls-files '*.rs' | xargs rustfmt --check
	cargo clippy $(CHECKED) --locked --workspace --all-targets --quiet -- -D warnings
	cd capture/qemu-plugin && cargo clippy --release --locked --quiet -- -D warnings

lint-python:
	$(BIN)/ruff check python tests bench workloads docs/*.py examples fuzz
	$(BIN)/ruff format --check python tests bench workloads docs/*.py examples fuzz
	$(BIN)/mypy
	$(BIN)/mypy --strict workloads/demo.py
	git ls-files | xargs $(BIN)/codespell --dictionary - --dictionary docs/words.txt

.PHONY: test-packages
test-packages:
	@workloads/install.sh qemu-user chromium pigz gzip libvirt-clients libxml2-utils virtinst qemu-system-x86 qemu-system-arm systemd numactl acpica-tools cpio \
	  sqlite3 redis-server redis-tools xvfb xdotool mandoc stress-ng memtester strace

# Minutes of processor time that `make test` may use after `make clean` (CONTRIBUTING.md, Tests).
TEST_BUDGET := 30
STEPS := build/processor-time
STEP := @$(PYTHON) tests/processor.py run $(STEPS)

.PHONY: test
test: test-packages ## Everything: lint, Rust tests, Python tests, documentation
	@rm -f $(STEPS)
	$(STEP) 'engine and plugin' $(MAKE) --no-print-directory env
	$(STEP) 'formatters and linters' $(MAKE) --no-print-directory lint
	$(AT_ONCE) test-rust test-python
	@$(PYTHON) tests/processor.py report $(STEPS) $(TEST_BUDGET)

.PHONY: test-rust test-python
test-rust:
	$(STEP) 'Rust tests, compiled' $(RUST_TESTS) --no-run
	$(STEP) 'Rust tests, run' $(RUST_TESTS)

test-python:
	$(STEP) 'Python tests' $(PYTEST)

# Without the bench, and so without compiling libraries that only the bench needs.
RUST_TESTS := env RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/rustc.sh cargo test $(CHECKED) --locked --workspace --exclude nearfar-bench --quiet

# Some tests wait, so one process more than processors; at most four, to limit memory. Tests start nearfar
# a thousand times, so Python modules are compiled once, even if the container forbids that.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --numprocesses $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4))) --dist loadgroup

.PHONY: test-long
test-long: test-packages env ## Soaks and validations, which `make test` leaves out (CONTRIBUTING.md, Tests)
	cargo test --release --locked --package nearfar-bench --quiet
	cd fuzz && RUSTC_BOOTSTRAP=1 cargo check --locked --quiet
	$(PYTEST) -m long

ARM := aarch64-unknown-linux-gnu
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= aarch64-linux-gnu-gcc
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER ?= qemu-aarch64 -L /usr/aarch64-linux-gnu

.PHONY: test-arm
test-arm: ## Clippy and the Rust tests for aarch64, under QEMU in user mode (CONTRIBUTING.md, Tests)
	@workloads/install.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
	@rustup --quiet target add $(ARM) || echo "nearfar: install Rust's standard library for $(ARM)" >&2
	cargo clippy $(CHECKED) --target $(ARM) --locked --workspace --all-targets --quiet -- -D warnings
	cd capture/qemu-plugin && cargo clippy --release --target $(ARM) --locked --quiet -- -D warnings
	cargo test $(CHECKED) --target $(ARM) --locked --workspace --exclude nearfar-python --quiet --no-fail-fast

$(VENV)/.docs: requirements/docs.txt $(VENV)/.packages
	$(BIN)/pip install --quiet --require-hashes -r $<
	touch $@

.PHONY: site
site: env $(VENV)/.docs ## The documentation as HTML in build/docs; warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs -d build/doctrees . build/docs
	@echo build/docs/index.html

.PHONY: docs
docs: site ## The site, and every command and snippet of README.md and docs/ run
	$(BIN)/pytest -m '' tests/test_docs.py tests/test_notebooks.py

.PHONY: notebooks
notebooks: env ## Run the notebooks of examples/notebooks and store their outputs
	$(BIN)/python tests/notebooks.py

.PHONY: man
man: env ## Manual pages of every command in build/man
	$(BIN)/python -m nearfar.cli._reference man build/man

FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: env ## Fuzz every reader for FUZZ_SECONDS in all (docs/robustness.md)
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)

CHAOS_ROUNDS ?= 200
.PHONY: chaos
chaos: env ## Kill commands at random points, CHAOS_ROUNDS times each; full disks; calls that fail
	$(BIN)/python tests/chaos.py --rounds $(CHAOS_ROUNDS)
	$(BIN)/python tests/faults.py

.PHONY: conform
conform: env ## Other people's tests (Linux's of memory, stress-ng, memtester) bare and under nearfar (docs/conform.md)
	@workloads/install.sh linux-source stress-ng memtester qemu-user strace build-essential libcap-dev libnuma-dev
	$(BIN)/python tests/conform.py

.PHONY: deny
deny: ## Licences, origins and advisories of the Rust dependencies
	@command -v cargo-deny > /dev/null || { echo "make deny needs cargo-deny: cargo install --locked cargo-deny" >&2; exit 3; }
	cargo deny --all-features --locked check

.PHONY: wheel
wheel: env ## A wheel, installed into a clean environment and used there
	rm -rf target/wheels
	$(MAKE_LIVE)
	$(BIN)/maturin build --release --locked --quiet --out target/wheels
	$(BIN)/auditwheel show target/wheels/*.whl
	$(BIN)/python tests/wheel.py target/wheels/*.whl

.PHONY: same-wheel
same-wheel: wheel ## The wheel again, from a copy of the sources elsewhere: the same bytes
	$(BIN)/python tests/wheel.py --again target/wheels/*.whl

.PHONY: lock
lock: ## Versions and hashes of the Python packages for development (requirements/)
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet 'uv>=0.9,<1'
	build/lock/bin/$(LOCKED) --extra dev --output-file requirements/dev.txt
	build/lock/bin/$(LOCKED) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt

LOCKED := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

# Optimise across crates what is measured or distributed; `make env` and `make test` build faster without.
bench wheel same-wheel: export CARGO_PROFILE_RELEASE_LTO := thin
bench wheel same-wheel: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS := 4
# Two builds of the same sources give the same bytes.
wheel same-wheel: export RUSTFLAGS := $(REMAPPED)
wheel same-wheel: export CFLAGS := $(subst --remap-path-prefix,-ffile-prefix-map,$(REMAPPED))
wheel same-wheel: export CARGO_INCREMENTAL := 0
wheel same-wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2> /dev/null || echo 315532800)

.PHONY: bench
bench: env ## Ratios against peers, in one run (docs/validation.md)
	@workloads/install.sh qemu-user gzip pigz valgrind
	$(BIN)/python bench/run.py

.PHONY: validate
validate: env ## The real kernel beside the models: placement and nearfar run under QEMU (docs/numa.md, run.md), faults and gains (docs/validation.md)
	@workloads/install.sh qemu-system-x86 qemu-system-arm qemu-user nodejs zstd perl redis-server redis-tools jq gnugo poppler-utils \
	  build-essential flex bison bc libelf-dev xz-utils gcc-aarch64-linux-gnu libc6-dev-arm64-cross memcached postgresql nginx-light default-jdk-headless
	@rustup --quiet target add $(ARM) || echo "nearfar: install Rust's standard library for $(ARM)" >&2
	$(BIN)/python bench/numa-kernel/validate.py
	for case in kernel-faults mglru-guest tiering-guest page-gain thp thp-guest first-access guest-pages epf watch watch-cost big; do \
	  $(BIN)/python bench/run.py --only $$case --output bench/results/$$case || exit; \
	done

.PHONY: clean
clean: ## Remove everything made, but the captures of out/
	rm -rf $(VENV) build target fuzz/target fuzz/artifacts capture/qemu-plugin/target python/nearfar/_plugin python/nearfar/_live python/nearfar/*.so
