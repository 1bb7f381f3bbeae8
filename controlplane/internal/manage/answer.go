package manage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Answer is a proxy's answer to an operation. Times are as simulate has them:
// in milliseconds, rounded up.
type Answer struct {
	Value   *int64        `json:"value,omitempty"`
	Windows list[Window]  `json:"windows,omitempty"`
	Allowed *bool         `json:"allowed,omitempty"`
	Denied  string        `json:"denied_by,omitempty"`
	RetryMs *int64        `json:"retry_after_ms,omitempty"` // of a denial; -1 = never
	Rules   list[Verdict] `json:"rules,omitempty"`          // of hit and peek
	Stats   list[Stats]   `json:"stats,omitzero"`
}

// Verdict is what one rule decided.
type Verdict struct {
	Rule      string       `json:"rule"`
	Key       list[string] `json:"key"`
	Mode      string       `json:"mode"`
	Allowed   bool         `json:"allowed"`
	Reason    string       `json:"reason,omitempty"`
	Remaining *uint32      `json:"remaining,omitempty"`
	Windows   list[Window] `json:"windows"`
}

// Window is one limit of a rule and what is used of it.
type Window struct {
	Name      string  `json:"name,omitempty"`
	Unlimited bool    `json:"unlimited,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`
	PerMs     int64   `json:"per_ms"`
	Used      uint32  `json:"used"`
	Remaining *uint32 `json:"remaining,omitempty"`
	ResetMs   int64   `json:"reset_ms"`
}

// Stats are the statistics of one rule.
type Stats struct {
	Rule     string  `json:"rule"`
	Keys     uint64  `json:"keys"`
	Capacity uint64  `json:"capacity"`
	Slots    uint64  `json:"slots"`
	Buckets  uint64  `json:"buckets"`
	Bytes    uint64  `json:"bytes"`
	Metrics  metrics `json:"metrics"`
}

// Explained is what a proxy makes of a described request.
type Explained struct {
	Allowed  *bool               `json:"allowed,omitempty"`
	DeniedBy string              `json:"denied_by,omitempty"`
	RetryMs  *int64              `json:"retry_after_ms,omitempty"` // of a denial; -1 = never
	Rules    list[ExplainedRule] `json:"rules,omitempty"`
}

// ExplainedRule is what one rule has to do with the request. All from Key on is
// of a rule that matches.
type ExplainedRule struct {
	Rule      string              `json:"rule"`
	Outcome   string              `json:"outcome"`
	Why       string              `json:"why,omitempty"`
	Key       list[ExplainedPart] `json:"key,omitempty"`
	Cost      *uint32             `json:"cost,omitempty"`
	TooLong   bool                `json:"too_long,omitempty"`
	Override  *ExplainedOverride  `json:"override,omitempty"`
	Unlimited bool                `json:"unlimited,omitempty"`
	Mode      string              `json:"mode,omitempty"`
	Allowed   *bool               `json:"allowed,omitempty"`
	Reason    string              `json:"reason,omitempty"`
	Windows   list[Window]        `json:"windows,omitempty"` // before the request
}

// ExplainedPart is one part of a key.
type ExplainedPart struct {
	Part    string  `json:"part"`
	Value   *string `json:"value,omitempty"`
	Missing bool    `json:"missing,omitempty"`
	Hidden  bool    `json:"hidden,omitempty"`
}

// ExplainedOverride is the override that holds.
type ExplainedOverride struct {
	Index int          `json:"index"`
	Key   list[string] `json:"key"`
}

// list bounds what an answer can make of a few bytes: an empty object of three
// bytes is a hundred once it is read.
type list[T any] []T

// UnmarshalJSON reads at most as many elements as a policy has rules.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('[') {
		return errors.New("not a list")
	}
	*l = list[T]{}
	for d.More() {
		if len(*l) == policy.MaxRules {
			return fmt.Errorf("a list of more than %d", policy.MaxRules)
		}
		var element T
		if err := d.Decode(&element); err != nil {
			return err
		}
		*l = append(*l, element)
	}
	return nil
}

