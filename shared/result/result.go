// Package result is the JSON in which the filter writes what came of a request or an
// operation: verdicts, counters, statistics, denied keys, explanations. The filter
// appends it, the control plane reads it with encoding/json.
//
// Its invariant: what is appended reads back as what it was made from. The tags of the structs and
// append.go are two lists of the same names: result_test.go reads back all that is appended. It is
// linked into the filter, so it must never import encoding/json or fmt.
//
// The filter gives times in nanoseconds, the control plane in milliseconds that
// are rounded up. A result has one or the other.
package result

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Result is what came of a request or an operation. It has the fields of one of the groups. The filter
// appends a value or a verdict by Append, and the others by AppendStats and AppendDenials.
type Result struct {
	// A value: what a key has counted, and what is left of it.
	Value   *int64   `json:"value,omitempty"`
	Silent  string   `json:"silent,omitempty"`  // of leased, while the quota service is silent: what on_unavailable says
	Windows []Window `json:"windows,omitempty"` // of a value
	Held    *uint32  `json:"held,omitempty"`    // units that running requests of the key hold

	BlockedMs int64 `json:"blocked_ms,omitempty"` // of a value: what is left of the key's block
	BlockedNs int64 `json:"blocked_ns,omitempty"`

	// A verdict.
	Allowed  *bool  `json:"allowed,omitempty"`
	Exempt   bool   `json:"exempt,omitempty"` // from all rules
	IsUsage  bool   `json:"usage,omitempty"`  // the proxy answers with the client's usage
	DeniedBy string `json:"denied_by,omitempty"`
	RetryMs  *int64 `json:"retry_after_ms,omitempty"` // of a denial; -1: no wait would help
	RetryNs  *int64 `json:"retry_after_ns,omitempty"`
	Rules    []Rule `json:"rules,omitempty"`

	// Statistics.
	Stats []Stats `json:"stats,omitzero"` // the filter calls them rules, too
	// VMStarts is how many VMs the proxy has made of this filter binary, beside Stats; 0: an
	// older filter, which does not count them.
	VMStarts uint64 `json:"vm_starts,omitempty"`

	// The keys that are denied most.
	Denials []Denials `json:"denials,omitzero"` // the filter calls them rules, too
}

// Rule is what one rule decided.
type Rule struct {
	Rule      string    `json:"rule"`
	Override  string    `json:"override,omitempty"` // name of the override that holds
	Key       []*string `json:"key"`                // nil: the request lacks the key part
	Mode      string    `json:"mode"`
	Allowed   bool      `json:"allowed"`
	Reason    string    `json:"reason,omitempty"`
	Remaining *uint32   `json:"remaining,omitempty"` // of the tightest window
	Windows   []Window  `json:"windows"`
	Held      *uint32   `json:"held,omitempty"`       // units that running requests of the key hold
	BlockedMs int64     `json:"blocked_ms,omitempty"` // what is left of the key's block
	BlockedNs int64     `json:"blocked_ns,omitempty"`
}

// What Rule.Reason and ExplainedRule.Reason may be, beside nothing. Access logs have them too. To add one: a constant,
// DenialReasons if a rule denies by it, docs/policy.md, and `go test ./controlplane/internal/policydoc -update`.
const (
	ReasonLimit         = "limit"
	ReasonBlocked       = "blocked"
	ReasonHeld          = "held"
	ReasonMissingKey    = "missing_key"
	ReasonOnFull        = "on_full"
	ReasonOnError       = "on_error"
	ReasonOnContention  = "on_contention"
	ReasonOnUnavailable = "on_unavailable"
	ReasonStarting      = "starting"
	ReasonNotAsked      = "not_asked" // the rule has allowed: it alone never denies
)

// DenialReasons are the reasons of rules that deny.
func DenialReasons() []string {
	return []string{
		ReasonLimit, ReasonBlocked, ReasonHeld, ReasonMissingKey, ReasonOnFull, ReasonOnError, ReasonOnContention,
		ReasonOnUnavailable, ReasonStarting,
	}
}

// Settled is what a request held of one rule, and what was charged when it ended.
type Settled struct {
	Rule string `json:"rule"`
	Held uint32 `json:"held"`
	Cost uint32 `json:"cost"`
	By   string `json:"by"` // answer, estimate, cost or none
}

