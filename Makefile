# `make lab` to learn, `make grade` to teach, `make test` to develop. Each does its own set-up.
PYTHON ?= python3
RUN = $(PYTHON) tools/bootstrap.py

.PHONY: lab build docs grade formgrader test test-steps test-fast image test-image oracle stress bench gpu pictures lock clean

lab:  ## set up everything, start the cluster and JupyterLab
	@$(RUN) lab start

build:  ## the figures and notebooks of the labs, from their sources
	@$(RUN) python images/src/draw.py
	@$(RUN) lab build

docs:  ## the documentation's site: open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

grade:  ## for instructors: grade what is in course/submitted
	@$(RUN) lab install-sandbox
	@$(RUN) lab grade --all

formgrader:  ## for instructors: JupyterLab with nbgrader's formgrader
	@$(RUN) lab install-sandbox
	@$(RUN) lab formgrader

test:  ## everything but the long soaks; its last line is what it cost in CPU-seconds
	@$(PYTHON) tools/cost.py $(MAKE) --no-print-directory test-steps

test-steps:
	@$(RUN) lab install-slurm --accounting
	-@$(RUN) lab install-sandbox
	@$(RUN) ruff check .
	@$(RUN) pytest -n 2 -m "not stress and not image and not oracle and not alone"
	@$(RUN) pytest -m alone --with-run-before

test-fast:  ## what one runs while working
	@$(RUN) pytest -n 3 -m "not slow and not cluster and not stress and not image and not oracle" -q

image:  ## the container's two images, with podman or docker (IMAGE_BASE=registry|local)
	@$(RUN) python tools/image.py

test-image:  ## build the container with podman, run the lab in it (IMAGE_BASE=registry|local)
	@$(RUN) pytest tests/image -q

oracle:  ## against other packages: say where with PYTHONPATH, see tests/oracles/make_*.py
	@$(RUN) pytest tests/oracles -m oracle

stress:  ## hundreds of repeats
	@$(RUN) lab install-slurm --accounting
	-@$(RUN) lab install-sandbox
	@$(RUN) pytest -m stress

bench:  ## the figures of docs/benchmarks.md
	@$(RUN) python benchmarks/run.py

gpu:  ## everything that needs CUDA, on the GPUs of this machine: gpu-results/gpu.md (GPU="--quick --parts mfu")
	@$(RUN) python -m benchmarks.gpu $(GPU)

pictures:  ## the screenshots of the guides and of lab 03, in docs/pictures and images/src
	@$(RUN) python tools/pictures.py

lock:  ## pin the dependencies of pyproject.toml again
	@$(RUN) python -m pip install --quiet uv
	@$(RUN) python tools/lock.py

clean:  ## stop the cluster, forget the environment; the workspace stays
	-@if [ -x .venv/bin/lab ]; then .venv/bin/lab cluster down; fi
	rm -rf .venv .slurm .setup.lock site .pytest_cache .ruff_cache
