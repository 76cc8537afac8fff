# The front door. `make demo` and `make test` each do all their set-up on a fresh Debian 12.
JOBS ?= $(shell nproc)
DEMO_MODEL ?= models/sapling
DEMO_DRAFT ?= models/sapling-eagle3
# Configures, builds and tests a workflow of CMakePresets.json.
WORKFLOW = CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) CTEST_PARALLEL_LEVEL=$(JOBS) cmake --workflow --preset

.PHONY: help demo serve test test-page test-long test-clients test-deploy python test-python package release test-package test-image build asan tsan fuzz fuzz-http cuda gpu-build gpu-test install format format-check clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo       install what running needs, build, and let Sapling write without and with speculation
demo:
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	@tools/demo.sh build/cpu/espalier $(DEMO_MODEL) $(DEMO_DRAFT)

## make serve      install what running needs, build, and serve Sapling on http://127.0.0.1:8000
serve:
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	build/cpu/espalier serve $(DEMO_MODEL) --draft $(DEMO_DRAFT) --speculate auto

## make test       install what testing needs, build, run the quick tests
test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory build TESTS=ON
	ctest --preset quick -j $(JOBS)

## make test-page  the server's page in a real browser (Chromium); PICTURES=docs/pictures takes those of the docs
test-page:
	@tools/setup.sh page
	@$(MAKE) --no-print-directory build TARGETS=espalier
	python3 tests/page/browser_test.py build/cpu/espalier $(DEMO_MODEL) $(DEMO_DRAFT) $(if $(PICTURES),--pictures $(PICTURES))

## make test-long  the tests that take minutes
test-long:
	@tools/setup.sh long
	@$(MAKE) --no-print-directory build TESTS=ON PYTHON=$(CURDIR)/.venv/bin/python3
	ctest --preset long

## make test-clients  the server with OpenAI's and Anthropic's official clients (PyPI and npm, installed outside the tree)
test-clients:
	@tools/setup.sh clients
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	tools/test_clients.sh build/cpu/espalier $(DEMO_MODEL)

## make python     the Python package's wheel in build/cpu/python; PRESET=cuda: with the CUDA backend (needs nvcc)
PRESET ?= cpu
python:
	@$(if $(filter cuda,$(PRESET)),$(NEEDS_NVCC))
	@tools/setup.sh python
	@$(MAKE) --no-print-directory build BUILD_PRESET=$(PRESET) TARGETS=wheel TESTS=OFF WHEEL=ON

## make test-python   make python, then its tests and example with torch (PyPI, installed outside the tree)
test-python: python
	tools/test_python.sh build/$(PRESET)/python/espalier-*.whl

## make test-deploy   deploy/ against a server, systemd, promtool and Kubernetes' schema
test-deploy:
	@tools/setup.sh deploy
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	tools/test_deploy.sh build/cpu/espalier $(DEMO_MODEL)

## make package    a Debian package in PACKAGES (build/package)
## make release    an archive there with all but glibc and the NVIDIA driver inside; with the CUDA backend where nvcc is
## make test-package  installs both in fresh roots; test-image runs the lines of deploy/Dockerfile in fresh roots (as root)
PACKAGES ?= build/package
package:
	@tools/setup.sh package
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	tools/package.sh deb build/cpu $(PACKAGES)
release:
	@tools/setup.sh package
	@$(MAKE) --no-print-directory build BUILD_PRESET=release TARGETS="espalier espalier_mla" CUDA=$(if $(shell command -v nvcc),ON,OFF)
	tools/package.sh archive build/release $(PACKAGES)
test-package: package release
	@tools/setup.sh deploy
	python3 tests/deploy/package_test.py $(PACKAGES)
test-image:
	@tools/setup.sh deploy
	python3 tests/deploy/image_test.py

## make build      build/cpu/espalier and the tests, without set-up
BUILD_PRESET ?= cpu
build:
	@mkdir -p build
	@cmake --preset $(BUILD_PRESET) $(if $(WHEEL),-DESPALIER_PYTHON=$(WHEEL)) $(if $(CUDA),-DESPALIER_CUDA=$(CUDA)) $(if $(TESTS),-DESPALIER_TESTS=$(TESTS)) $(if $(PYTHON),-DESPALIER_TEST_PYTHON=$(PYTHON)) \
	    > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	cmake --build --preset $(BUILD_PRESET) -j $(JOBS) $(if $(TARGETS),--target $(TARGETS))

## make asan       the quick tests under AddressSanitizer and UBSan
asan:
	$(WORKFLOW) asan

## make tsan       the tests of what runs on several threads, under ThreadSanitizer
# Without address randomisation: with 32 bits of it some runs find no room beside the sanitizer's own memory.
tsan:
	setarch -R env $(WORKFLOW) tsan

## make fuzz       each fuzz target for FUZZ_SECONDS (20)
FUZZ_SECONDS ?= 20
fuzz:
	cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
	tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

## make fuzz-http  a running server by its own /openapi.json for FUZZ_SECONDS, with FUZZ_SEED if one is given
fuzz-http:
	@$(MAKE) --no-print-directory build TARGETS=espalier
	python3 tests/fuzz/http/run.py build/cpu/espalier $(DEMO_MODEL) --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

## make cuda       install what building needs but nvcc, build build/cuda/espalier
NEEDS_NVCC = command -v nvcc > /dev/null || { echo "make $@: nvcc is not on the PATH; install the CUDA toolkit (13.0 or newer)" >&2; exit 1; }
cuda:
	@$(NEEDS_NVCC)
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build BUILD_PRESET=cuda TARGETS=espalier TESTS=OFF

## make gpu-test   install what testing needs but nvcc and the driver, build with the CUDA backend, run the tests that need a Hopper GPU
gpu-test: gpu-build
	ctest --preset gpu
gpu-build:
	@$(NEEDS_NVCC)
	@tools/setup.sh gpu
	@$(MAKE) --no-print-directory build BUILD_PRESET=cuda TESTS=ON

## make install    build and install binary, attention library and CMake package to PREFIX (/usr/local)
PREFIX ?= /usr/local
install:
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build TESTS=OFF
	cmake --install build/cpu --prefix $(PREFIX)

## make format     clang-format every source file; make format-check only says which differ, and which comments lack their subject
SOURCES = git ls-files '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh'
format:
	$(SOURCES) | xargs clang-format-14 -i
format-check:
	$(SOURCES) | xargs clang-format-14 --dry-run -Werror
	python3 tools/comment_subjects.py --most 60

clean:
	rm -rf build
