# The commands of a day's work; `make` alone lists them. Everything built lies under build/.

PROMPT ?= The old gardener looked at the apple tree and said:
MODEL ?=
FUZZ_SECONDS ?= 60
SETUP ?= scripts/setup

jobs := $(shell nproc)
espalier := build/release/bin/espalier

ccache := $(shell command -v ccache)
ifneq ($(ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(ccache)
export CMAKE_CUDA_COMPILER_LAUNCHER ?= $(ccache)
export CCACHE_BASEDIR ?= $(CURDIR)
endif

export PROMPT FUZZ_SECONDS
.PHONY: help setup build run test test-arm asan fuzz lint format clean

help:
	@echo "make build   the release binary, $(espalier)"
	@echo "make run     generate text: PROMPT=\"...\", MODEL=path (default: a small model, fetched once)"
	@echo "make test    every test"
	@echo "make test-arm   the CPU kernels' tests for ARM, run by QEMU"
	@echo "make asan    every test under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make fuzz    each fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make lint    style and static checks; make format repairs the style"
	@echo "make clean   remove build/"

setup:
	@$(SETUP)

build: setup
	@cmake --preset release --log-level=WARNING >/dev/null
	cmake --build --preset release --parallel $(jobs) --target espalier

run: build
	@model="$(MODEL)"; \
	[ -n "$$model" ] || model=$$(scripts/fetch-model) || exit 1; \
	$(espalier) run -m "$$model" -p "$$PROMPT"

# The tests look for models where fetch-model puts them.
test: setup
	@cmake --preset release --log-level=WARNING >/dev/null
	cmake --build --preset release --parallel $(jobs)
	@scripts/fetch-model
	@scripts/fetch-model gemma3-270m
	ctest --test-dir build/release --parallel $(jobs) --output-on-failure --no-tests=error

test-arm:
	@$(SETUP) arm
	scripts/test-aarch64

# Without the published models: minutes of arithmetic, ten times as many here.
asan: setup
	@cmake --preset asan --log-level=WARNING >/dev/null
	cmake --build --preset asan --parallel $(jobs)
	@scripts/fetch-model
	ctest --test-dir build/asan --parallel $(jobs) --output-on-failure --no-tests=error \
		--exclude-regex 'PublishedModel'

fuzz:
	@$(SETUP) dev
	@cmake --preset fuzz --log-level=WARNING >/dev/null
	cmake --build --preset fuzz --parallel $(jobs)
	scripts/fuzz $(FUZZ_SECONDS)

lint:
	@$(SETUP) dev
	@cmake --preset release --log-level=WARNING >/dev/null
	scripts/lint style tidy scripts

format:
	@$(SETUP) dev
	scripts/lint format

clean:
	rm -rf build
