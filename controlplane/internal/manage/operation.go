package manage

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// DefaultTimeout is how long a proxy may take by default.
	DefaultTimeout = 5 * time.Second
	// MaxTimeout is the longest time that a proxy may be given.
	MaxTimeout = MaxCall

	// RequestHeader holds the request that a proxy is to explain.
	RequestHeader = "x-sluice-request"
	// MaxDescribed bounds the description of that request: Envoy rejects headers of 60 KiB, and
	// some of those are its own.
	MaxDescribed = 48 << 10
	// maxQuery is the longest query of a URL, for the same reason.
	maxQuery = 56 << 10
)

// Operation is one of the operations on counters. A new one needs its row in Operations, which makes
// its path in the API, its texts on the command line (package cli, counters.go), and the same name in
// the filter.
type Operation struct {
	Name       string // of the command and in the API
	Wire       string // in the filter's management path
	Keyed      bool   // it is done to one key of one rule
	Units      bool   // it takes a number of units
	NeedsUnits bool   // it must be given one
	Limits     bool   // it takes the limits that a request would say
	Window     bool   // it takes a window
	Sums       bool   // the values of several proxies add up
	Changes    bool   // it changes counters
	answer     *answer
}

// Operations that the program itself asks for. Leased asks a proxy which units it may still
// spend of a key of a rule of scope cluster. All other operations on such a key are the quota
// service's.
var (
	Get    = Operation{Name: "get", Wire: "get", Keyed: true, Limits: true, Sums: true, answer: ofValue}
	Peek   = Operation{Name: "peek", Wire: "peek", Keyed: true, Units: true, Limits: true, answer: ofVerdict}
	Reset  = Operation{Name: "reset", Wire: "reset", Keyed: true, Changes: true, answer: ofValue}
	Stats  = Operation{Name: "stats", Wire: "stats", answer: ofStats}
	Top    = Operation{Name: "top", Wire: "top", answer: ofDenials}
	Leased = Operation{Name: "leased", Wire: "leased", Keyed: true, Sums: true, answer: ofValue}
)

// Operations lists the operations of users, in the order of help.
var Operations = []Operation{
	{Name: "hit", Wire: "hit", Keyed: true, Units: true, Limits: true, Changes: true, answer: ofVerdict},
	Peek,
	Get,
	{Name: "inc", Wire: "inc", Keyed: true, Units: true, Window: true, Sums: true, Changes: true, answer: ofValue},
	{
		Name: "set", Wire: "set", Keyed: true, Units: true, NeedsUnits: true, Window: true, Changes: true,
		answer: ofValue,
	},
	Reset,
	{Name: "expires-at", Wire: "expires_at", Keyed: true, answer: ofTime},
	{Name: "clean", Wire: "clean", Sums: true, Changes: true, answer: ofValue},
	Stats,
	Top,
}

// Subject is what an operation is done to.
type Subject struct {
	Rule   string   // empty: all rules, if the operation takes no key
	Key    []string // its parts
	N      string   // units, as the caller wrote them
	Limits []string // that a request would say, as the caller wrote them
	Window string   // name or index; empty: all
}

// Query checks the subject and returns it as proxies, and the API, get it. An error begins with
// the name of the parameter that is wrong.
func (op Operation) Query(s Subject) (url.Values, error) {
	q := url.Values{}
	for _, add := range []func(url.Values, *Subject) error{
		op.addRule, op.addKey, op.addUnits, op.addLimits, op.addWindow,
	} {
		if err := add(q, &s); err != nil {
			return nil, err
		}
	}
	if len(q.Encode()) > maxQuery {
		return nil, fmt.Errorf(
			"key has more than %d bytes, escaped as in a URL: no proxy accepts so long a request", maxQuery)
	}
	return q, nil
}

func (op Operation) addRule(q url.Values, s *Subject) error {
	switch {
	case len(s.Rule) > policy.MaxNameBytes:
		return fmt.Errorf("rule is longer than the %d bytes of a name", policy.MaxNameBytes)
	case s.Rule != "":
		q.Set("rule", s.Rule)
	case op.Keyed:
		return errors.New("rule is missing: give the name of a rule of the policy")
	}
	return nil
}

func (op Operation) addKey(q url.Values, s *Subject) error {
	switch {
	case len(s.Key) > policy.MaxKeyParts:
		return fmt.Errorf("key has %d parts, but at most %d are allowed", len(s.Key), policy.MaxKeyParts)
	case op.Keyed:
		q["key"] = s.Key
	case len(s.Key) > 0:
		return errors.New("key does not go with " + op.Name + ", which is about whole rules")
	}
	return nil
}

func (op Operation) addUnits(q url.Values, s *Subject) error {
	switch {
	case s.N == "" && op.NeedsUnits:
		return errors.New("n is missing: give the number of units to " + op.Name)
	case s.N == "":
		return nil
	case !op.Units:
		return errors.New("n does not go with " + op.Name)
	}
	n, err := strconv.ParseUint(s.N, 10, 32)
	if err != nil {
		return fmt.Errorf("n %.40q is not a whole number from 0 to 4294967295", s.N)
	}
	q.Set("n", strconv.FormatUint(n, 10))
	return nil
}

func (op Operation) addLimits(q url.Values, s *Subject) error {
	if len(s.Limits) > 0 && !op.Limits {
		return errors.New("limit does not go with " + op.Name)
	}
	for _, limit := range s.Limits {
		if _, err := strconv.ParseUint(limit, 10, 32); err != nil {
			return fmt.Errorf("limit %.40q is not a whole number from 0 to 4294967295", limit)
		}
		q.Add("limit", limit)
	}
	return nil
}

func (op Operation) addWindow(q url.Values, s *Subject) error {
	switch {
	case s.Window == "":
		return nil
	case !op.Window:
		return errors.New("window does not go with " + op.Name)
	case len(s.Window) > policy.MaxNameBytes:
		return fmt.Errorf("window is longer than the %d bytes of a name", policy.MaxNameBytes)
	}
	q.Set("window", s.Window)
	return nil
}

// CheckTimeout rejects a timeout that is out of range.
func CheckTimeout(timeout time.Duration) error {
	if timeout <= 0 || timeout > MaxTimeout {
		return fmt.Errorf("timeout %s is not above 0 and at most %s", timeout, MaxTimeout)
	}
	return nil
}

// Failure says why a proxy was not asked, or did not do the operation, and what helps.
type Failure struct{ Text, Hint string }

func (f *Failure) Error() string { return f.Text }
