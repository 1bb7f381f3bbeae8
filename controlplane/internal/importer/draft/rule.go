package draft

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Rule is a rule in the making: its fields, and what the import still needs to know of it.
type Rule struct {
	fields
	Quota    *Quota
	Off      bool
	Comments []string
	Order    int    // of its limit in the configuration
	Identity string // of its limit in the configuration, which its name is not: only rules of one limit share a counter
}

// fields are the fields of a rule as the policy has them, in its order; empty ones are left out. Readers set them
// while they make the rule, except these:
//
//	Counter, Scope, Lease                    Draft.Finish, when it knows all rules
//	Algorithm, Limits, Mode, EnforcePercent  asYAML, by Quota and Off
type fields struct {
	Name           string          `yaml:"name"`
	Counter        string          `yaml:"counter,omitempty"`
	Scope          string          `yaml:"scope,omitempty"`
	Lease          string          `yaml:"lease,omitempty"`
	Match          request.Match   `yaml:"match,omitempty"`
	Exempt         []request.Match `yaml:"exempt,omitempty"`
	Key            []request.Part  `yaml:"key,omitempty,flow"`
	Algorithm      string          `yaml:"algorithm,omitempty"`
	Limits         []any           `yaml:"limits,flow"`
	Overrides      []Override      `yaml:"overrides,omitempty"`
	Cost           uint64          `yaml:"cost,omitempty"`
	Capacity       uint64          `yaml:"capacity,omitempty"`
	MissingKey     string          `yaml:"missing_key,omitempty"`
	CountDenied    bool            `yaml:"count_denied,omitempty"`
	Mode           string          `yaml:"mode,omitempty"`
	EnforcePercent uint64          `yaml:"enforce_percent,omitempty"`
	Response       *Response       `yaml:"response,omitempty,flow"`
}

// Override gives keys other numbers; without a quota they are unlimited.
type Override struct {
	Patterns []string
	Quota    *Quota
}

// Quota is one limit and how it is enforced.
type Quota struct {
	Numbers
	Unlimited bool // of a level that has no limit by its own word; no rule has it
	Shadow    bool
	Percent   uint64   // 0 = all
	Comments  []string // of its rule
	WhyOff    []string // why its rule is off
	At        source.Place
}

// Numbers are what a quota allows.
type Numbers struct {
	Algorithm string // token_bucket, concurrency, or empty
	Requests  uint64
	Per       string
	Burst     uint64
}

// Windowed counts requests in windows of time: 5 per minute.
func Windowed(requests uint64, per string) Numbers { return Numbers{Requests: requests, Per: per} }

// TokenBucket has at most burst tokens, and gets new ones at a rate: 5 per 1m.
func TokenBucket(requests uint64, per string, burst uint64) Numbers {
	return Numbers{Algorithm: "token_bucket", Requests: requests, Per: per, Burst: burst}
}

// Concurrency is how many requests may run at once.
func Concurrency(requests uint64) Numbers {
	return Numbers{Algorithm: "concurrency", Requests: requests}
}

// MarshalYAML writes the override on a line.
func (o Override) MarshalYAML() (any, error) {
	text := struct {
		Key       []string `yaml:"key"`
		Limits    []any    `yaml:"limits,omitempty"`
		Unlimited bool     `yaml:"unlimited,omitempty"`
	}{Key: o.Patterns, Unlimited: o.Quota == nil}
	if o.Quota != nil {
		text.Limits = o.Quota.asLimits()
	}
	return request.Flow(text), nil
}

// Response is what a denied request gets.
type Response struct {
	Status  uint32            `yaml:"status,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty"`
}

// same reports whether two overrides give the same keys the same numbers.
func (o Override) same(other Override) bool {
	return slices.Equal(o.Patterns, other.Patterns) && (o.Quota == nil) == (other.Quota == nil) &&
		(o.Quota == nil || o.Quota.Numbers == other.Quota.Numbers)
}

// IsOfClass reports whether one rule can have both quotas: they have one window and mode.
func (q *Quota) IsOfClass(other *Quota) bool {
	return q.Algorithm == other.Algorithm && q.Per == other.Per && q.Shadow == other.Shadow && q.Percent == other.Percent
}

// asLimits is the quota as a rule's limits.
func (q *Quota) asLimits() []any {
	switch {
	case q.Algorithm == "":
		return []any{strconv.FormatUint(q.Requests, 10) + "/" + q.Per}
	case q.Algorithm == "concurrency":
		return []any{q.Requests}
	case q.Burst == q.Requests:
		return []any{limitText{q.Requests, q.Per, nil}}
	}
	return []any{limitText{q.Requests, q.Per, &q.Burst}}
}

type limitText struct {
	Requests uint64  `yaml:"requests"`
	Per      string  `yaml:"per"`
	Burst    *uint64 `yaml:"burst,omitempty"`
}

// mayShareCounter reports whether two rules may share a counter: they count by one limit of the configuration, over
// the same keys and time. A rule that is off has a counter of its own.
func (r *Rule) mayShareCounter(other *Rule) bool {
	isAlike := r.Quota.Algorithm == other.Quota.Algorithm && r.Quota.Per == other.Quota.Per
	return isAlike && !r.Off && !other.Off && r.Identity == other.Identity &&
		slices.EqualFunc(r.Key, other.Key, request.Part.Is)
}

// LimitedRequests is a match for the requests that the rule limits. The caller leaves the requests exempt out
// anyway, so the match may have some of them: for a rule of the paths /a* with the exempt /a/b, and the same
// in exempt, it is the paths /a*. It is not ok where no match can say which requests those are: the rule is off,
// exempts other requests too, lets some keys pass, or needs a part that no match can ask for. A rule that has x-user
// in its key limits the requests with that header; for a query parameter no match can say that.
func (r *Rule) LimitedRequests(exempt []request.Match) (m request.Match, ok bool) {
	isLeft := func(m request.Match) bool { return !slices.ContainsFunc(exempt, m.Equal) }
	lets := func(o Override) bool { return o.Quota == nil }
	if r.Off || slices.ContainsFunc(r.Exempt, isLeft) || slices.ContainsFunc(r.Overrides, lets) {
		return nil, false
	}
	m = r.Match
	for _, p := range r.Key {
		switch {
		case p.Kind == request.KindHeader && m.Of(p) == nil:
			m, _ = m.And(p.Matching(request.Present))
		case p.Kind == request.KindQuery, p.Kind == request.KindProperty:
			return nil, false
		}
	}
	return m, true
}

// Clip makes text fit for a rule's name: printable, without space at its ends,
// at most size bytes long.
func Clip(text string, size int) string {
	return printable.Cut(strings.TrimSpace(printable.Text(text)), size)
}
