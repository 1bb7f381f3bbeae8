package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// SuggestOptions say what limits to find. Of Options, Policy and Against are not used.
type SuggestOptions struct {
	Options
	Key     []string // its parts, as header:x-user-id
	Periods []string // as policies have them: 1m
	Most    float64  // the largest share of requests, and of clients, to deny
}

// Suggestion is how much clients use, and limits for them.
type Suggestion struct {
	Log     accesslog.Stats `json:"log"`
	Keyless int64           `json:"keyless"` // requests that lack a part of the key
	Clients int64           `json:"clients"`
	Limits  []LimitFor      `json:"limits"`
	Policy  string          `json:"policy"` // a file, in shadow mode
	Replay  *Report         `json:"replay"` // of that policy
}

// LimitFor is what is known of one period.
type LimitFor struct {
	Per   string `json:"per"`
	Units uint32 `json:"units"` // that are suggested
	// Each is over all periods of all clients, Most over each client's fullest one.
	Each  Distribution `json:"each"`
	Most  Distribution `json:"most"`
	Apart *Apart       `json:"apart,omitempty"`
}

// Apart are clients that use more than apartFactor times what any other does. They are
// at most a hundredth of at least fewClients clients, or one, and set no limit.
type Apart struct {
	Clients int64  `json:"clients"`
	Least   uint32 `json:"least"`  // units that each of them used in its fullest period
	Others  uint32 `json:"others"` // units that no other client exceeded in one
}

const (
	apartFactor = 3
	fewClients  = 10 // of fewer, none is known to be unlike the others
)

// apart finds them among each client's use of its fullest period; nil = none.
func apart(fullest Uses) (found *Apart) {
	clients, above := fullest.Sum(), int64(0)
	units := slices.Sorted(maps.Keys(fullest))
	for i := len(units) - 1; i > 0 && clients >= fewClients; i-- {
		if above += fullest[units[i]]; above > (clients+99)/100 {
			break
		}
		if uint64(units[i]) > apartFactor*uint64(units[i-1]) {
			found = &Apart{above, units[i], units[i-1]}
		}
	}
	return found
}

// ErrKeyless is the error of a log in which no request has the key.
var ErrKeyless = errors.New("no request in the logs has the key")

// Suggest counts what clients use in aligned periods, as fixed windows do, and finds
// the least limits that would have denied no more than a share. The compiled filter
// reads the keys, and decides what the limits deny. It reads the logs twice.
func Suggest(ctx context.Context, o SuggestOptions) (*Suggestion, error) {
	for _, name := range o.Log.Names {
		info, err := os.Stat(name)
		if name == "-" || err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeCharDevice) != 0 {
			return nil, fmt.Errorf("%s cannot be read twice: give the logs as files", name)
		}
	}
	draft, err := o.draft()
	if err != nil {
		return nil, err
	}
	const name = "the suggested policy"
	counted, _, _, err := policyfile.Read(name, []byte(draft.text()))
	if err != nil {
		return nil, err
	}
	keys := []byte((&draftRule{name: draft.name, key: draft.key}).text())
	r, err := o.run(ctx, []*side{{File: File{name, keys}, policy: counted}})
	if err != nil {
		return nil, err
	}
	switch {
	case r.sides[0].Rules[0].Requests > 0:
	case len(r.log.Empty) > 0:
		return nil, fmt.Errorf("%w: no line has a value of %s", ErrKeyless, strings.Join(r.log.Empty, ", "))
	default:
		return nil, ErrKeyless
	}
	s := o.find(r, draft)
	again := o.Options
	again.Policy, again.Against = File{name, []byte(draft.text())}, nil
	s.Policy = draft.text()
	if s.Replay, err = Run(ctx, again); err != nil {
		return nil, err
	}
	s.Replay.Warnings = append(s.Replay.Warnings, spanWarnings(&counted.Rules[0], o.Periods, &s.Log)...)
	return s, nil
}

// spanWarnings name the periods of which the log has only a part.
func spanWarnings(rule *policy.Rule, periods []string, log *accesslog.Stats) (warnings []string) {
	for i, per := range periods {
		if span := log.LastNs - log.FirstNs; rule.Limits[i].PeriodNs > span {
			warnings = append(warnings, fmt.Sprintf("%s is longer than the log, which has %s: clients may use more in a whole %s",
				per, time.Duration(span).Round(time.Second), per))
		}
	}
	return warnings
}

