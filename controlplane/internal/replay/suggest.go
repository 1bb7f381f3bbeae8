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
	Apart   []Client        `json:"apart,omitempty"` // by any limit; those most denied
	Policy  string          `json:"policy"`          // a file, in shadow mode
	Replay  *Report         `json:"replay"`          // of that policy
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

// Apart are clients that set no limit, because they lie far from the others: they use many times what
// any other does, and lie further above the others' most than that lies above nine tenths of the
// others, so that the tail of honest traffic, however long, is not taken for them.
type Apart struct {
	Clients int64  `json:"clients"`
	Least   uint32 `json:"least"`  // units that each of them used in its fullest period
	Others  uint32 `json:"others"` // units that no other client exceeded in one
}

const (
	apartFactor = 3 // times what any other client uses, at least
	manyFactor  = 5 // the same, where they are more than one client in fewApart: these may be customers of another kind
	fewApart    = 20
	mostApart   = 3   // no more than one client in so many is apart: the others are what clients usually do
	fewClients  = 10  // of fewer, none is known to be unlike the others
	othersShare = 0.9 // of the others, below what is called their tail
)

// apart finds them among each client's use of its fullest period; nil = none.
func apart(fullest Uses) (found *Apart) {
	clients, above := fullest.Sum(), int64(0)
	if clients < fewClients {
		return nil
	}
	units := slices.Sorted(maps.Keys(fullest))
	for i := len(units) - 1; i > 0; i-- {
		above += fullest[units[i]]
		if above*mostApart > clients {
			break
		}
		least, others := uint64(units[i]), uint64(units[i-1])
		factor := uint64(apartFactor)
		if above > 1 && above*fewApart > clients {
			factor = manyFactor
		}
		if least > factor*others && least*uint64(fullest.upTo(units[i-1]).Quantile(othersShare)) > others*others {
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
	draft, err := newDraft(o.Key)
	switch {
	case err != nil:
		return nil, err
	case len(o.Periods) == 0:
		return nil, errors.New("--per names no period")
	}
	s := &Suggestion{}
	for _, per := range o.Periods {
		s.Limits = append(s.Limits, LimitFor{Per: per, Units: math.MaxUint32})
	}
	const name = "the suggested policy"
	counted, _, _, err := policyfile.Read(name, []byte(draft.text(s.Limits)))
	if err != nil {
		return nil, err
	}
	r, err := o.run(ctx, []*side{{File: File{name, []byte(draft.text(nil))}, policy: counted}})
	if err != nil {
		return nil, err
	}
	rule := r.sides[0].rules[0]
	switch {
	case rule.Requests > 0:
	case len(r.log.Empty) > 0:
		return nil, fmt.Errorf("%w: no line has a value of %s", ErrKeyless, strings.Join(r.log.Empty, ", "))
	default:
		return nil, ErrKeyless
	}
	s.Log, s.Clients, s.Keyless = r.log.Stats, int64(len(rule.clients.all)), r.log.Requests-rule.Requests
	o.find(s.Limits, rule.clients)
	for _, p := range rule.clients.periods {
		draft.capacity = max(draft.capacity, p.peak)
	}
	s.Policy = draft.text(s.Limits)
	r, err = o.run(ctx, []*side{{File: File{name, []byte(s.Policy)}}})
	if err != nil {
		return nil, err
	}
	s.Replay = r.report()
	s.Apart = clientsApart(r.sides[0].rules[0], s.Limits)
	span := s.Log.LastNs - s.Log.FirstNs
	for i, per := range o.Periods {
		if counted.Rules[0].Limits[i].PeriodNs > span {
			s.Replay.Warnings = append(s.Replay.Warnings, fmt.Sprintf("%s is longer than the log, which has %s: clients may use more in a whole %s",
				per, time.Duration(span).Round(time.Second), per))
		}
	}
	return s, nil
}

// clientsApart are the clients of a rule that are set apart by any of its limits.
func clientsApart(rule *ruleCollector, limits []LimitFor) []Client {
	c := rule.clients
	return c.sum(rule.policy.Key, func(i uint32) uint32 {
		for j := range limits {
			if a := limits[j].Apart; a != nil && c.periods[j].windows[i].most >= a.Least {
				return c.all[i].denied
			}
		}
		return 0
	}).Top
}

// find sets limits by what clients used.
func (o *SuggestOptions) find(limits []LimitFor, c *clients) {
	// A request that several limits deny is denied once, so the parts of the share
	// add up to no more than the share.
	most := o.Most / float64(len(limits))
	for j, each := range c.uses() {
		fullest := c.most(j)
		l := &limits[j]
		l.Each, l.Most, l.Apart = each.Distribution(), fullest.Distribution(), apart(fullest)
		if l.Apart != nil {
			each, fullest = each.upTo(l.Apart.Others), fullest.upTo(l.Apart.Others)
		}
		l.Units = round(least(each, fullest, int64(most*float64(each.units())), int64(most*float64(fullest.Sum()))))
	}
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

// draft is a policy of one rule.
type draft struct {
	name, key string // in YAML
	capacity  int64
}

func newDraft(key []string) (*draft, error) {
	d, texts := &draft{name: "per"}, make([]string, len(key))
	for i, part := range key {
		var err error
		if texts[i], err = keyPart(part); err != nil {
			return nil, err
		}
		d.name += "-" + strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, strings.ToLower(part[strings.LastIndexByte(part, ':')+1:])), "-")
	}
	d.key = strings.Join(texts, ", ")
	return d, nil
}

// defaultCapacity is what a rule without capacity has.
const defaultCapacity = 65536

func (d *draft) text(list []LimitFor) string {
	limits := make([]string, len(list))
	for i, l := range list {
		limits[i] = fmt.Sprintf(`"%d/%s"`, l.Units, l.Per)
	}
	text := fmt.Sprintf("version: 1\nrules:\n  - name: %s\n    mode: shadow\n    key: [%s]\n    limits: [%s]\n", d.name, d.key, strings.Join(limits, ", "))
	if d.capacity > defaultCapacity {
		text += fmt.Sprintf("    capacity: %d\n", min(round(uint32(min(d.capacity, math.MaxUint32))), policy.MaxCapacity))
	}
	return text
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
