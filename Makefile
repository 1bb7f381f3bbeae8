# `make` alone prints what there is. Building takes Go, and TinyGo 0.39 or newer on PATH or
# by TINYGO=, or else a Debian with a C++ compiler, where it makes its own. Servers and tools
# that a target takes come by build/fetch: tests and `run ENVOY=1` also want Python 3 with
# venv and pip, openssl, curl, and Debian's apt-get or a redis-server on PATH.

# Supported Envoys, oldest first; 1.38 is missing because its official build loads no
# WebAssembly module at all. Envoy Gateway ships the first of its own.
envoys := 1.36.4 1.37.0 1.39.3 1.40.0
gateway_envoys := 1.39.1 1.40.0
oldest := $(firstword $(envoys))
newest := $(lastword $(envoys))
and_oldest = $(if $(OLDEST)$(LONG),$(oldest))

GO ?= go
MINUTES ?= 30
ENVOY_VERSION ?= $(newest)
PLATFORMS ?= darwin/amd64 darwin/arm64 linux/amd64 linux/arm64
export TINYGO

# A pipeline fails with its first failing command; a target that failed is not
# left behind half-written.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

out := build/out
cli := $(out)/sluice
filter := $(out)/sluice.wasm
# What both suites with a mesh pull from a registry: a release for this machine.
released := $(out)/release/v0.0.0-e2e
with_release = SLUICE_RELEASE='$(CURDIR)/$(released)' SLUICE_RELEASER='$(CURDIR)/$(out)/releaser'

# Compilers, linters and tests collect garbage a quarter as often as they would: they end soon. Tests
# find servers in build/out, or those that the environment names; of several Envoys they
# learn by SLUICE_ENVOY. golangci-lint does what vet does.
go_test = GOGC=400 $(GO) test -count=1 -vet=off
with_envoys = envoys=$$(build/fetch envoys $(1)); SLUICE_ENVOY=$$envoys

# What takes an Envoy, a server or the compiled filter; check does without. Of it, race runs
# what is compiled for this machine.
module := github.com/sluice-ratelimit/sluice
native := controlplane/cmd/sluice controlplane/policytest envoy/proxy envoy/sim $(addprefix controlplane/internal/,accesslog cli footprint importer policydoc quotaservice/redisstore replay simulate testfile)
unit = $(filter-out $(addprefix $(module)/,$(native) docs e2e examples filter envoy envoy/proc envoy/sim/interleave),$(shell $(GO) list ./...))
# What is linked into the filter, in which an int has 32 bits; its own tests run it as compiled.
in_filter = $(filter-out $(module)/filter,$(shell GOOS=wasip1 GOARCH=wasm $(GO) list -deps -f '{{with .Module}}{{if .Main}}{{$$.ImportPath}}{{end}}{{end}}' ./filter))
# What may race: packages that start goroutines, or whose tests do. The filter's own are compiled into it
# alone, where one thread runs. The importer's tests only send parallel requests to nginx.
concurrent = $(filter-out ./controlplane/internal/importer,$(sort $(patsubst %/,./%,$(dir $(shell grep -rlE '"sync(/atomic)?"|^\s*go ' --include='*.go' --exclude-dir=out build controlplane envoy shared)))))
# race leaves out tests that do one thing after another, or several at once that share nothing: they would take half
# of its time.
empty :=
space := $(empty) $(empty)
alone := $(subst $(space),|,$(strip \
	TestMemoryOfALimiterIsBounded TestHitsAllocateNothing TestNumbersAtTheirExtremes TestLongLogsAreBounded \
	TestHeldIsExact TestHeldNeverOver TestFewNewKeysMeetAFullPage TestAThousandOwnersStaySmall \
	TestALookIsAReadWithoutATrace TestEveryOrderOfTwoHolds TestEvictionNeverRefunds TestTheClockSteps \
	TestTheStoresClockSteps TestPolicyIsTheSameInKubernetes TestUsageOverProxies))
# These begin first, because they wait more than they compute.
longest_racing := ./controlplane/internal/quotaservice/redisstore ./envoy/sim
# What Envoy's versions may change, beside e2e.
of_versions := ./envoy/... ./controlplane/internal/accesslog

# Helm 3 is there ready-made for Linux on x86_64. Elsewhere tests run Helm 4, which takes minutes to build.
helm := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),helm3,helm)

# What a target is made from: what the compiler reads, tests aside.
files = $(shell find $(1) -type f ! -name '*_test.go' ! -path '*/testdata/*' ! -name '*.md')

