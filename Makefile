# Makefile: one command for everything. `make help` lists them.
#
# Guarantees: builds only below target/; `install` and `uninstall` write only below
# $(DESTDIR) and the folders named below; nothing starts or stops a service of the system.

SHELL := /bin/bash
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR := $(firstword $(subst ., ,$(VERSION)))

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
# What programs are linked with so that they find the library; nothing where every loader looks.
RPATH = $(if $(filter /usr/lib /usr/lib/% /lib /lib/%,$(LIBDIR)),,-Wl,-rpath,$${libdir})
# Where the command looks for its preload library, wherever BINDIR and LIBDIR are. Not shortened:
# the command looks from where a BINDIR that is a link leads to.
PRELOADDIR = $(BINDIR)/../lib/deepheap

# Seconds of the lost-write hunt, and of each target that is fuzzed.
SECONDS ?= 60
# How much of each `make torture` does, and the folder of its heaps and file systems. `make maps-hunt`
# kills so many processes, too.
CRASH_POINTS ?= 200000
KILLS ?= 200
POWER_CUTS ?= 100
FUZZ_SECONDS ?= 600
DIR ?= $(TARGET)
# Schedules that the pager is played with.
SCHEDULES ?= 60
# Packages of kernels to test under; none: those that scripts/kernels.sh names.
KERNELS ?=
# How long the soak runs, and its options, for example SOAK_OPTIONS='--root --seed 7'.
HOURS ?= 8
SOAK_OPTIONS ?=
# Options of the conformance run, for example CONFORMANCE_OPTIONS='--only redis --ram 32M'.
CONFORMANCE_OPTIONS ?=
# Options of the benchmark, for example BENCH_OPTIONS='--case uniform-read --runs 1', or --small for
# real programs of 100 MiB.
BENCH_OPTIONS ?=
# The commit that `make guard` compares with, and its options, for example GUARD_OPTIONS='--only hot'.
COMMIT ?=
GUARD_OPTIONS ?=

# --workspace: whatever is built for a release, all crates are built, so that what they share is
# compiled once. (Beside the benchmarks some libraries have features that they lack alone.)
ALL ?=

.DEFAULT_GOAL := help
.PHONY: help deps build bench-build papers-build check test fmt lint unit scripts install-check schedules models \
	hunt maps-hunt torture soak fuzz fuzz-short sanitize demo demo-short demo-durable demo-durable-short demo-cache demo-cache-short demos-short wheel \
	deb release python-check recipes-check numpy-check bench bench-objects bench-papers bench-flashvm bench-flashmap \
	bench-hybridswap bench-durable guard book bench-real real-check real-deps apps apps-check \
	memcached-check containers-check kernels conformance install uninstall clean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Installs what building, testing and the demo need, or says what is missing.
	@scripts/deps.sh

build: ## Builds the command and the libraries into target/release.
	$(CARGO) build --release $(ALL)

bench-build: build ## Builds the benchmarks, the hunt and the torture; not installed.
	$(CARGO) build --release $(or $(ALL),-p deepheap-bench -p libdeepheap-load)

papers-build: build ## Builds the papers' experiments, and real programs.
	$(CARGO) build --release $(or $(ALL),-p deepheap-papers)

test: deps fmt ## All of CI.
	MAKE="$(MAKE)" scripts/test.sh

INNER := checks policy heap store residency pager
check: fmt ## Tests the rules of the repository and the inner crates, and plays some schedules.
	$(CARGO) test $(INNER:%=-p deepheap-%)
	$(MAKE) schedules SCHEDULES=10
	$(MAKE) models

fmt: ## Checks the formatting.
	$(CARGO) fmt --all --check

# With the tests' way to panic every crate is checked once, not twice.
lint: export CARGO_PROFILE_DEV_PANIC = unwind
lint: ## Checks with clippy, and the documentation of the code; a warning is an error.
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p deepheap-pager --features schedules --all-targets -- -D warnings
	$(CARGO) clippy -p deepheap-papers --features device-models --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps

unit: ## Runs the tests of all crates; rooms, style and documents are tests, too.
	scripts/unit.sh
	timeout --kill-after=30 10m $(CARGO) test --workspace --features deepheap/device-hook \
		--test second_tier bound

schedules: ## Plays the pager with threads of which a seed decides who goes on (SCHEDULES=60).
	DEEPHEAP_SCHEDULES=$(SCHEDULES) $(CARGO) test -p deepheap-pager --features schedules --lib \
		schedules

models: ## Plays small pieces of it with every value that the memory orders of C11 allow (loom).
	$(CARGO) test -p deepheap-pager --features schedules --lib models

