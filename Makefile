# The front door. `make demo` and `make test` each do all their set-up on a fresh Debian 12.
BUILD ?= build
JOBS ?= $(shell nproc)
DEMO_MODEL ?= models/sapling

.PHONY: help demo test test-long build asan tsan fuzz cuda install format clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo       install what running needs, build, and let Sapling (models/sapling) write
demo:
	@tools/setup.sh run
	@$(MAKE) --no-print-directory build TARGETS=espalier TESTS=OFF
	@tools/demo.sh $(BUILD)/cpu/espalier $(DEMO_MODEL)

## make test       install what testing needs, build, run the quick tests
test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory build TESTS=ON
	ctest --test-dir $(BUILD)/cpu -L quick -j $(JOBS) --output-on-failure --no-tests=error

## make test-long  the tests that take minutes
test-long:
	@tools/setup.sh long
	@$(MAKE) --no-print-directory build TESTS=ON PYTHON=$(CURDIR)/.venv/bin/python3
	ctest --test-dir $(BUILD)/cpu -L long --output-on-failure --no-tests=error

## make build      build/cpu/espalier and the tests, without set-up
build:
	@cmake --preset cpu $(if $(TESTS),-DESPALIER_TESTS=$(TESTS)) $(if $(PYTHON),-DESPALIER_TEST_PYTHON=$(PYTHON)) > $(BUILD)-configure.log 2>&1 || \
	    { cat $(BUILD)-configure.log; rm -f $(BUILD)-configure.log; exit 1; }
	@rm -f $(BUILD)-configure.log
	cmake --build --preset cpu -j $(JOBS) $(if $(TARGETS),--target $(TARGETS))

## make asan       the quick tests under AddressSanitizer and UBSan
asan:
	cmake --preset asan && cmake --build --preset asan -j $(JOBS)
	ctest --test-dir $(BUILD)/asan -L quick -j $(JOBS) --output-on-failure --no-tests=error

## make tsan       the quick tests under ThreadSanitizer
tsan:
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS)
	ctest --test-dir $(BUILD)/tsan -L quick -j $(JOBS) --output-on-failure --no-tests=error

## make fuzz       each fuzz target for FUZZ_SECONDS (20)
FUZZ_SECONDS ?= 20
fuzz:
	cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
	tools/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS)

## make cuda       build with the CUDA backend (needs nvcc)
cuda:
	@command -v nvcc > /dev/null || { echo "make cuda: nvcc is not on the PATH; install the CUDA toolkit (13.0 or newer)" >&2; exit 1; }
	cmake --preset cuda && cmake --build --preset cuda -j $(JOBS)

## make install    install binary, library and CMake package to PREFIX (/usr/local)
PREFIX ?= /usr/local
install: build
	cmake --install $(BUILD)/cpu --prefix $(PREFIX)

## make format     clang-format every source file
format:
	git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 -i

clean:
	rm -rf $(BUILD)