.PHONY: help build run test test-sluice test-measure test-release check narrow lint race e2e-all e2e-long e2e-chart e2e-console e2e-etcd e2e-gateway e2e-istio e2e-ratelimit \
	soak faults servers release release-check release-push releaser measure size bench bench-cluster bench-keyed bench-scale lines clean

help: ## print this
	@echo 'usage: make TARGET'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

build: $(cli) $(filter) ## build/out/sluice, the command line, also as build/out/ratelimit, and build/out/sluice.wasm, the filter

run: build ## push the policies of examples to two proxies, send requests, serve until Ctrl-C; ENVOY=1: two real Envoys
	@envoy=$(if $(ENVOY),$$(build/fetch envoy-$(ENVOY_VERSION))); exec $(cli) quickstart $${envoy:+--envoy $$envoy}

test: build servers ## all tests but the long ones, on the newest supported Envoy (or on ENVOY_PATH); OLDEST=1: what its version may change on the oldest, too; LONG=1: that and the long ones
	@$(MAKE) --no-print-directory -j 3 test-sluice test-measure test-release

# The longest packages begin first. That of the scenarios waits more than it computes; so do its tests.
test-sluice:
	$(call with_envoys,$(and_oldest) $(newest)) $(go_test) $(if $(LONG),-tags long) -p 3 -parallel 4 -timeout 45m ./e2e ./filter ./controlplane/cmd/sluice ./...
test-measure:
	$(call with_envoys,$(newest)); export SLUICE_ENVOY; cd build/measure && $(go_test) -p 1 -timeout 45m ./...
test-release:
	cd build/release && $(go_test) ./...

check: build lint narrow ## lint and the unit tests, random ones a tenth as long; on amd64 the filter's once more with an int of 32 bits
	GOGC=400 $(GO) test -short -vet=off $(unit)

narrow:
	$(if $(filter amd64,$(shell $(GO) env GOARCH)),GOARCH=386 CGO_ENABLED=0 GOGC=400 $(GO) test -short -vet=off $(in_filter))

lint: ## golangci-lint, with the reasons in .golangci.yml
	@export GOGC=off GOMEMLIMIT=4GiB; lint=$$(build/fetch golangci-lint); for at in . build/measure build/release build/browser; do \
		(cd $$at && $$lint run --config '$(CURDIR)/.golangci.yml' ./...); done

# Not the scripts: each of their commands compiles the filter anew, ten times as slowly, and what
# races in them does in the packages.
race: build servers ## what runs natively and has goroutines, under the race detector; takes a C compiler
	$(call with_envoys,$(newest)) $(go_test) -race -short -skip '^($(alone))$$' -p 3 -timeout 15m $(longest_racing) \
		$(filter-out ./controlplane/cmd/sluice,$(filter $(concurrent),$(unit:$(module)/%=./%) $(native:%=./%)))

e2e-all: build servers ## the end-to-end scenarios on every supported Envoy
	$(call with_envoys,$(envoys)) SLUICE_EVERY_ENVOY=1 $(go_test) -tags long -timeout 60m ./e2e/...

e2e-long: build servers ## the end-to-end scenarios, and the tests of the filter and of its memory, with the long ones; on the oldest Envoy what its version may change
	$(call with_envoys,$(oldest) $(newest)) $(go_test) -tags long -timeout 45m ./e2e ./filter ./controlplane/internal/footprint $(of_versions)

e2e-chart: build ## the Helm chart by Helm 4, and what it renders on a real Kubernetes API server; building that takes minutes, once; Linux
	$(GO) mod download -C build/crds; helm=$$(build/fetch helm); kube=$$(build/fetch kube); etcd=$$(build/fetch etcd); $(call with_envoys,$(newest)); \
		export SLUICE_ENVOY SLUICE_HELM=$$helm; $(go_test) ./examples && \
		SLUICE_KUBE_APISERVER=$$kube SLUICE_ETCD=$$etcd $(go_test) -v -tags istio -run TestChartInACluster -timeout 15m \
		-exec 'unshare --map-root-user --net --mount --pid --fork --kill-child --mount-proc' ./e2e

