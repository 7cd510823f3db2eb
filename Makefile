# Short names for common Meson and Ninja commands. `make help` lists the targets.

BUILD        ?= build
JOBS         ?= $(shell nproc)
MESON_ARGS   ?=
TEST_ARGS    ?=
BENCH_ARGS   ?=
SOAK_PERCENT ?= 100
CLANG        ?= clang-14
CLANG_FORMAT ?= clang-format-14

MESON     = meson
NINJA     = ninja -j$(JOBS)
RUN_TESTS = scripts/run-tests -j $(JOBS)

# The tests that run under the sanitizers. The lint suite does not run the program, and the
# interop suite mostly exercises other people's: both run in the normal build.
SANITIZED = --suite unit --suite sim --suite fuzz --suite conformance --suite functional

# Queues, workers and recovery, under ThreadSanitizer in the long suite. It does not see what processes share.
TSAN_LONG = clan clan_rpc clan_tcp clan_handshake push ring_contract_uring ring_contract_restricted work tls_workers \
	serve-flash serve-flash-cache

FORMATTED = $(shell find src include tests bench examples -name '*.[ch]' -o -name '*.cc' -o -name '*.hh' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help run test test-vm test-long without build deb oci deps deps-deb deps-oci deps-test asan tsan clang fuzz bench \
	check-format format lint install clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables: BUILD=dir JOBS=n MESON_ARGS='-Dwerror=true ...' TEST_ARGS='name ...'"
	@echo "             make test-long SOAK_PERCENT=10"
	@echo "             make run DISK=/path/to/disk.img PORT=10809"

run: deps ## build, serve a sample disk on loopback, show how to reach it; Ctrl-C ends it
	@$(MAKE) --no-print-directory compile
	@scripts/run-demo $(BUILD)/gmblock

test: deps-test $(BUILD)/.gmblock-tests ## build what the tests need and run all but test-vm, or those in TEST_ARGS
	@$(RUN_TESTS) -C $(BUILD) $(TEST_ARGS)

test-vm: deps-test $(BUILD)/.gmblock-tests ## run the tests that need kernels of their own, in QEMU guests
	@$(RUN_TESTS) -C $(BUILD) --suite vm --logbase testlog-vm $(TEST_ARGS)

test-long: deps-test $(BUILD)/.gmblock-tests ## run the long tests for hours (simulation seeds, killed servers, automatic TLS key changes), then fuzz; SOAK_PERCENT shortens them
	@SOAK_PERCENT=$(SOAK_PERCENT) $(RUN_TESTS) -C $(BUILD) --setup soak --suite soak $(TEST_ARGS)
	$(if $(TEST_ARGS),,@$(MAKE) --no-print-directory tsan SANITIZED='$(TSAN_LONG)')
	$(if $(TEST_ARGS),,@$(MAKE) --no-print-directory without)
	$(if $(TEST_ARGS),,CC=$(CLANG) FUZZ_JOBS=$(JOBS) FUZZ_SECONDS=$${FUZZ_SECONDS:-$$((3 * $(SOAK_PERCENT)))} tests/fuzz/run.sh)

deb: deps-deb ## build the Debian packages in build-deb/
	@JOBS=$(JOBS) scripts/make-deb

oci: deps-oci ## build an OCI image with the packages, as a layout in build-oci/
	@JOBS=$(JOBS) scripts/make-deb --if-changed
	@scripts/make-oci

build: deps compile ## build the program in build/

deps: ## install the missing Debian packages that building needs
	@scripts/install-deps run

deps-test: ## install the missing Debian packages that the suite needs
	@scripts/install-deps test

deps-deb:
	@scripts/install-deps deb

deps-oci:
	@scripts/install-deps oci

# `make run` must not need the test libraries, so a build directory it makes leaves tests/ out;
# the first `make test` in the same directory turns them on and leaves a stamp.
.PHONY: compile
compile: $(BUILD)/build.ninja
	$(NINJA) -C $(BUILD)

$(BUILD)/build.ninja:
	$(MESON) setup -Dtests=false $(MESON_ARGS) $(BUILD)

$(BUILD)/.gmblock-tests:
	if [ -f $(BUILD)/build.ninja ]; then $(MESON) configure -Dtests=true $(MESON_ARGS) $(BUILD); \
		else $(MESON) setup -Dtests=true $(MESON_ARGS) $(BUILD); fi
	touch $@

asan: deps-test ## run the suite under AddressSanitizer and UndefinedBehaviorSanitizer (build-asan/)
	[ -f build-asan/build.ninja ] || $(MESON) setup -Dtests=true -Doptimization=1 -Db_sanitize=address,undefined \
		-Dc_args='-fno-omit-frame-pointer -fno-sanitize-recover=all' $(MESON_ARGS) build-asan
	@$(RUN_TESTS) -C build-asan --setup sanitize $(SANITIZED) $(TEST_ARGS)

tsan: deps-test ## run the suite under ThreadSanitizer (build-tsan/)
	[ -f build-tsan/build.ninja ] || CC=$(CLANG) $(MESON) setup -Dtests=true -Db_sanitize=thread \
		-Db_lundef=false -Dc_args=-fno-omit-frame-pointer $(MESON_ARGS) build-tsan
	@$(RUN_TESTS) -C build-tsan --setup sanitize $(SANITIZED) $(TEST_ARGS)

clang: deps-test ## build with the second compiler, warnings as errors, and run the suite (build-clang/)
	[ -f build-clang/build.ninja ] || CC=$(CLANG) $(MESON) setup -Dtests=true -Dwerror=true \
		$(MESON_ARGS) build-clang
	@$(RUN_TESTS) -C build-clang $(TEST_ARGS)

without: deps-test ## compile once without each feature whose dependency can be missing (build-without-*/)
	@for feature in fuse fabric clan sockets omniorb tls; do \
		tests=true; [ $$feature != tls ] || tests=false; \
		[ -f build-without-$$feature/build.ninja ] || \
			$(MESON) setup -Dtests=$$tests -Dwerror=true -D$$feature=disabled build-without-$$feature || exit 1; \
		$(NINJA) -C build-without-$$feature && build-without-$$feature/gmblock --version || exit 1; \
	done

fuzz: deps-test ## run every fuzz target for FUZZ_SECONDS (60) of processor time (build-fuzz/)
	CC=$(CLANG) FUZZ_JOBS=$(JOBS) tests/fuzz/run.sh

bench: deps-test ## compare with nbdkit, qemu-nbd and nbd-server on this machine (as root)
	@$(MAKE) --no-print-directory compile
	bench/peers --gmblock $(BUILD)/gmblock $(BENCH_ARGS)

lint: deps-test $(BUILD)/.gmblock-tests ## only the checks on the source itself
	@$(RUN_TESTS) -C $(BUILD) --suite lint $(TEST_ARGS)

check-format: ## list the C files that `make format` would change
	$(CLANG_FORMAT) --dry-run --Werror $(FORMATTED)

format: ## format every C file in place
	$(CLANG_FORMAT) -i $(FORMATTED)

install: build ## install the program, manual pages and systemd units (DESTDIR works)
	$(MESON) install --no-rebuild -C $(BUILD)
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

clean: ## remove every build directory
	rm -rf $(BUILD) build-asan build-tsan build-clang build-fuzz build-without-* build-ci-*