// Window is one window of a rule and what is used of it.
type Window struct {
	Name      string  `json:"name,omitempty"`
	Unlimited bool    `json:"unlimited,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`      // nil if unlimited, and so is Remaining; of a token bucket its burst
	Requests  *uint32 `json:"requests,omitempty"`   // what a token bucket gains in a period, if that is not its burst
	LimitFrom string  `json:"limit_from,omitempty"` // the part of requests that says the limit, such as jwt:corp:rpm
	LimitIs   string  `json:"limit_is,omitempty"`   // of LimitFrom: LimitDefault or LimitMax, else the request's number
	PerMs     int64   `json:"per_ms"`
	PerNs     int64   `json:"per_ns,omitempty"`
	Months    int64   `json:"months,omitempty"` // of a window of months: per is how long the present one is
	Used      uint32  `json:"used"`
	Remaining *uint32 `json:"remaining,omitempty"`
	ResetMs   int64   `json:"reset_ms"` // from now
	ResetNs   int64   `json:"reset_ns,omitempty"`
}

// What a limit is that requests say, other than the request's number.
const (
	LimitDefault = "default" // the request says no whole number, or there is none
	LimitMax     = "max"     // it says more
)

// SetLimit says what the window admits, and how much of it is left.
func (w *Window) SetLimit(of *limit.Window, left uint32) {
	most := of.Max()
	w.Limit, w.Remaining = &most, &left
	if requests := of.Limit; of.Algorithm == limit.TokenBucket && requests != most {
		w.Requests = &requests
	}
}

// SetLimitFrom says where requests say the window's limit, and what the subject's request said. It
// does nothing if the policy says the limit.
func (w *Window) SetLimitFrom(r *policy.Rule, limit int, s *policy.Subject) {
	from := r.Limits[limit].Requested
	if from == nil || s.Override >= 0 {
		return
	}
	w.LimitFrom, w.LimitIs = from.Part.Label(), LimitDefault
	if limit >= len(s.Requested) {
		return
	}
	switch s.Requested[limit].As {
	case policy.RequestedNumber:
		w.LimitIs = ""
	case policy.RequestedMax:
		w.LimitIs = LimitMax
	default: // the default holds
	}
}

// Stats are the statistics of one rule.
type Stats struct {
	Rule     string            `json:"rule"`
	Keys     uint64            `json:"keys"`
	Capacity uint64            `json:"capacity"`
	Slots    uint64            `json:"slots"`
	Pages    uint64            `json:"buckets"`
	Bytes    uint64            `json:"bytes"`
	Metrics  map[string]uint64 `json:"metrics"`
}

// Denials are the keys that a rule denies most, those first that it has denied most for
// certain.
type Denials struct {
	Rule    string      `json:"rule"`
	Mode    string      `json:"mode,omitempty"`     // see Enforced
	Blocks  bool        `json:"blocks,omitempty"`   // the rule has a block
	SinceMs int64       `json:"since_ms,omitempty"` // epoch; without one nothing was denied lately
	SinceNs int64       `json:"since_ns,omitempty"`
	Keys    []DeniedKey `json:"keys"`
	Rest    uint32      `json:"rest"` // times that any other key may have been denied
}

// The modes of a rule, and of one key of it.
const (
	Enforced       = "enforced"
	Shadow         = "shadow"
	PartlyEnforced = "partly enforced" // a rule that enforces the denials of some keys and not those of others
)

// DeniedKey is a key, or its hash, and how often it was denied.
type DeniedKey struct {
	Key    []*string `json:"key,omitzero"` // nil: the request lacks the key part
	Cut    bool      `json:"cut,omitempty"`
	Hash   string    `json:"hash,omitempty"`
	Denied uint32    `json:"denied"` // times, at least
	Error  uint32    `json:"error"`  // how many times more it may have been

	// Only the control plane sets these, and only if the rule Blocks: it asks for the key's counters.
	BlockedMs       *int64 `json:"blocked_ms,omitempty"`        // what is left of the key's block; 0: it is not blocked
	BlockedNotKnown string `json:"blocked_not_known,omitempty"` // why that is not known, or not of all proxies
}

