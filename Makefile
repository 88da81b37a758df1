# What one can do here. `make help` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup run test check generate lock bench-cpu bench-gpu bench-gain-map bench-loss-curves bench-kernels bench-planner tune bench-operator test-gpu clean

BIN := .venv/bin
QUICKSTART := examples/01-quickstart
PYTEST_ARGS ?=
# How long a waiting thread of libgomp spins before it sleeps. On a quiet machine this costs next to nothing (265 tokens/s, 272
# without; 182 when it sleeps at once), with three other busy programs on two cores a GEMM runs 1.5 times as fast.
export GOMP_SPINCOUNT ?= 50000

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv from the lock file; nothing happens when it is up to date.
	@scripts/setup

run: setup ## Train four adapters at once on a real base model, on this machine (about three minutes on two cores).
	@$(BIN)/python $(QUICKSTART)/prepare.py
	@$(BIN)/multigraft run $(QUICKSTART)

test: setup ## Run every test that this machine can run, in parallel; skips print their reason.
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -n logical $(PYTEST_ARGS)

check: setup ## Lint, format, types, import rules, and that generated files are up to date.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy scripts/module_map.py scripts/slim_torch.py
	@for folder in examples/*/; do $(BIN)/mypy "$$folder"*.py || exit 1; done
	@MYPYPATH=scripts $(BIN)/mypy $(wildcard scripts/chart_*.py)
	@MYPYPATH=helm/multigraft/files/tests $(BIN)/mypy $(wildcard helm/multigraft/files/tests/*.py)
	@$(BIN)/lint-imports
	@$(BIN)/python -m multigraft.api.crd --check
	@$(BIN)/python scripts/module_map.py --check
	@$(BIN)/python scripts/chart_files.py --check

generate: setup ## Write the generated files: CRDs, docs/modules.md, and what the chart has of them.
	@$(BIN)/python -m multigraft.api.crd
	@$(BIN)/python scripts/module_map.py
	@$(BIN)/python scripts/chart_files.py

lock: setup ## Resolve the dependencies anew into requirements.lock.
	@$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet --upgrade \
	  --custom-compile-command 'make lock' --extra dev --output-file requirements.lock pyproject.toml

bench-cpu: setup ## Four jobs together against alone and against plain PEFT, on this machine's CPU.
	@$(BIN)/python $(QUICKSTART)/prepare.py
	@$(BIN)/python tests/benchmark/cpu/bench_quickstart.py

bench-gpu: setup ## Throughput on one GPU against PEFT.
	@$(BIN)/python tests/benchmark/gpu/bench_end_to_end.py

bench-gain-map: setup ## Where sharing gains and where it loses: adapters by tokens of a step, on one GPU.
	@$(BIN)/python tests/benchmark/gpu/bench_gain_map.py

bench-loss-curves: setup ## Loss curves together, alone and by PEFT, against PEFT's own spread, on one GPU.
	@$(BIN)/python tests/benchmark/gpu/bench_loss_curves.py

bench-kernels: setup ## The fused linear against the frozen one and PyTorch LoRA, on one GPU.
	@$(BIN)/python tests/benchmark/kernels/bench_fused_lora.py --json runs/fused_lora.json --peers --adapters 4 1 16 64

tune: setup ## Find the launch choices of this GPU and write its table.
	@$(BIN)/python tests/benchmark/kernels/tune_fused_lora.py --out kernels/multigraft_kernels/launch/tables

bench-planner: setup ## Packing quality and planning time.
	@$(BIN)/python tests/benchmark/planner/bench_planner.py

bench-operator: setup ## 1,000 and 3,000 jobs over 20 pools, on a real API server.
	@$(BIN)/python tests/benchmark/operator/bench_operator.py

test-gpu: setup ## The tests that need a CUDA device.
	@$(BIN)/pytest -m gpu tests $(PYTEST_ARGS)

clean: ## Remove what make made: .venv, the prepared base and caches. Your runs/ stay.
	rm -rf .venv $(QUICKSTART)/prepared .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