scripts: ## Checks the shell scripts and runs their tests.
	shellcheck scripts/*.sh examples/papers/*/*.sh examples/shards/*.sh .ci/run
	scripts/redis_values.py self-test
	scripts/conformance.py self-test
	scripts/guard.py self-test
	examples/kubernetes/check.py
	scripts/book.sh --if-there

book: ## Builds the documents as a small site into target/book, with mdbook, which it may fetch.
	scripts/book.sh

install-check: build ## Installs into a scratch folder, builds programs against it, uninstalls.
	MAKE="$(MAKE)" scripts/install_check.sh

wheel: build ## Builds the Python package with its library into dist/.
	scripts/python.sh wheel

deb: build ## Builds Debian packages into dist/, and checks them with lintian.
	scripts/package.sh deb

release: ## Builds all that a release consists of into dist/, for glibc 2.31 and later.
	scripts/package.sh release

python-check: build ## Builds the Python package, installs it below target/, runs its tests.
	scripts/python.sh check

recipes-check: build ## Runs the recipes of docs/recipes.md, small: the same answers as without deepheap.
	scripts/recipes.py check

numpy-check: build ## Runs NumPy's own tests with all arrays on deepheap and without: the same results.
	scripts/python.sh numpy

hunt: bench-build ## Hunts for lost writes for a minute (SECONDS=60), half of it with a second tier.
	$(RELEASE)/deepheap-bench hunt --seconds $$(( ($(SECONDS) + 1) / 2 ))
	$(RELEASE)/deepheap-bench hunt --seconds $$(( ($(SECONDS) + 1) / 2 )) --tier .

# Its short form is among the tests of the crates.
torture: bench-build ## Durable heaps, long: CRASH_POINTS, KILLS, POWER_CUTS, FUZZ_SECONDS, DIR (root).
	DEEPHEAP_CRASH_POINTS=$(CRASH_POINTS) DEEPHEAP_FLIPS=all DEEPHEAP_FUZZ_SECONDS=$(FUZZ_SECONDS) \
		$(CARGO) test --release -p deepheap-store --test crash_points --test durable_failures \
		--test durable_heap --test fuzz_recovery -- --nocapture
	$(RELEASE)/deepheap-bench torture --kills $(KILLS) --power-cuts $(POWER_CUTS) --dir "$(DIR)"

soak: ## All that hunts for faults, in turns, with settings drawn at random (HOURS=8).
	scripts/soak.py --hours $(HOURS) $(SOAK_OPTIONS)

fuzz: ## Fuzzes readers of files, settings and requests, guided by coverage (SECONDS=60 each; KEEP=1).
	scripts/fuzz.sh $(SECONDS)

fuzz-short: ## The same 1000 inputs for each target, every time.
	scripts/fuzz.sh short

sanitize: ## Runs the tests of the inner crates, and the fuzzer's inputs, with AddressSanitizer.
	scripts/sanitize.sh

maps-hunt: ## Kills processes that share a map (KILLS=200); nothing may be lost.
	DEEPHEAP_KILLS=$(KILLS) $(CARGO) test -p deepheap-maps --test processes --test synced -- \
		--nocapture killed

demo: deps build ## Runs redis-server with 1 GiB of values under a RAM budget of 256 MiB.
	scripts/demo.sh

demo-short: build ## The same, smaller: 64 MiB.
	scripts/demo.sh --short

demo-durable: build ## Builds an index in a durable heap, kills it again and again, checks it.
	scripts/demo_durable.sh

demo-durable-short: build ## The same, smaller.
	scripts/demo_durable.sh --short

demo-cache: build ## A cache's index in a durable heap is killed with -9 again and again, and compared.
	scripts/demo_cache.sh

demo-cache-short: build ## The same, smaller.
	scripts/demo_cache.sh --short

demos-short: demo-short demo-durable-short demo-cache-short ## All demos, smaller.

bench: bench-build ## Prints the benchmark table against swap and mmap; swap needs root.
	$(RELEASE)/deepheap-bench table $(BENCH_OPTIONS)

bench-objects: bench-build ## Prints the benchmark table of objects; swap and mmap need root.
	$(RELEASE)/deepheap-bench objects $(BENCH_OPTIONS)

# Without the source of memcached, which is fetched, its points say so and the others go on.
bench-papers: papers-build apps ## Repeats what the papers measured, into docs/papers; swap, mmap: root.
	-OUT="$(abspath $(TARGET))/apps/memcached" DEEPHEAP="$(abspath $(RELEASE))" \
		examples/papers/memcached/build.sh
	$(RELEASE)/deepheap-papers papers $(BENCH_OPTIONS)

bench-flashvm: papers-build ## Measures paging policies one by one, into docs/papers; swap: root.
	$(RELEASE)/deepheap-papers flashvm --page docs/papers/flashvm.md $(BENCH_OPTIONS)

bench-hybridswap: papers-build ## Measures sequences of pages, into docs/papers; swap: root.
	$(RELEASE)/deepheap-papers flashvm --only sequences --page docs/papers/hybridswap.md
	$(CARGO) build --release -p deepheap-papers --features device-models
	$(RELEASE)/deepheap-papers hybridswap --page docs/papers/hybridswap.md $(BENCH_OPTIONS)

bench-flashmap: papers-build ## Measures maps beside mmap, into docs/papers; root, half an hour.
	$(RELEASE)/deepheap-papers flashmap --page docs/papers/flashmap.md $(BENCH_OPTIONS)

bench-durable: bench-build ## Compares a durable heap with LMDB and redb; needs root.
	$(RELEASE)/deepheap-bench durable $(BENCH_OPTIONS)

guard: ## Compares speed with COMMIT (where the branch left main, or HEAD~1 on main); fails if slower.
	scripts/guard.py $(if $(COMMIT),--commit "$(COMMIT)") $(GUARD_OPTIONS)

bench-real: papers-build ## Measures real programs against swap and zram, into docs/measured; needs root, hours.
	$(RELEASE)/deepheap-papers real $(BENCH_OPTIONS)

real-check: papers-build ## Runs three real programs alone and on deepheap: the same answers.
	$(RELEASE)/deepheap-papers real --quick --dir "$(abspath $(TARGET))"

real-deps: ## Installs the programs of `make bench-real`, or says which are missing.
	@scripts/deps.sh real

apps: bench-build ## Builds the applications of the papers into target/apps.
	$(MAKE) -C examples/papers DEEPHEAP="$(abspath $(RELEASE))" OUT="$(abspath $(TARGET))/apps"

apps-check: apps ## Runs the applications, small: malloc, pages and objects; all answers are right.
	APPS="$(abspath $(TARGET))/apps" scripts/apps_check.sh
	MEMCACHED_MAY_BE_MISSING=1 scripts/memcached_check.sh

memcached-check: apps ## Builds memcached with objects from fetched source, verifies its values.
	scripts/memcached_check.sh

containers-check: build ## Runs Redis and Python in containers, as root and rootless; root makes their files once.
	@scripts/deps.sh containers || true
	scripts/containers_check.sh

kernels: ## Runs the tests under other kernels of Debian, in virtual machines; takes hours.
	scripts/kernels.sh $(KERNELS)

conformance: build ## Runs other programs' test suites under deepheap; fetches them, takes hours.
	scripts/conformance.py $(CONFORMANCE_OPTIONS)

$(RELEASE)/deepheap $(RELEASE)/libdeepheap.so:
	$(CARGO) build --release

install: $(RELEASE)/deepheap $(RELEASE)/libdeepheap.so ## Installs below PREFIX (/usr/local).
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(PRELOADDIR)" \
		"$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/deepheap" \
		"$(DESTDIR)$(INCLUDEDIR)/deepheap" "$(DESTDIR)$(MANDIR)/man1" "$(DESTDIR)$(MANDIR)/man3" \
		"$(DESTDIR)$(DATADIR)/bash-completion/completions" \
		"$(DESTDIR)$(DATADIR)/zsh/site-functions" \
		"$(DESTDIR)$(DATADIR)/fish/vendor_completions.d"
	install -m 755 $(RELEASE)/deepheap "$(DESTDIR)$(BINDIR)"
	install -m 644 $(RELEASE)/libdeepheap_preload.so "$(DESTDIR)$(PRELOADDIR)"
	install -m 644 $(RELEASE)/libdeepheap.a "$(DESTDIR)$(LIBDIR)"
	install -m 644 $(RELEASE)/libdeepheap.so "$(DESTDIR)$(LIBDIR)/libdeepheap.so.$(VERSION)"
	ln -sf libdeepheap.so.$(VERSION) "$(DESTDIR)$(LIBDIR)/libdeepheap.so.$(MAJOR)"
	ln -sf libdeepheap.so.$(MAJOR) "$(DESTDIR)$(LIBDIR)/libdeepheap.so"
	install -m 644 include/deepheap.h include/deepheap.hpp "$(DESTDIR)$(INCLUDEDIR)"
	install -m 644 include/deepheap/*.h "$(DESTDIR)$(INCLUDEDIR)/deepheap"
	@for template in packaging/deepheap.pc.in packaging/deepheapConfig.cmake.in \
		packaging/deepheapConfigVersion.cmake.in; do \
		case $$template in \
			*.pc.in) folder=pkgconfig ;; \
			*) folder=cmake/deepheap ;; \
		esac; \
		name=$$(basename $$template .in); \
		sed -e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' -e 's|@PREFIX@|$(PREFIX)|g' \
			-e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@RPATH@|$(RPATH)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
			$$template >"$(DESTDIR)$(LIBDIR)/$$folder/$$name" || exit 1; \
		chmod 644 "$(DESTDIR)$(LIBDIR)/$$folder/$$name"; \
	done
	$(RELEASE)/deepheap man "$(DESTDIR)$(MANDIR)/man1"
	install -m 644 man/*.3 "$(DESTDIR)$(MANDIR)/man3"
	@for page in dh_calloc dh_realloc dh_free dh_aligned_alloc dh_usable_size dh_init dh_strerror \
		dh_stats dh_stats_json; do \
		ln -sf dh_malloc.3 "$(DESTDIR)$(MANDIR)/man3/$$page.3"; \
	done
	ln -sf dh_oalloc.3 "$(DESTDIR)$(MANDIR)/man3/dh_ostride.3"
	@for page in dh_write dh_gather dh_scatter dh_prefetch dh_pin dh_unpin dh_advise; do \
		ln -sf dh_read.3 "$(DESTDIR)$(MANDIR)/man3/$$page.3"; \
	done
	@for page in dh_unmap dh_remap dh_sync dh_map_advise dh_map_stats; do \
		ln -sf dh_map.3 "$(DESTDIR)$(MANDIR)/man3/$$page.3"; \
	done
	@for page in dh_close dh_last_error dh_heap_malloc dh_heap_aligned_alloc dh_heap_oalloc \
		dh_set_root dh_root dh_checkpoint dh_checkpoint_info dh_checkpoint_async \
		dh_checkpoint_wait dh_snapshot dh_remove_snapshot; do \
		ln -sf dh_open.3 "$(DESTDIR)$(MANDIR)/man3/$$page.3"; \
	done
	$(RELEASE)/deepheap completions bash \
		>"$(DESTDIR)$(DATADIR)/bash-completion/completions/deepheap"
	$(RELEASE)/deepheap completions zsh >"$(DESTDIR)$(DATADIR)/zsh/site-functions/_deepheap"
	$(RELEASE)/deepheap completions fish \
		>"$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/deepheap.fish"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" -eq 0 ] && command -v ldconfig >/dev/null; then \
		ldconfig; \
	fi

uninstall: ## Removes what install installed, with the same PREFIX and DESTDIR.
	rm -f "$(DESTDIR)$(BINDIR)"/deepheap
	rm -rf "$(DESTDIR)$(PRELOADDIR)" "$(DESTDIR)$(LIBDIR)/cmake/deepheap"
	rm -f "$(DESTDIR)$(LIBDIR)"/libdeepheap.{a,so,so.$(MAJOR),so.$(VERSION)}
	rm -f "$(DESTDIR)$(LIBDIR)/pkgconfig/deepheap.pc"
	rm -f "$(DESTDIR)$(INCLUDEDIR)"/deepheap.{h,hpp}
	rm -rf "$(DESTDIR)$(INCLUDEDIR)/deepheap"
	rm -f "$(DESTDIR)$(MANDIR)/man1"/{deepheap,deepheap-*}.1
	rm -f "$(DESTDIR)$(MANDIR)/man3"/{deepheap.h,dh_malloc,dh_calloc,dh_realloc,dh_free}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{aligned_alloc,usable_size,init,strerror}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{stats,stats_json,oalloc,ostride,read,write,gather}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{scatter,prefetch,pin,unpin,advise}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{open,close,last_error,heap_malloc,heap_oalloc}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{heap_aligned_alloc,set_root,root}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_checkpoint{,_info,_async,_wait}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{snapshot,remove_snapshot}.3
	rm -f "$(DESTDIR)$(MANDIR)/man3"/dh_{map,unmap,remap,sync,map_advise,map_stats}.3
	rm -f "$(DESTDIR)$(DATADIR)/bash-completion/completions/deepheap"
	rm -f "$(DESTDIR)$(DATADIR)/zsh/site-functions/_deepheap"
	rm -f "$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/deepheap.fish"

clean: ## Removes what was built.
	$(CARGO) clean
