# `make help` lists the targets. Every target that needs Python sets up .venv first.
VENV ?= .venv
PY   := $(VENV)/bin/python
UV   := $(shell command -v uv 2>/dev/null)
PYTHON ?= python3
EXTRAS ?= dev

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all faults lint format doctor bench-kernel bench first-contact bench-gpu evidence-gpu check-curve report studies docs docs-site release-check validate-outside clean constraints

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

INSTALL := $(if $(UV),"$(UV)" pip install -q --python $(PY),$(PY) -m pip install -q --disable-pip-version-check) -c constraints.txt -e

setup: $(VENV)/.ok ## create .venv and install everything (uv when present, else pip); EXTRAS=dev,docs adds extras later
	$(if $(filter command,$(origin EXTRAS)),$(INSTALL) '.[$(EXTRAS)]')

# 7 GB with PyTorch's CUDA build, which also runs on a CPU. --seed: a uv environment gets pip too.
$(VENV)/.ok: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (PyTorch with CUDA: 7 GB, three minutes or more)"
	$(if $(UV),"$(UV)" venv -q --clear --seed --python $(PYTHON) $(VENV),$(PYTHON) -m venv --clear $(VENV))
	$(INSTALL) '.[$(EXTRAS)]'
	-$(PY) -c 'from fourierformer.kernels.sinc.library import build_now; build_now()'
	@touch $@

train: setup ## quick comparison on built-in data: softmax against Fourier, table and report (2 to 4 minutes)
	$(PY) train_lm.py sweep=quickstart

test: setup ## the fast tier of tests, on two processes
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal -q -m "not full"

test-all: setup ## the rest of them: every tile compiled, whole measurements, long stops (CONTRIBUTING.md says which)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal -q -m full

faults: setup ## inject faults for half an hour, into results/measured/faults.csv: docs/reliability.md
	OMP_NUM_THREADS=1 $(PY) -m faults --minutes 30

# SUITES: a folder with checkouts of others' repositories, which `python -m outside --help` lists
validate-outside: setup ## run other people's test suites on this package; with SUITES=FOLDER into results/measured/outside.csv
	OMP_NUM_THREADS=1 $(PY) -m outside $(if $(SUITES),--suites $(SUITES))

lint: setup ## style, import rules and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup ## rewrite files in the house style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

doctor: setup ## check this machine: versions, GPU, compiler, Triton, data, write access, wandb
	@$(PY) scripts/doctor.py

bench-kernel: setup ## time the Fourier attention backends against each other and against softmax
	$(PY) -m benchmarks.kernel

check-curve: setup ## does this installation train as it should? two short runs against committed curves (1 to 3 minutes)
	$(PY) scripts/check_curve.py

bench: setup ## time and memory of every attention against the number of tokens, beside softmax (90 minutes at most)
	$(PY) -m benchmarks.attention

first-contact: setup ## launch every kernel on a GPU, each case in its own process: errors, registers, seconds (one minute)
	@$(PY) -m benchmarks.first_contact

bench-gpu: setup ## one GPU in nine minutes: first contact, kernel times, training steps of the paper's models, tests
	@$(PY) -m benchmarks.gpu

# DATA: folder with WikiText-2, or where to download it; PIECE: minutes; ARGS: more overrides
DATA ?= data/wikitext-2
PIECE ?= 9
evidence-gpu: setup ## Table 1 at WikiText-2 length, three seeds, nine minutes at a time: again until all is done
	@timeout --foreground $(PIECE)m $(PY) train_lm.py sweep=table1 scale=wikitext2 seed=1,2,3 'data.root="$(DATA)"' $(ARGS); code=$$?; \
	case $$code in 0) echo "all is done";; 124) echo "the time is up: the same command continues";; *) exit $$code;; esac

report: setup ## one HTML page over everything in runs/, its charts as PNG and SVG beside it
	$(PY) scripts/report.py

studies: setup ## redraw every number and figure of studies/ from its rows
	@for study in studies/*/analyse.py; do echo "$$study"; $(PY) -m $$(echo $${study%.py} | tr / .) || exit 1; done

docs: setup ## write the generated parts of README.md and docs/: parts of the studies, tables of attentions, lists of files
	$(PY) scripts/make_tables.py --docs

docs-site: setup ## the documents as a web site in build/site (installs MkDocs into .venv; serve it with `mkdocs serve`)
	$(if $(UV),"$(UV)" pip install -q --python $(PY) -c constraints.txt -e '.[docs]',$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]')
	$(PY) -m mkdocs build --quiet --strict

PYTHONS ?= python3.11 python3.12 python3.13
release-check: setup ## build the release, and train with its wheel in a fresh environment of each Python (6 GB, one at a time)
	$(PY) scripts/release_check.py $(PYTHONS)

constraints: ## resolve the pinned versions anew (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --upgrade --no-emit-index-url --no-header --no-annotate -q -o constraints.txt

clean: ## remove caches (never runs/ or data/)
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
