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
# Where the command looks for its preload library, wherever BINDIR and LIBDIR are. Not shortened:
# the command looks from where a BINDIR that is a link leads to.
PRELOADDIR = $(BINDIR)/../lib/deepheap

# Seconds of the lost-write hunt.
SECONDS ?= 60
# Schedules that the pager is played with.
SCHEDULES ?= 60
# Packages of kernels to test under; none: those that scripts/kernels.sh names.
KERNELS ?=
# Options of the benchmark, for example BENCH_OPTIONS='--case uniform-read --runs 1'.
BENCH_OPTIONS ?=

.DEFAULT_GOAL := help
.PHONY: help deps build test fmt lint unit scripts install-check schedules hunt demo demo-short bench \
	bench-objects bench-papers apps apps-check memcached-check kernels install uninstall clean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Installs what building, testing and the demo need, or says what is missing.
	@scripts/deps.sh

build: ## Builds the command and the libraries into target/release.
	$(CARGO) build --release --workspace

test: deps fmt lint unit schedules scripts install-check apps-check hunt demo-short ## Everything that CI runs.

fmt: ## Checks the formatting.
	$(CARGO) fmt --all --check

lint: ## Checks with clippy; a warning is an error.
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p deepheap-pager --features schedules --all-targets -- -D warnings
	$(CARGO) clippy -p deepheap-heap --features strict --all-targets -- -D warnings

unit: ## Runs the tests of all crates; rooms, style and documents are tests, too.
	$(CARGO) test --workspace --no-run
	timeout --kill-after=30 60m $(CARGO) test --workspace --no-fail-fast
	timeout --kill-after=30 10m $(CARGO) test -p deepheap-heap --features strict

schedules: ## Plays the pager with threads of which a seed decides who goes on (SCHEDULES=60).
	DEEPHEAP_SCHEDULES=$(SCHEDULES) $(CARGO) test -p deepheap-pager --features schedules --lib \
		schedules

scripts: ## Checks the shell scripts and runs their tests.
	shellcheck scripts/*.sh examples/papers/*/*.sh .ci/run
	scripts/redis_values.py self-test

install-check: build ## Installs into a scratch folder, builds programs against it, uninstalls.
	MAKE="$(MAKE)" scripts/install_check.sh

hunt: build ## Hunts for lost writes for a minute (SECONDS=60); the sums must be exact.
	$(RELEASE)/deepheap-bench hunt --seconds $(SECONDS)

demo: deps build ## Runs redis-server with 1 GiB of values under a RAM budget of 256 MiB.
	scripts/demo.sh

demo-short: build ## The same, smaller: 64 MiB.
	scripts/demo.sh --short

bench: build ## Prints the benchmark table against swap and mmap; swap needs root.
	$(RELEASE)/deepheap-bench table $(BENCH_OPTIONS)

bench-objects: build ## Prints the benchmark table of objects; swap and mmap need root.
	$(RELEASE)/deepheap-bench objects $(BENCH_OPTIONS)

# Without the source of memcached, which is fetched, its points say so and the others go on.
bench-papers: build apps ## Repeats what the papers measured, into docs/papers; swap, mmap: root.
	-OUT="$(abspath $(TARGET))/apps/memcached" DEEPHEAP="$(abspath $(RELEASE))" \
		examples/papers/memcached/build.sh
	$(RELEASE)/deepheap-bench papers $(BENCH_OPTIONS)

apps: build ## Builds the applications of the papers into target/apps.
	$(MAKE) -C examples/papers DEEPHEAP="$(abspath $(RELEASE))" OUT="$(abspath $(TARGET))/apps"

apps-check: apps ## Runs the applications, small: malloc, pages and objects; all answers are right.
	APPS="$(abspath $(TARGET))/apps" scripts/apps_check.sh
	MEMCACHED_MAY_BE_MISSING=1 scripts/memcached_check.sh

memcached-check: apps ## Builds memcached with objects from fetched source, verifies its values.
	scripts/memcached_check.sh

kernels: ## Runs the tests under other kernels of Debian, in virtual machines; takes hours.
	scripts/kernels.sh $(KERNELS)

$(RELEASE)/deepheap $(RELEASE)/libdeepheap.so:
	$(CARGO) build --release --workspace

install: $(RELEASE)/deepheap $(RELEASE)/libdeepheap.so ## Installs below PREFIX (/usr/local).
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(PRELOADDIR)" \
		"$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/deepheap" \
		"$(DESTDIR)$(INCLUDEDIR)/deepheap" "$(DESTDIR)$(MANDIR)/man1" "$(DESTDIR)$(MANDIR)/man3" \
		"$(DESTDIR)$(DATADIR)/bash-completion/completions" \
		"$(DESTDIR)$(DATADIR)/zsh/site-functions" \
		"$(DESTDIR)$(DATADIR)/fish/vendor_completions.d"
	install -m 755 $(RELEASE)/deepheap $(RELEASE)/deepheap-bench "$(DESTDIR)$(BINDIR)"
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
			-e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
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
	$(RELEASE)/deepheap completions bash \
		>"$(DESTDIR)$(DATADIR)/bash-completion/completions/deepheap"
	$(RELEASE)/deepheap completions zsh >"$(DESTDIR)$(DATADIR)/zsh/site-functions/_deepheap"
	$(RELEASE)/deepheap completions fish \
		>"$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/deepheap.fish"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" -eq 0 ] && command -v ldconfig >/dev/null; then \
		ldconfig; \
	fi

uninstall: ## Removes what install installed, with the same PREFIX and DESTDIR.
	rm -f "$(DESTDIR)$(BINDIR)"/{deepheap,deepheap-bench}
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
	rm -f "$(DESTDIR)$(DATADIR)/bash-completion/completions/deepheap"
	rm -f "$(DESTDIR)$(DATADIR)/zsh/site-functions/_deepheap"
	rm -f "$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/deepheap.fish"

clean: ## Removes what was built.
	$(CARGO) clean
