# Every version the build pins, in one place.

# Supported Envoys, oldest first; 1.38 is missing because its official build
# loads no WebAssembly module at all.
ENVOY_VERSIONS := 1.36.4 1.37.0 1.39.3 1.40.0

# Envoy Gateway's is in its module. It ships the first of its Envoys.
ENVOY_GATEWAY_VERSION := $(shell sed -n 's|.*github.com/envoyproxy/gateway v\([^ ]*\).*|\1|p' build/gateway/go.mod)
ENVOY_GATEWAY_ENVOYS := 1.39.1 1.40.0

GOLANGCI_LINT_VERSION := v2.5.0

# What the filter is measured beside. The service is not released: its versions
# are those of its commits.
RATELIMIT_VERSION := v1.4.1-0.20260122083618-3fb702589d36
REDIS_PACKAGES := redis-server redis-tools libjemalloc2 liblzf1 libatomic1

# Whose access logs are read.
NGINX_PACKAGES := nginx


# What the console's test takes: the browser of this Debian, and axe-core by its digest.
CHROMIUM_PACKAGE := chromium-headless-shell
AXE_VERSION := 4.14.0
AXE_SHA256 := 2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af
