# Siliceo.  `make help` lists what there is.
#
# Objects and programs go to $(BUILD).  Variables a user may set: BUILD, CC,
# CFLAGS, SAN=address,undefined or SAN=thread, WERROR=1, DEBUG=1, PREFIX, DESTDIR.

PREFIX  ?= /usr/local
SAN     ?=
comma   := ,
BUILD   ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
V       ?= 0
Q       := $(if $(filter 0,$(V)),@)

PACKAGES := libzmq libcjson libmicrohttpd libsodium libutf8proc libxxhash inih sqlite3 libcurl libsystemd gnutls
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
# msgpack-c's pkg-config name differs: msgpack (Debian 12), msgpack-c (Debian 13, Ubuntu 24.04).
MSGPACK  := $(shell pkg-config --exists msgpack-c && echo msgpack-c || echo msgpack)
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES) $(MSGPACK))
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
ifeq ($(PKG_LIBS),)
$(error pkg-config finds not all of: $(PACKAGES) $(MSGPACK); `sh deploy/install.sh --packages` installs them)
endif
endif

# PostgreSQL as the ledger of several coordinators; without its library SQLite alone is there.
LIBPQ    ?= $(shell pkg-config --exists libpq && echo libpq)
ifneq ($(LIBPQ),)
PKG_CFLAGS += $(shell pkg-config --cflags $(LIBPQ)) -DSILICEO_LIBPQ
PKG_LIBS   += $(shell pkg-config --libs $(LIBPQ))
endif

CFLAGS  ?= -O2 -g
STD     := -std=c11 -D_GNU_SOURCE -I. -pthread
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
           -Wold-style-definition -Wpointer-arith -Wcast-qual -Wwrite-strings -Wvla -Wundef \
           -Wformat=2 -Wimplicit-fallthrough -Wdouble-promotion -Wswitch-enum -fno-common
WARN_COMMON := -Wconversion -Wsign-conversion
# Every a*b+c of the kernels that must not depend on the compiler is written as fmaf.
NUMERIC := -ffp-contract=off -fno-math-errno
ALL_CFLAGS = $(STD) $(WARN) $(if $(WERROR),-Werror) $(NUMERIC) $(CFLAGS) $(PKG_CFLAGS) \
             $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -DSILICEO_DEBUG) \
             $(if $(DEBUG),-DSILICEO_DEBUG) -DSILICEO_BUILD='"$(VERSION)"' -MMD -MP
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
# lib/ beside a program holds its libraries in a bundle; the old tag so that theirs are found too.
LDFLAGS += -pthread $(if $(SAN),-fsanitize=$(SAN)) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib'
LDLIBS  += $(PKG_LIBS) -lm -ldl

# gcc needs ten minutes for one intrinsics file under UBSan, so these go without it (their
# oracles, the same code in plain C, have it) and keep the address and thread sanitizers.
# -g1 spares it the tracking of variables, which takes minutes more.
TIER_SPEED  := $(if $(SAN),-O1 -g1 -fno-sanitize=undefined,-O3)
TIER_AVX2   := -mavx2 -mfma -mf16c -mbmi2 $(TIER_SPEED)
TIER_AVX512 := -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni $(TIER_SPEED)