// metrics are counts by name.
type metrics map[string]uint64

// maxMetrics is more than a rule has.
const maxMetrics = 100

// UnmarshalJSON reads at most maxMetrics.
func (m *metrics) UnmarshalJSON(text []byte) error {
	if n := bytes.Count(text, []byte{':'}); n > maxMetrics {
		return fmt.Errorf("more than %d metrics", maxMetrics)
	}
	var plain map[string]uint64 // without this method
	err := json.Unmarshal(text, &plain)
	*m = plain
	return err
}

// UnmarshalJSON reads a window as the filter writes it, in nanoseconds, and as
// it is written here.
func (w *Window) UnmarshalJSON(text []byte) error {
	type plain Window // without this method
	var ns struct {
		plain
		PerNs   int64 `json:"per_ns"`
		ResetNs int64 `json:"reset_ns"`
	}
	if err := json.Unmarshal(text, &ns); err != nil {
		return fmt.Errorf("read window: %w", err)
	}
	*w = Window(ns.plain)
	w.PerMs += milliseconds(ns.PerNs)
	w.ResetMs += milliseconds(ns.ResetNs)
	return nil
}

// milliseconds rounds up.
func milliseconds(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 > 0 {
		ms++
	}
	return ms
}

// retry is a wait in milliseconds; never stays -1.
func retry(ns int64) *int64 {
	if ns > 0 {
		ns = milliseconds(ns)
	}
	return &ns
}

// ReadAnswer reads what the filter answers to an operation; it reports whether
// it is such an answer.
func ReadAnswer(op Operation, text []byte) (Answer, bool) {
	var raw struct {
		Value   *int64          `json:"value"`
		Windows list[Window]    `json:"windows"`
		Allowed *bool           `json:"allowed"`
		Denied  string          `json:"denied_by"`
		RetryNs int64           `json:"retry_after_ns"`
		Rules   json.RawMessage `json:"rules"`
	}
	if json.Unmarshal(text, &raw) != nil {
		return Answer{}, false
	}
	a := Answer{Value: raw.Value, Windows: raw.Windows}
	var err error
	switch op.Name {
	case "stats":
		a = Answer{}
		err = json.Unmarshal(raw.Rules, &a.Stats)
	case "hit", "peek":
		a = Answer{Allowed: raw.Allowed, Denied: raw.Denied, RetryMs: retry(raw.RetryNs)}
		err = json.Unmarshal(raw.Rules, &a.Rules)
		if a.Allowed != nil && *a.Allowed {
			a.RetryMs = nil
		}
	case "expires-at":
		if a.Value != nil {
			*a.Value = milliseconds(*a.Value)
		}
	default: // values are what they are
	}
	return a, err == nil && a.Answers(op)
}

// Answers reports whether all is there that an answer to the operation has.
func (a *Answer) Answers(op Operation) bool {
	switch op.Name {
	case "stats":
		return a.Stats != nil
	case "hit", "peek":
		return a.Allowed != nil && (*a.Allowed || a.RetryMs != nil)
	}
	return a.Value != nil
}

// ReadExplained reads what the filter answers about a request; it reports
// whether it is such an answer.
func ReadExplained(text []byte) (Explained, bool) {
	var raw struct {
		Explained
		RetryNs *int64 `json:"retry_after_ns"`
	}
	if json.Unmarshal(text, &raw) != nil {
		return Explained{}, false
	}
	if raw.RetryNs != nil {
		raw.RetryMs = retry(*raw.RetryNs)
	}
	return raw.Explained, raw.Rules != nil && raw.Answers()
}

// Answers reports whether all is there that an explanation has.
func (x *Explained) Answers() bool {
	for _, r := range x.Rules {
		if r.Outcome == "matches" && (r.Allowed == nil || r.Cost == nil && !r.Unlimited) {
			return false
		}
	}
	return x.Allowed != nil
}