e2e-console: build ## the console in a real Chromium, on the newest Envoy; SHOTS=1: its pictures into docs/img
	chromium=$$(build/fetch chromium); axe=$$(build/fetch axe-core); $(call with_envoys,$(newest)) SLUICE_CHROMIUM=$$chromium SLUICE_AXE=$$axe \
		SLUICE_CLI='$(CURDIR)/$(cli)' SLUICE_FILTER='$(CURDIR)/$(filter)' SLUICE_SHOTS='$(if $(SHOTS),$(CURDIR)/docs/img)' \
		$(GO) test -C build/browser -count=1 $(flags) -timeout 10m ./...

e2e-etcd: build ## the store on a real etcd, its page, and three serves on three members and beside Envoys, of which each may die or be cut off; building etcd takes a minute, once; ROUNDS=20
	etcd=$$(build/fetch etcd); $(call with_envoys,$(newest)); export SLUICE_ENVOY SLUICE_ETCD=$$etcd; \
		$(go_test) -tags etcd -run 'Etcd|CutOff|Chunks|Credentials|Copy' -timeout 20m ./controlplane/internal/store ./docs && \
		$(go_test) -tags etcd -run SeveralServes -timeout 20m ./e2e $(if $(ROUNDS),-serve-rounds $(ROUNDS))

# Envoy Gateway has ports that nothing changes, so the test has a network of its own.
e2e-gateway: build $(released)/SHA256SUMS ## what `render envoy-gateway` writes, and sluice for global rate limits, on the real Envoy Gateway, without a cluster; building that takes minutes, once
	gateway=$$(build/fetch envoy-gateway); build/fetch redis >/dev/null; $(call with_envoys,$(gateway_envoys)) $(with_release) SLUICE_ENVOY_GATEWAY=$$gateway \
		$(go_test) -v -tags gateway -run TestEnvoyGateway -timeout 15m -exec '$(CURDIR)/build/gateway/alone' ./e2e

e2e-istio: build $(released)/SHA256SUMS ## what `render istio` writes, on the real Istio, without a cluster; building that takes ten minutes, once; Linux
	istio=$$(build/fetch istio); kube=$$(build/fetch kube); etcd=$$(build/fetch etcd); $(call with_envoys,$(newest)) $(with_release) \
		SLUICE_ISTIO=$$(dirname $$istio) SLUICE_KUBE_APISERVER=$$kube SLUICE_ETCD=$$etcd $(go_test) -v -tags istio -run TestIstio -timeout 15m \
		-exec 'unshare --map-root-user --net --mount --pid --fork --kill-child --mount-proc' ./e2e

e2e-ratelimit: build servers ## sluice in the place of envoyproxy/ratelimit, held against the real one by random calls: CALLS=100000, SEED=N
	ratelimit=$$(build/fetch ratelimit); SLUICE_RATELIMIT=$$ratelimit \
		$(go_test) -v -tags oracle -run 'TestOracle|TestRateLimit' -timeout 30m ./e2e -oracle-calls $(or $(CALLS),100000) $(if $(SEED),-oracle-seed $(SEED))

soak: build servers ## the long forms of the tests, on the newest Envoy: MINUTES=30, PARTS=REGEXP, SEED=N
	$(call with_envoys,$(newest)) MINUTES='$(MINUTES)' PARTS='$(PARTS)' SEED='$(SEED)' build/soak

faults: build servers ## what clients see of faults under limits over all Envoys: RUNS=3, FAULTS=WORD
	$(call with_envoys,$(newest)) $(go_test) -v -tags long -run TestFaults -timeout 60m ./e2e -fault-runs $(or $(RUNS),3) $(if $(FAULTS),-fault-names $(FAULTS))

servers: ## the newest Envoy, the Redis, the Valkey, the nginx, the Prometheus and the Helm that tests run; OLDEST=1: the oldest Envoy, too
	@build/fetch envoys $(and_oldest) $(newest) >/dev/null
	@build/fetch redis valkey nginx prometheus $(helm) >/dev/null

release: build releaser ## everything that a version is published as: VERSION=v0.1.0, SIGN_KEY=FILE, PLATFORMS='linux/amd64'
	@test -n '$(VERSION)' || { echo 'which version? make release VERSION=v0.1.0' >&2; exit 1; }
	$(out)/releaser make --version '$(VERSION)' --out '$(out)/release/$(VERSION)' $(PLATFORMS:%=--platform %) $(if $(SIGN_KEY),--sign-key '$(SIGN_KEY)')