sources = $(sort $(wildcard $(addsuffix /*.c,$(1))))
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

COMMON_SRC      := $(call sources,common)
KERNELS_SRC     := $(call sources,kernels/cpu)
WORKER_SRC      := $(filter-out worker/main.c,$(call sources,worker worker/text worker/model worker/memory))
COORDINATOR_SRC := $(filter-out coordinator/main.c,$(call sources,coordinator))
TEST_SRC        := $(filter-out $(if $(SAN),tests/kernels/test_cuda_kernels.c tests/kernels/test_cuda_launches.c $(wildcard tests/golden/test_cuda_*.c)),$(call sources,tests/unit tests/kernels tests/golden))
MAKE_MODEL_SRC  := $(sort $(wildcard tests/benchmark/make_model*.c))
BENCH_CUDA_PARTS := $(sort $(wildcard tests/benchmark/bench_cuda_*.c))
TOOL_SRC        := $(filter-out $(MAKE_MODEL_SRC) $(BENCH_CUDA_PARTS) tests/benchmark/placement_sim.c,$(call sources,tests/benchmark tests/fleet tests/clients))
FUZZ_SRC        := $(filter tests/fuzz/fuzz_%,$(call sources,tests/fuzz))

LIBS     := $(BUILD)/libcoordinator.a $(BUILD)/libworker.a $(BUILD)/libkernels.a $(BUILD)/libcommon.a
PROGRAMS := $(BUILD)/siliceo-coordinator $(BUILD)/siliceo-worker $(BUILD)/make_model
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter tests/unit/test_% tests/kernels/test_% tests/golden/test_%,$(TEST_SRC)))
REPLAYS  := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(FUZZ_SRC))
TOOLS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TOOL_SRC))

# CUDA: every kernel for each architecture, and PTX of the oldest for cards that come later, in
# one fatbin inside the worker.  CUDA_ARCH=90 builds for one architecture alone (quick turns).
NVCC        ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH   ?= 75 86 89 90
# The kernels are the same for every build folder of a clone, so build/, build-* and the check
# builds below them share one compilation.
CUDA_OUT    ?= $(if $(filter build build/% build-%,$(BUILD)),build/cuda,$(BUILD)/cuda)
CUDA_PTX    := $(firstword $(CUDA_ARCH))
CUDA_SRC    := $(sort $(wildcard kernels/cuda/*.cu kernels/cuda/*.cuh kernels/cuda/*.h kernels/*.h common/quant_type.h))
NVCC_FLAGS  := -std=c++17 -I. -fmad=false -Xptxas -v
CUDA_IMAGES := $(CUDA_ARCH:%=$(CUDA_OUT)/sm_%.cubin) $(CUDA_OUT)/compute_$(CUDA_PTX).ptx
FATBIN_OBJ  := $(BUILD)/obj/kernels/cuda/fatbin.o
PAGE_OBJ    := $(BUILD)/obj/coordinator/dashboard/page.o

all: $(PROGRAMS) ## build siliceo-coordinator, siliceo-worker and make_model (the default)

$(BUILD)/obj/common/%.o: common/%.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(ALL_CFLAGS) $(WARN_COMMON) -c $< -o $@
$(BUILD)/obj/%_avx2.o: %_avx2.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(ALL_CFLAGS) $(TIER_AVX2) -c $< -o $@
$(BUILD)/obj/%_avx512.o: %_avx512.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(ALL_CFLAGS) $(TIER_AVX512) -c $< -o $@
$(BUILD)/obj/%.o: %.cc
	@mkdir -p $(@D)
	$(if $(Q),@echo "  c++   $<")
	$(Q)$(CXX) -std=c++17 -I. -O1 -g -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas $(if $(WERROR),-Werror) -MMD -MP -c $< -o $@
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  cc    $<")
	$(Q)$(CC) $(ALL_CFLAGS) -c $< -o $@

$(CUDA_OUT)/sm_%.cubin: $(CUDA_SRC)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  nvcc  kernels/cuda for sm_$*")
	$(Q)$(NVCC) $(NVCC_FLAGS) -arch=sm_$* -cubin kernels/cuda/all.cu -o $@ 2>$(@:.cubin=.txt) || { cat $(@:.cubin=.txt) >&2; false; }
$(CUDA_OUT)/compute_%.ptx: $(CUDA_SRC)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  nvcc  kernels/cuda for compute_$*")
	$(Q)$(NVCC) $(filter-out -Xptxas -v,$(NVCC_FLAGS)) -arch=compute_$* -ptx kernels/cuda/all.cu -o $@
$(CUDA_OUT)/kernels.fatbin: $(CUDA_IMAGES)
	$(if $(Q),@echo "  fatbin $@")
	$(Q)$(dir $(NVCC))fatbinary --64 --create=$@ $(foreach a,$(CUDA_ARCH),--image3=kind=elf,sm=$(a),file=$(CUDA_OUT)/sm_$(a).cubin) --image3=kind=ptx,sm=$(CUDA_PTX),file=$(CUDA_OUT)/compute_$(CUDA_PTX).ptx
ifneq ($(NVCC),)
$(FATBIN_OBJ): $(CUDA_OUT)/kernels.fatbin
$(FATBIN_OBJ): FATBIN_FLAGS = -DFATBIN_FILE='"$(CUDA_OUT)/kernels.fatbin"'
endif
$(FATBIN_OBJ): kernels/cuda/fatbin.S
	@mkdir -p $(@D)
	$(if $(NVCC),,@echo "  no nvcc: CPU worker only")
	$(if $(Q),@echo "  as    $<")
	$(Q)$(CC) $(FATBIN_FLAGS) -c $< -o $@

$(BUILD)/libcommon.a: $(call objects,$(COMMON_SRC))
$(BUILD)/libkernels.a: $(call objects,$(KERNELS_SRC)) $(FATBIN_OBJ)
$(BUILD)/libworker.a: $(call objects,$(WORKER_SRC))
$(PAGE_OBJ): coordinator/dashboard/page.S coordinator/dashboard/index.html
	@mkdir -p $(@D)
	$(if $(Q),@echo "  as    $<")
	$(Q)$(CC) -c $< -o $@
$(BUILD)/libcoordinator.a: $(call objects,$(COORDINATOR_SRC)) $(PAGE_OBJ)
$(LIBS):
	@rm -f $@
	$(if $(Q),@echo "  ar    $@")
	$(Q)$(AR) rcs $@ $^

LINK = $(CC) $(LDFLAGS) -Wl,--as-needed -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)
$(BUILD)/siliceo-coordinator: $(BUILD)/obj/coordinator/main.o $(BUILD)/libcoordinator.a $(BUILD)/libcommon.a
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(LINK)
$(BUILD)/siliceo-worker: $(BUILD)/obj/worker/main.o $(BUILD)/libworker.a $(BUILD)/libkernels.a $(BUILD)/libcommon.a
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(LINK)
$(BUILD)/make_model: $(call objects,$(MAKE_MODEL_SRC)) $(BUILD)/libcommon.a
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(LINK)
$(TESTS) $(TOOLS): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(LIBS)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(LINK) -lcmocka
# What is around the engine is tested with a double, which stands before the libraries.
$(BUILD)/tests/unit/test_engine_loop: $(BUILD)/obj/tests/unit/engine_double.o
$(addprefix $(BUILD)/tests/unit/,test_coordinator_link test_coordinator_link_peers): $(addprefix $(BUILD)/obj/tests/unit/,engine_double.o router.o link_node.o)
$(addprefix $(BUILD)/tests/unit/,test_gguf test_gguf_lies test_gguf_shards): $(BUILD)/obj/tests/unit/gguf_image.o
$(addprefix $(BUILD)/tests/unit/,test_prefix_cache test_prefix_disk): $(BUILD)/obj/tests/unit/prefix_rig.o
$(addprefix $(BUILD)/tests/unit/,test_prefix_engine test_prefix_ahead): $(BUILD)/obj/tests/unit/prefix_pair.o
$(addprefix $(BUILD)/tests/unit/,test_scheduler test_scheduler_preemption test_scheduler_forks test_scheduler_slices): $(BUILD)/obj/tests/unit/scheduler_bench.o
# The CUDA kernels run on the CPU by fibers, which the sanitizers cannot follow.
CUDA_CASE_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard tests/kernels/cuda_*cases.c)))
CUDA_CASES := $(CUDA_CASE_OBJ) $(BUILD)/obj/tests/kernels/cuda_emu.o
$(BUILD)/tests/kernels/test_cuda_kernels: $(CUDA_CASES)
$(BUILD)/tests/kernels/test_cuda_kernels: LDLIBS += -lstdc++
$(BUILD)/tests/benchmark/bench_cuda: $(CUDA_CASE_OBJ) $(call objects,$(BENCH_CUDA_PARTS))
$(BUILD)/tests/benchmark/placement: $(BUILD)/obj/tests/benchmark/placement_sim.o
# A driver for machines without a GPU: the kernels' sources behind libcuda's functions.
CUDA_DOUBLE := $(BUILD)/tests/libcuda_double.so
$(CUDA_DOUBLE): tests/golden/cuda_double.c tests/kernels/cuda_emu.cc $(CUDA_SRC) $(wildcard tests/kernels/*.h) worker/cuda_driver.h
	@mkdir -p $(@D)
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(CXX) -std=c++17 -D_GNU_SOURCE -I. -O2 -ffp-contract=off -fPIC -w -c tests/kernels/cuda_emu.cc -o $@.emu.o
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -I. -O1 -fPIC $(WARN) -c tests/golden/cuda_double.c -o $@.driver.o
	$(Q)$(CXX) -shared -pthread -o $@ $@.driver.o $@.emu.o
# A fuzz target linked with replay.c runs its committed corpus; `make fuzz` links libFuzzer.
$(REPLAYS): $(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/replay.o $(LIBS)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  ld    $@")
	$(Q)$(LINK)

# Programs first, then scripts; what a sanitizer build runs leaves out what needs no C of ours.
TEST_NAMES    := $(patsubst $(BUILD)/tests/%,%,$(TESTS) $(REPLAYS))
TEST_SCRIPTS  := $(patsubst tests/%,%,$(sort $(wildcard tests/kernels/test_*.sh tests/fleet/test_*.sh tests/fleet/test_*.mjs tests/clients/test_*.mjs tests/browser/test_*.mjs)))
THREAD_TESTS  := $(filter unit/test_ring unit/test_prefix_cache unit/test_prefix_disk unit/test_thread kernels/test_pool unit/test_coordinator_link unit/test_coordinator_link_peers unit/test_engine_loop,$(TEST_NAMES))
# Minutes of arithmetic on paths that other tests run under the sanitizers as well.
SAN_SKIPS     := golden/test_chunks golden/test_tiers golden/test_company golden/test_kv_types clients/test_conversations.mjs clients/test_integrity.mjs clients/test_schemas.mjs clients/test_ai_sdk.mjs clients/test_langchain.mjs clients/test_zod.mjs fleet/test_failover_forms.mjs fleet/test_deploy.mjs browser/test_dashboard.mjs
SAN_SKIPS     += golden/test_poison golden/test_recall golden/test_speculation unit/test_budget clients/test_embeddings.mjs clients/test_equality.mjs
# Whose durations are those of the settings, a tenth of them otherwise.
SOAK_TESTS    := health failover faults network behind_proxy
SAN_ENV := ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
           TSAN_OPTIONS=suppressions=tests/tsan.supp:halt_on_error=1

test: test-programs $(if $(SAN),,tests/clients/node_modules) ## run all tests; SAN=address,undefined or SAN=thread in a build of its own
	@$(SAN_ENV) sh tests/run.sh $(BUILD) $(filter-out $(if $(SAN),$(SAN_SKIPS)),$(TEST_NAMES) $(TEST_SCRIPTS))
thread-programs: $(THREAD_TESTS:%=$(BUILD)/tests/%) $(BUILD)/siliceo-coordinator $(BUILD)/tests/fleet/fake_worker
test-threads: thread-programs ## only what has threads, for SAN=thread
	@$(SAN_ENV) sh tests/run.sh $(BUILD) $(THREAD_TESTS) fleet/test_ends.mjs fleet/test_ledger.mjs fleet/test_upstream.mjs
soak: test-programs ## 30 minutes of chaos, then what goes wrong in fleets with every duration at full length (an hour)
	@SILICEO_CHAOS_S=$(or $(SECONDS),1800) SILICEO_TEST_LIMIT_S=3600 sh tests/run.sh $(BUILD) fleet/test_chaos.mjs
	@SILICEO_TEST_SCALE=10 SILICEO_TEST_LIMIT_S=7200 sh tests/run.sh $(BUILD) $(SOAK_TESTS:%=fleet/test_%.mjs)
check: ## static checks: format, -Werror with gcc and clang, clang-tidy, cppcheck, scan-build, layers
	@sh tests/check.sh $(BUILD)
tests/clients/node_modules: tests/clients/package.json
	$(if $(Q),@echo "  npm   tests/clients")
	$(Q)cd tests/clients && npm ci --no-audit --no-fund --loglevel=error && touch node_modules || \
	{ rm -rf node_modules; echo "npm ci failed: the client tests that need its packages will, too"; }

fuzz: ## FUZZ=wire SECONDS=60: run one libFuzzer target on its corpus (needs clang)
	$(MAKE) CC=clang SAN=address,undefined,fuzzer-no-link BUILD=build-fuzz build-fuzz/obj/tests/fuzz/fuzz_$(FUZZ).o $(LIBS:$(BUILD)/%=build-fuzz/%)
	clang -fsanitize=address,undefined,fuzzer -o build-fuzz/fuzz_$(FUZZ) build-fuzz/obj/tests/fuzz/fuzz_$(FUZZ).o $(LIBS:$(BUILD)/%=build-fuzz/%) $(LDLIBS)
	mkdir -p build-fuzz/corpus/$(FUZZ)
	build-fuzz/fuzz_$(FUZZ) -max_total_time=$(or $(SECONDS),60) -max_len=$(or $(MAX_LEN),65536) build-fuzz/corpus/$(FUZZ) tests/fuzz/corpus/$(FUZZ)

install: all ## copy programs and profiles below $(DESTDIR)$(PREFIX)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/siliceo/profiles
	install -m 755 $(BUILD)/siliceo-coordinator $(BUILD)/siliceo-worker $(DESTDIR)$(PREFIX)/bin/
	install -m 644 deploy/profiles/*.conf $(DESTDIR)$(PREFIX)/share/siliceo/profiles/
	install -m 755 deploy/probe.sh $(DESTDIR)$(PREFIX)/bin/siliceo-probe
	install -d $(DESTDIR)$(PREFIX)/share/siliceo/prometheus $(DESTDIR)$(PREFIX)/share/siliceo/grafana $(DESTDIR)$(PREFIX)/share/doc/siliceo
	install -m 644 deploy/prometheus/*.yml $(DESTDIR)$(PREFIX)/share/siliceo/prometheus/
	install -m 644 deploy/grafana/siliceo.json $(DESTDIR)$(PREFIX)/share/siliceo/grafana/
	install -m 644 README.md deploy/tailscale.md deploy/growing.md $(DESTDIR)$(PREFIX)/share/doc/siliceo/

bundle: all ## a folder (and a tar) with the programs and the shared libraries they need
	@sh deploy/bundle.sh $(BUILD)

test-programs: $(PROGRAMS) $(CUDA_DOUBLE) $(TESTS) $(TOOLS) $(REPLAYS) ## build everything that the tests run

clean: ## remove this build folder
	rm -rf $(BUILD)
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 20

.PHONY: all soak bundle test test-threads check fuzz install test-programs clean help
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell [ -d $(BUILD)/obj ] && find $(BUILD)/obj -name '*.d')
