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
	// Outliers are the clients among the Outliers of any limit that the policy denies most.
	Outliers []Client `json:"apart,omitempty"`
	Policy   string   `json:"policy"` // a file, in shadow mode
	Replay   *Report  `json:"replay"` // of that policy

	short []string // warnings of periods that are longer than the log
}

// LimitFor is what is known of one period.
type LimitFor struct {
	Per   string `json:"per"`
	Units uint32 `json:"units"` // that are suggested
	// Each is over all periods of all clients, Most over each client's fullest one.
	Each     Distribution `json:"each"`
	Most     Distribution `json:"most"`
	Outliers *Outliers    `json:"apart,omitempty"`
}

// Outliers are clients that raise no limit, because each of them uses far more than all others.
type Outliers struct {
	Clients int64  `json:"clients"`
	Least   uint32 `json:"least"`  // units that each of them used in its fullest period
	Others  uint32 `json:"others"` // units that no other client exceeded in one
}

const (
	outlierFactor = 3   // an outlier uses more than so many times what any other client uses
	manyFactor    = 5   // the same for many outliers, which may be another kind of customer
	fewOutliers   = 20  // outliers are many if they are more than one, and more than one client in so many
	mostOutliers  = 3   // at most one client in so many is an outlier: the others are what clients usually do
	fewClients    = 10  // among fewer clients, none is known to be unlike the others
	usualShare    = 0.9 // of the others: what they use is usual
)

// findOutliers finds outliers by what each client used in its fullest period; nil = there are none.
func findOutliers(fullest Uses) (found *Outliers) {
	clients := fullest.Sum()
	if clients < fewClients {
		return nil
	}
	above := int64(0) // clients that use at least units[i]
	units := slices.Sorted(maps.Keys(fullest))
	for i := len(units) - 1; i > 0; i-- {
		above += fullest[units[i]]
		if above*mostOutliers > clients {
			break
		}
		factor := uint64(outlierFactor)
		if above > 1 && above*fewOutliers > clients {
			factor = manyFactor
		}
		least, others := uint64(units[i]), uint64(units[i-1])
		usual := uint64(fullest.upTo(units[i-1]).Quantile(usualShare))
		// The tail of honest traffic can be long: there the others' most is as far above what is usual. Outliers
		// lie further above the others' most than that: least/others > others/usual.
		isFurther := least*usual > others*others
		if least > factor*others && isFurther {
			found = &Outliers{above, units[i], units[i-1]}
		}
	}
	return found
}

// ErrKeyless is the error of a log in which no request has the key.
var ErrKeyless = errors.New("no request in the logs has the key")

// Suggest counts what clients use in aligned periods, as fixed windows do, and finds the least
// limits that would have denied no more than a share. The compiled filter reads the keys, and
// decides what the limits deny. Suggest reads the logs twice.
func Suggest(ctx context.Context, o SuggestOptions) (*Suggestion, error) {
	if err := checkReadTwice(o.Log.Names); err != nil {
		return nil, err
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
	if err := o.count(ctx, s, draft); err != nil {
		return nil, err
	}
	return s, o.replay(ctx, s, draft)
}

func checkReadTwice(names []string) error {
	for _, name := range names {
		info, err := os.Stat(name)
		if name == "-" || err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeCharDevice) != 0 {
			return fmt.Errorf("%s cannot be read twice: give the logs as files", name)
		}
	}
	return nil
}

const suggestedName = "the suggested policy"

// count finds the limits by what clients use. A policy without limits decides, so that nothing is
// denied; the periods are those of a policy that has the limits.
func (o *SuggestOptions) count(ctx context.Context, s *Suggestion, d *draft) error {
	withPeriods, _, _, err := policyfile.Read(suggestedName, []byte(d.text(s.Limits)))
	if err != nil {
		return err
	}
	measure, err := newMeasure(File{suggestedName, []byte(d.text(nil))}, withPeriods)
	if err != nil {
		return err
	}
	r, err := o.run(ctx, []*side{measure})
	if err != nil {
		return err
	}
	rule := r.sides[0].rules[0]
	switch {
	case rule.Requests > 0:
	case len(r.log.Empty) > 0:
		return fmt.Errorf("%w: no line has a value of %s", ErrKeyless, strings.Join(r.log.Empty, ", "))
	default:
		return ErrKeyless
	}
	s.Log = r.log.Stats
	s.Clients = int64(len(rule.clients.all))
	s.Keyless = r.log.Requests - rule.Requests
	o.setLimits(s.Limits, rule.clients)
	for i, p := range rule.clients.periods {
		d.capacity = max(d.capacity, p.peak)
		if span := s.Log.LastNs - s.Log.FirstNs; withPeriods.Rules[0].Limits[i].PeriodNs > span {
			s.short = append(s.short, fmt.Sprintf("%s is longer than the log, which has %s: clients may use more in a whole %s",
				o.Periods[i], time.Duration(span).Round(time.Second), o.Periods[i]))
		}
	}
	return nil
}