// find sets the limits of the draft by what was counted.
func (o *SuggestOptions) find(r *run, draft *draftRule) *Suggestion {
	rule := &r.sides[0].rules[0]
	s := &Suggestion{
		Log: r.log.Stats, Clients: int64(len(rule.clients.all)),
		Keyless: r.log.Requests - rule.out.Requests,
	}
	// A request that several limits deny is denied once, so the parts of the share
	// add up to no more than the share.
	most := o.Most / float64(len(o.Periods))
	all := rule.clients.uses()
	for j, per := range o.Periods {
		fullest := rule.clients.most(j)
		l := LimitFor{Per: per, Each: all[j].Distribution(), Most: fullest.Distribution(), Apart: apart(fullest)}
		if l.Apart != nil {
			all[j], fullest = all[j].upTo(l.Apart.Others), fullest.upTo(l.Apart.Others)
		}
		l.Units = round(least(all[j], fullest, int64(most*float64(all[j].units())), int64(most*float64(fullest.Sum()))))
		draft.units[j] = l.Units
		draft.capacity = max(draft.capacity, rule.clients.periods[j].peak)
		s.Limits = append(s.Limits, l)
	}
	return s
}

// least returns the least limit that denies at most so many requests and clients.
func least(each, fullest Uses, requests, clients int64) uint32 {
	deniesMore := func(limit uint32) bool {
		var n int64
		for units, times := range each {
			n += int64(units-min(units, limit)) * times
		}
		for units, times := range fullest {
			if units > limit {
				clients -= times
			}
		}
		return n > requests || clients < 0
	}
	budget := clients
	low, high := uint32(1), fullest.Quantile(1)
	for low < high {
		clients = budget
		if middle := low + (high-low)/2; deniesMore(middle) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// round rounds up to two digits.
func round(n uint32) uint32 {
	scale := uint64(1)
	for uint64(n) > 99*scale {
		scale *= 10
	}
	return uint32(min((uint64(n)+scale-1)/scale*scale, math.MaxUint32))
}

// draftRule is a policy of one rule.
type draftRule struct {
	name     string
	key      []string // in YAML
	periods  []string
	units    []uint32
	capacity int64
}

// defaultCapacity is what a rule without capacity has.
const defaultCapacity = 65536

func (d *draftRule) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nrules:\n  - name: %s\n    mode: shadow\n    key: [%s]\n", d.name, strings.Join(d.key, ", "))
	limits := make([]string, len(d.periods))
	for i := range limits {
		limits[i] = fmt.Sprintf(`"%d/%s"`, d.units[i], d.periods[i])
	}
	fmt.Fprintf(&b, "    limits: [%s]\n", strings.Join(limits, ", "))
	if d.capacity > defaultCapacity {
		fmt.Fprintf(&b, "    capacity: %d\n", min(round(uint32(min(d.capacity, math.MaxUint32))), policy.MaxCapacity))
	}
	return b.String()
}

// draft is the policy with limits that deny nothing.
func (o *SuggestOptions) draft() (*draftRule, error) {
	d := &draftRule{periods: o.Periods, name: "per"}
	for range o.Periods {
		d.units = append(d.units, math.MaxUint32)
	}
	for _, part := range o.Key {
		text, err := keyPart(part)
		if err != nil {
			return nil, err
		}
		d.key = append(d.key, text)
		d.name += "-" + strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, strings.ToLower(part[strings.LastIndexByte(part, ':')+1:])), "-")
	}
	return d, nil
}

// keyPart is a part of a key in YAML.
func keyPart(part string) (string, error) {
	kind, name, named := strings.Cut(part, ":")
	switch {
	case !named && slices.Contains(policy.BareKeys(), kind):
		return kind, nil
	case named && name != "" && slices.Contains([]string{"header", "query", "cookie"}, kind):
		return fmt.Sprintf("{%s: %q}", kind, name), nil
	case kind == "jwt":
		if provider, claim, ok := strings.Cut(name, ":"); ok && provider != "" && claim != "" {
			return fmt.Sprintf("{jwt: {provider: %q, claim: %q}}", provider, claim), nil
		}
	}
	return "", fmt.Errorf("--key %s is no part of a key: there are %s", part, strings.Join(KeyForms(), ", "))
}

// KeyForms are the forms of SuggestOptions.Key.
func KeyForms() []string {
	return append([]string{"header:NAME", "query:NAME", "cookie:NAME", "jwt:PROVIDER:CLAIM"}, policy.BareKeys()...)
}
