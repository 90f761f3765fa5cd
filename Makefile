# `make demo` and `make test` set up all they need, in .venv, from the package registry alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
RELEASE := .venv-release
# What uses each dependency, in about half a minute.
LOWEST_TESTS := tests/repository/test_dependencies.py tests/test_cli.py tests/io/test_posterior_file.py \
	tests/test_hub.py tests/io/test_export.py::test_onnxruntime_gives_the_same_numbers \
	tests/io/test_export.py::test_graphs_hold_the_temperature_and_the_residual \
	tests/paper/data/test_sets.py tests/paper/test_deep_kernel.py::test_it_learns \
	tests/metrics
# All but the helper of the others and those for a GPU.
BENCHMARKS := $(filter-out benchmarks/timing.py benchmarks/seconds.py benchmarks/nccl.py benchmarks/cifar10_network.py,$(sort $(wildcard benchmarks/*.py)))

.PHONY: demo test test-all test-lowest fuzz lint docs benchmarks notebooks release-check chromium clean

demo: $(VENV)/.package
	$(BIN)/bitbayes audit

PYTEST := $(BIN)/pytest -n auto --dist worksteal

test: $(VENV)/.peers
	$(PYTEST) -m "not slow"

# What takes long, too.
test-all: test
	$(PYTEST) -m slow

# The properties alone, on a thousand new examples each. FUZZ names some of them: make fuzz FUZZ=tests/rays
FUZZ := tests
fuzz: $(VENV)/.peers
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -m hypothesis $(FUZZ)

# The lowest versions that pyproject.toml allows, of everything but torch. Old packages warn of new ones.
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning $(LOWEST_TESTS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, in site/ by mkdocs, and in build/zensical/ by Zensical. A link or an anchor that leads
# nowhere is an error.
docs: $(VENV)/.docs
	$(BIN)/python scripts/build_site.py

benchmarks: $(VENV)/.peers
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

# Runs the notebooks and keeps their outputs in the files.
notebooks: $(VENV)/.peers
	$(BIN)/python scripts/run_notebooks.py

# Builds what would be published and tries it in an empty environment, in a folder that is not the checkout.
release-check: $(VENV)/.installed
	rm -rf dist build $(RELEASE)
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd $(RELEASE) && bin/bitbayes --version && bin/bitbayes audit --output report.html && test -s report.html
	@echo "dist/ can be published"

# The package alone, for the demo: a first look should not wait for the tools of developers.
$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,lint,release]"
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e ".[test,paper]"
	touch $@

# The libraries whose models people have, and what these import to make one, beside huggingface_hub of the
# extra `test`: 180 MB, half a minute. timm asks for torchvision, too, for its image transforms, which no model uses.
MODELS := transformers tokenizers regex peft accelerate psutil timm

# The peers that some tests compare with. Their metadata asks for torchvision, which no CPU build of
# torch can load, so they come without their dependencies, beside the few they really use. A machine
# that cannot get them skips those tests and says so.
$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
		laplace-torch curvlinops-for-pytorch backpack-for-pytorch einops einconv opt_einsum tqdm asdfghjkl unfoldNd \
		pytorch-ood MAPIE \
		|| echo "peers not installed: the tests that compare with them will be skipped"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(MODELS) \
		|| echo "transformers, peft or timm not installed: the tests of their models will be skipped"
# torchmetrics and Lightning import transformers where they find it, and fail where it lacks something.
	$(BIN)/python -W ignore -c "import torchmetrics" || { \
		echo "transformers cannot be imported, and is removed: the tests with it will be skipped"; \
		$(BIN)/python -m pip uninstall --quiet --yes transformers peft; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
		lightning lightning-utilities pyyaml || echo "Lightning not installed: its tests will be skipped"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[browser]" \
		|| echo "playwright or axe not installed: the tests in a browser will be skipped"
	touch $@

# For the tests in a browser (tests/browser). Without it they are skipped, and say so.
chromium:
	apt-get install --yes chromium

clean:
	rm -rf $(VENV) $(LOWEST) $(RELEASE) site build .cache .pytest_cache .mypy_cache .ruff_cache bitbayes-report.html bitbayes-explorer.html