// Explanation is what the policy makes of a request, step by step.
type Explanation struct {
	Allowed  *bool  `json:"allowed,omitempty"` // nil if Pending, or if it depends on parts that are not known
	Pending  bool   `json:"pending,omitempty"` // the quota service would be asked, and decide
	IsUsage  bool   `json:"usage,omitempty"`   // the proxy answers with the client's usage, unless a rule denies
	DeniedBy string `json:"denied_by,omitempty"`
	RetryMs  *int64 `json:"retry_after_ms,omitempty"` // of a denial; -1: no wait would help
	RetryNs  *int64 `json:"retry_after_ns,omitempty"`
	// DependsOn names parts of keys that the description leaves open. What is denied
	// all the same has no RetryMs.
	DependsOn []string        `json:"depends_on,omitempty"`
	Rules     []ExplainedRule `json:"rules,omitempty"` // all of the policy
}

// ExplainedRule is what one rule has to do with the request. Why is the reason
// of one that does not match; all from Key on belongs to one that does, and Key
// to NoKey also to others if keys were asked for.
type ExplainedRule struct {
	Rule           string    `json:"rule"`
	Outcome        string    `json:"outcome"`
	Why            string    `json:"why,omitempty"`
	Failing        string    `json:"failing,omitempty"` // the condition of its match that does not hold, such as "methods"
	Wanted         string    `json:"wanted,omitempty"`  // the values that Failing lists; empty for headers
	Key            []KeyPart `json:"key,omitempty"`
	NoKey          string    `json:"no_key,omitempty"` // if keys were asked for: why the request makes none
	Hash           string    `json:"hash,omitempty"`   // if keys were asked for: of the key, as top shows it
	Common         bool      `json:"common,omitempty"` // if keys were asked for: other clients have the key too
	Cost           *uint32   `json:"cost,omitempty"`
	Held           *uint32   `json:"held,omitempty"`            // of a rule that holds: what is held before the request
	Charges        string    `json:"charges,omitempty"`         // "price" if its answer is charged what its tokens cost
	BodyAssumed    string    `json:"body_assumed,omitempty"`    // for the cost, if no content-length says it
	CostUnreadable bool      `json:"cost_unreadable,omitempty"` // the request's number could not be read: the cost is max
	TooLong        bool      `json:"too_long,omitempty"`        // a value was too long for a regular expression
	Override       *Override `json:"override,omitempty"`
	Unlimited      bool      `json:"unlimited,omitempty"`
	Mode           string    `json:"mode,omitempty"`
	Allowed        *bool     `json:"allowed,omitempty"` // nil if Pending
	Pending        bool      `json:"pending,omitempty"` // it would ask the quota service
	Lease          *Lease    `json:"lease,omitempty"`   // of a rule of scope cluster, before the request
	Reason         string    `json:"reason,omitempty"`
	// BlockedMs is what is left of the key's block, before the request.
	BlockedMs int64 `json:"blocked_ms,omitempty"`
	BlockedNs int64 `json:"blocked_ns,omitempty"`
	// Windows are as before the request; of a rule of scope cluster, as the service last said.
	Windows []Window `json:"windows,omitempty"`
}

// Lease is what a proxy holds of a key.
type Lease struct {
	Units  uint32 `json:"units"`
	EndsMs int64  `json:"ends_ms,omitempty"` // from now
	EndsNs int64  `json:"ends_ns,omitempty"`
	Silent string `json:"silent,omitempty"` // while the quota service is: what on_unavailable says
}

// Outcomes that a reader tells from the others.
const (
	Matches  = "matches"   // the rule decided
	NotKnown = "not_known" // the rule may decide: the description leaves open whether it does, or by which key
	Exempted = "exempt"    // an entry of exempt holds
	LacksKey = "no_key"    // the request lacks a key part, and missing_key is skip
)

// KeyPart is one part of a key: a value, or why there is none.
type KeyPart struct {
	Part    string  `json:"part"` // where it comes from
	Value   *string `json:"value,omitempty"`
	Missing bool    `json:"missing,omitempty"` // the request lacks it
	Hidden  bool    `json:"hidden,omitempty"`  // it is a credential
}

// Override is the override that holds.
type Override struct {
	Index int      `json:"index"`
	Name  string   `json:"name,omitempty"`
	Key   []string `json:"key"`
}
