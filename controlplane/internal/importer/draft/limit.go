package draft

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// Limit is one limit of a configuration. Several rules may come of it.
type Limit struct {
	Numbers
	Shadow          bool // it denies nothing
	request.Remarks      // of its rules
	At              source.Place
}

// Numbers are what a limit allows. Windowed, TokenBucket and Concurrency make them.
type Numbers struct {
	Algorithm string // as the policy names it; empty = windows
	Requests  uint64
	Per       string
	Burst     uint64
}

// The algorithms that a policy must name.
const (
	tokenBucket = "token_bucket"
	concurrency = "concurrency"
)

// Windowed counts requests in windows of time: 5 per minute.
func Windowed(requests uint64, per string) Numbers { return Numbers{Requests: requests, Per: per} }

// TokenBucket has at most burst tokens, and gets new ones at a rate: 5 per 1m.
func TokenBucket(requests uint64, per string, burst uint64) Numbers {
	return Numbers{Algorithm: tokenBucket, Requests: requests, Per: per, Burst: burst}
}

// Concurrency is how many requests may run at once.
func Concurrency(requests uint64) Numbers {
	return Numbers{Algorithm: concurrency, Requests: requests}
}

// IsWindowed reports whether requests are counted in windows of time.
func (n Numbers) IsWindowed() bool { return n.Algorithm == "" }

// asLimits are the numbers as a rule's limits.
func (n Numbers) asLimits() []any {
	switch {
	case n.IsWindowed():
		return []any{strconv.FormatUint(n.Requests, 10) + "/" + n.Per}
	case n.Algorithm == concurrency:
		return []any{n.Requests}
	case n.Burst == n.Requests:
		return []any{limitText{n.Requests, n.Per, nil}}
	}
	return []any{limitText{n.Requests, n.Per, &n.Burst}}
}

type limitText struct {
	Requests uint64  `yaml:"requests"`
	Per      string  `yaml:"per"`
	Burst    *uint64 `yaml:"burst,omitempty"`
}

// IsOfClass reports whether one rule can have both limits: they have one window and mode.
func (l *Limit) IsOfClass(other *Limit) bool {
	return l.Algorithm == other.Algorithm && l.Per == other.Per && l.Shadow == other.Shadow
}

// Override gives keys other numbers; without a limit they are unlimited.
type Override struct {
	Patterns []string
	Limit    *Limit
}

func (o Override) isUnlimited() bool { return o.Limit == nil }

// same reports whether two overrides give the same keys the same numbers.
func (o Override) same(other Override) bool {
	return slices.Equal(o.Patterns, other.Patterns) && o.isUnlimited() == other.isUnlimited() &&
		(o.isUnlimited() || o.Limit.Numbers == other.Limit.Numbers)
}

// MarshalYAML writes the override on a line.
func (o Override) MarshalYAML() (any, error) {
	text := struct {
		Key       []string `yaml:"key"`
		Limits    []any    `yaml:"limits,omitempty"`
		Unlimited bool     `yaml:"unlimited,omitempty"`
	}{Key: o.Patterns, Unlimited: o.isUnlimited()}
	if !o.isUnlimited() {
		text.Limits = o.Limit.asLimits()
	}
	return request.Flow(text), nil
}

// Response is what a denied request gets.
type Response struct {
	Status  uint32            `yaml:"status,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty"`
}