// replay replays the policy that has the limits.
func (o *SuggestOptions) replay(ctx context.Context, s *Suggestion, d *draft) error {
	s.Policy = d.text(s.Limits)
	suggested, err := newSide(File{suggestedName, []byte(s.Policy)})
	if err != nil {
		return err
	}
	r, err := o.run(ctx, []*side{suggested})
	if err != nil {
		return err
	}
	s.Replay = r.report()
	s.Replay.Warnings = append(s.Replay.Warnings, s.short...)
	s.Outliers = deniedOutliers(r.sides[0].rules[0], s.Limits)
	return nil
}

// deniedOutliers are the clients of a rule that are outliers by any of its limits.
func deniedOutliers(rule *ruleCollector, limits []LimitFor) []Client {
	c := rule.clients
	return c.sum(rule.policy.Key, func(i uint32) uint32 {
		for j := range limits {
			if o := limits[j].Outliers; o != nil && c.periods[j].tallies[i].most >= o.Least {
				return c.all[i].denied
			}
		}
		return 0
	}).Top
}

// setLimits sets limits by what clients used.
func (o *SuggestOptions) setLimits(limits []LimitFor, c *clients) {
	// A request that several limits deny is denied once, so the parts of the share
	// add up to no more than the share.
	most := o.Most / float64(len(limits))
	for j, each := range c.endPeriods() {
		fullest := c.periods[j].fullest()
		l := &limits[j]
		l.Each = each.Distribution()
		l.Most = fullest.Distribution()
		l.Outliers = findOutliers(fullest)
		if l.Outliers != nil {
			each, fullest = each.upTo(l.Outliers.Others), fullest.upTo(l.Outliers.Others)
		}
		units, clients := int64(most*float64(each.units())), int64(most*float64(fullest.Sum()))
		l.Units = round(least(each, fullest, units, clients))
	}
}

// least returns the least limit that denies at most so many units and clients.
func least(each, fullest Uses, units, clients int64) uint32 {
	deniesMore := func(limit uint32) bool {
		deniedUnits, deniedClients := int64(0), int64(0)
		for used, times := range each {
			deniedUnits += int64(used-min(used, limit)) * times
		}
		for used, times := range fullest {
			if used > limit {
				deniedClients += times
			}
		}
		return deniedUnits > units || deniedClients > clients
	}
	low, high := uint32(1), fullest.Quantile(1)
	for low < high {
		middle := low + (high-low)/2
		if deniesMore(middle) {
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
		text, err := keyPart(part)
		if err != nil {
			return nil, err
		}
		texts[i] = text
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

func (d *draft) text(list []LimitFor) string {
	limits := make([]string, len(list))
	for i, l := range list {
		limits[i] = fmt.Sprintf(`"%d/%s"`, l.Units, l.Per)
	}
	const format = "version: 1\nrules:\n  - name: %s\n    mode: shadow\n    key: [%s]\n    limits: [%s]\n"
	text := fmt.Sprintf(format, d.name, d.key, strings.Join(limits, ", "))
	if d.capacity > policy.DefaultCapacity {
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
	return "", fmt.Errorf("--key %s is not a part of a key: there are %s", part, strings.Join(KeyForms(), ", "))
}

// KeyForms are the forms of SuggestOptions.Key.
func KeyForms() []string {
	return append([]string{"header:NAME", "query:NAME", "cookie:NAME", "jwt:PROVIDER:CLAIM"}, policy.BareKeys()...)
}