# The second tree is a clone elsewhere, with a home and a build cache of its own.
release-check: release ## make the release once more at another path: it must be the same
	@tmp=$$(mktemp -d); modules=$$($(GO) env GOMODCACHE); trap 'rm -rf "$$tmp"' EXIT; \
	git clone --quiet . "$$tmp/another"; \
	HOME="$$tmp" USER=another GOCACHE="$$tmp/cache" GOMODCACHE="$$modules" \
		$(MAKE) --no-print-directory -C "$$tmp/another" release VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' SIGN_KEY=; \
	cmp '$(out)/release/$(VERSION)/SHA256SUMS' "$$tmp/another/$(out)/release/$(VERSION)/SHA256SUMS"

release-push: releaser ## push a release's images and their signatures: VERSION=v0.1.0 REGISTRY=registry.example.com/sluice
	$(out)/releaser push '$(out)/release/$(VERSION)' '$(REGISTRY)'

releaser: # it finds TinyGo by its own source, hence no -trimpath
	@$(GO) build -C build/release -o '$(CURDIR)/$(out)/releaser' .

# What measures is a module of its own: what it links reaches no user.
measure:
	@$(GO) test -C build/measure -c -o '$(CURDIR)/$(out)/measure' ./decision

size: build measure ## how large the filter is, and how long loading it blocks Envoy
	@wc -c $(filter)
	@ENVOY_PATH=$$(build/fetch envoy-$(ENVOY_VERSION)) $(out)/measure -test.run '^TestDecision$$/^load-sluice$$' -rounds 3

bench: build measure ## what a decision costs, for docs/performance.md; CASES=REGEXP, ROUNDS=N or A=WASM B=WASM: a part
	$(call bench_of,TestDecision) $(if $(A),-against '$(A)') $(if $(B),-wasm '$(B)')
	$(if $(CASES)$(ROUNDS)$(A)$(B),,@$(MAKE) --no-print-directory bench-cluster)

bench-cluster: build measure ## what limits over three Envoys cost, for docs/cluster.md, and sluice in the place of envoyproxy/ratelimit (front-*); CASES=REGEXP or ROUNDS=N: a part
	$(call bench_of,TestCluster)

bench_of = envoy=$$(build/fetch envoy-$(ENVOY_VERSION)); ratelimit=$$(build/fetch ratelimit); build/fetch redis >/dev/null; \
	ENVOY_PATH=$$envoy $(out)/measure -test.run '^$(1)$$/($(or $(CASES),.))' -rounds $(or $(ROUNDS),5) -ratelimit $$ratelimit

bench-keyed: ## the Go library beside others, for docs/library.md: ROUNDS=7
	$(GO) test -C build/measure -run '^$$' -bench . -count $(or $(ROUNDS),7) ./libraries

bench-scale: build ## the largest policy, serve with 1,000 proxies, simulate, a change in Envoy, for docs/scale.md: PARTS=REGEXP, ROUNDS=3
	$(call with_envoys,$(ENVOY_VERSION)) $(GO) test -C build/measure -run '^$$' -bench '$(or $(PARTS),.)' -benchtime 3x -count $(or $(ROUNDS),3) -timeout 1h ./scale

lines: ## how many lines of Go there are, without comments and blank ones
	@for tests in -v ''; do git ls-files '*.go' | grep $$tests _test.go | xargs cat | grep -vcE '^\s*(//.*)?$$'; done | xargs printf '%d lines of code, %d of tests\n'

clean: ## remove everything built or installed
	find $(out) -mindepth 1 ! -path $(out)/embed ! -path $(out)/embed/.gitkeep -delete

$(filter): go.mod go.sum $(call files,filter shared build/compile build/wasm)
	@mkdir -p $(@D)
	@echo 'compiling the filter with TinyGo, which takes a minute'
	@$(GO) run ./build/compile -o $@

$(out)/embed/sluice.wasm: $(filter)
	@mkdir -p $(@D)
	@cp $< $@

# Without -trimpath, so that tests link the packages that this has compiled.
$(cli): $(out)/embed/sluice.wasm go.mod go.sum build/embed.go $(call files,controlplane envoy shared) $(wildcard examples/*.go examples/*.yaml)
	@echo 'compiling the command line, which takes a minute the first time'
	@$(GO) build -o $@ ./controlplane/cmd/sluice
	@ln -sf sluice $(out)/ratelimit

$(released)/SHA256SUMS: $(cli) $(call files,build/release) | releaser
	$(out)/releaser make --version $(notdir $(released)) --out $(released) --platform linux/$$($(GO) env GOARCH)
