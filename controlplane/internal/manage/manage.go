// Package manage asks running proxies about their counters, on the management
// path of the filter, and reads what they answer.
//
// Its invariant: the management token goes to no address that Rules forbid, and
// into no error. A proxy's answer is bounded in size and time, is read into the
// types below, and takes memory only within the bounds of a Fleet. The
// package must never import the store, the xDS server, the API or the command
// line.
package manage

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
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
	// MaxDescribed is the longest description that a proxy gets: Envoy refuses
	// headers of 60 KiB, and some of those are its own.
	MaxDescribed = 48 << 10
	// maxQuery is the longest query of a URL, for the same reason.
	maxQuery = 56 << 10
)

// Operation is one of the operations on counters.
type Operation struct {
	Name    string // of the command and in the API
	Wire    string // as the filter has it
	Keyed   bool   // on one key of one rule
	Units   bool   // takes a number of units
	Limits  bool   // takes the limits that a request would say
	Window  bool   // takes a window
	Sums    bool   // values of several proxies add up
	Changes bool   // changes counters
}

// Operations lists them as help does.
var Operations = []Operation{
	{Name: "hit", Wire: "hit", Keyed: true, Units: true, Limits: true, Changes: true},
	{Name: "peek", Wire: "peek", Keyed: true, Units: true, Limits: true},
	{Name: "get", Wire: "get", Keyed: true, Limits: true, Sums: true},
	{Name: "inc", Wire: "inc", Keyed: true, Units: true, Window: true, Sums: true, Changes: true},
	{Name: "set", Wire: "set", Keyed: true, Units: true, Window: true, Changes: true},
	{Name: "reset", Wire: "reset", Keyed: true, Changes: true},
	{Name: "expires-at", Wire: "expires_at", Keyed: true},
	{Name: "clean", Wire: "clean", Sums: true, Changes: true},
	Stats,
	{Name: "top", Wire: "top"},
}

// OperationOf is the operation of that name, which there is.
func OperationOf(name string) Operation {
	return Operations[slices.IndexFunc(Operations, func(op Operation) bool { return op.Name == name })]
}

// Stats asks for what all rules have decided.
var Stats = Operation{Name: "stats", Wire: "stats"}

// Leased is what a proxy is asked about a key of a rule of scope cluster: the units
// that it may still spend. All other operations on such a key are the quota
// service's.
var Leased = Operation{Name: "leased", Wire: "leased", Keyed: true, Sums: true}

// Subject is what an operation is done to.
type Subject struct {
	Rule   string   // empty: all rules, where the operation takes no key
	Key    []string // its parts
	N      string   // units, as given
	Limits []string // that a request would say, as given
	Window string   // name or index; empty: all
}

// Query checks the subject and returns it as proxies, and the API, get it.
func (op Operation) Query(s Subject) (url.Values, error) {
	q := url.Values{}
	switch {
	case len(s.Rule) > policy.MaxNameBytes || len(s.Window) > policy.MaxNameBytes:
		return nil, fmt.Errorf("names of rules and windows have at most %d bytes", policy.MaxNameBytes)
	case len(s.Key) > policy.MaxKeyParts:
		return nil, fmt.Errorf("a key has at most %d parts, not %d", policy.MaxKeyParts, len(s.Key))
	case s.Rule != "":
		q.Set("rule", s.Rule)
	case op.Keyed:
		return nil, errors.New("rule is missing: give the name of a rule of the policy")
	}
	switch {
	case op.Keyed:
		q["key"] = s.Key
	case len(s.Key) > 0:
		return nil, errors.New("key does not go with " + op.Name + ", which is about whole rules")
	}
	switch {
	case !op.Units && s.N != "":
		return nil, errors.New("n does not go with " + op.Name)
	case s.N != "":
		n, err := strconv.ParseUint(s.N, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("n %.40q is not a whole number from 0 to 4294967295", s.N)
		}
		q.Set("n", strconv.FormatUint(n, 10))
	case op.Name == "set":
		return nil, errors.New("n is missing: give the number of units to set")
	}
	for _, limit := range s.Limits {
		if !op.Limits {
			return nil, errors.New("limit does not go with " + op.Name)
		}
		if _, err := strconv.ParseUint(limit, 10, 32); err != nil {
			return nil, fmt.Errorf("limit %.40q is not a whole number from 0 to 4294967295", limit)
		}
		q["limit"] = append(q["limit"], limit)
	}
	switch {
	case !op.Window && s.Window != "":
		return nil, errors.New("window does not go with " + op.Name)
	case s.Window != "":
		q.Set("window", s.Window)
	}
	if len(q.Encode()) > maxQuery {
		return nil, fmt.Errorf("key has more than %d bytes, escaped as in a URL: no proxy takes a request as long", maxQuery)
	}
	return q, nil
}

// CheckTimeout refuses a timeout that is out of range.
func CheckTimeout(timeout time.Duration) error {
	if timeout <= 0 || timeout > MaxTimeout {
		return fmt.Errorf("timeout %s is not above 0 and up to %s", timeout, MaxTimeout)
	}
	return nil
}

// Failure says why a proxy was not asked, or did not do the operation.
type Failure struct{ Text, Hint string }

func (f *Failure) Error() string { return f.Text }
