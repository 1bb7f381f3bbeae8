module github.com/sluice-ratelimit/sluice/build/libraries/measure

go 1.26.0

replace github.com/sluice-ratelimit/sluice => ../../..

require (
	github.com/sethvargo/go-limiter v0.7.1
	github.com/sluice-ratelimit/sluice v0.0.0-00010101000000-000000000000
	github.com/throttled/throttled/v2 v2.15.0
	github.com/ulule/limiter/v3 v3.11.2
	golang.org/x/time v0.16.0
)

require (
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
