package replay

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// kind is how a rule, or a whole policy, decides a request.
type kind int

const (
	allowed kind = iota
	denied
	inShadow       // it would be denied if the rule were enforced
	deniedByOthers // the rule allows it, but another one denies it: this rule does not count it

	kinds = int(deniedByOthers) + 1
)

func kindOf(b *result.Brief) kind {
	switch {
	case b.Allowed:
		return allowed
	case b.Shadow:
		return inShadow
	}
	return denied
}

// decision is what one policy made of one request.
type decision struct {
	kind
	briefs []result.Brief // of the rules
}

// newDecision is of what the filter reports.
func newDecision(briefs string, isDenied bool) (d decision, err error) {
	for rest := []byte(briefs); len(rest) > 0; {
		brief, after, ok := result.CutBrief(rest)
		if !ok {
			return d, fmt.Errorf("the filter reports what cannot be read: %q", briefs)
		}
		if kindOf(&brief) == inShadow {
			d.kind = inShadow
		}
		d.briefs, rest = append(d.briefs, brief), after
	}
	if isDenied {
		d.kind = denied
	}
	return d, nil
}

// onlyHere says by which kind the request counts as denied only by this policy. There may be no other: nil.
//
//	this policy  the other one             counts as
//	denied       allowed or in shadow      denied
//	in shadow    allowed                   in shadow
//	any          one that is as strict     neither
func (d *decision) onlyHere(other *decision) [kinds]bool {
	return [kinds]bool{
		denied:   other != nil && other.kind != denied,
		inShadow: other != nil && other.kind == allowed && d.kind != denied,
	}
}

// collector sums up the decisions of one policy.
type collector struct {
	Outcome
	timeline *timeline
	rules    []*ruleCollector
	index    map[string]*ruleCollector // by name
}

type ruleCollector struct {
	Rule
	policy  *policy.Rule
	clients *clients
	column  int // of the timeline, which has one of each kind
}

func newCollector(name string, p *policy.Policy, t *timeline) *collector {
	c := &collector{Outcome: Outcome{Policy: name}, timeline: t, index: map[string]*ruleCollector{}}
	left := &room{MaxClients, maxKeyBytes}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff {
			continue
		}
		labels := make([]string, len(r.Key))
		for j := range r.Key {
			labels[j] = r.Key[j].Label()
		}
		c.index[r.Name] = &ruleCollector{
			Rule:   Rule{Rule: r.Name, Mode: string(r.Mode), Key: labels, Reasons: map[string]int64{}},
			policy: r, clients: newClients(r, left), column: t.columns,
		}
		c.rules = append(c.rules, c.index[r.Name])
		t.columns += kinds
	}
	return c
}

// add counts a decision beside that of the other policy, nil without one.
func (c *collector) add(ns int64, d, other *decision, deniedInLog bool) error {
	onlyHere := d.onlyHere(other)
	switch d.kind {
	case allowed, deniedByOthers:
	case denied:
		c.Denied++
		c.DeniedInLog += one(deniedInLog)
		c.DeniedOnlyHere += one(onlyHere[denied])
	case inShadow:
		c.Shadow++
		c.ShadowOnlyHere += one(onlyHere[inShadow])
	}
	counts := c.timeline.at(ns)
	for i := range d.briefs {
		brief := &d.briefs[i]
		r, ok := c.index[string(brief.Rule)]
		if !ok {
			return fmt.Errorf("the filter reports a rule that the policy does not have: %q", brief.Rule)
		}
		kind := kindOf(brief)
		if kind == allowed && d.kind == denied {
			kind = deniedByOthers
		}
		counts[r.column+int(kind)]++
		r.add(ns, brief, kind, deniedInLog && d.kind == denied, onlyHere[kind])
		onlyHere[kind] = false // it counts once, at the first rule that denies it
	}
	return nil
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// add counts what a rule decided.
func (r *ruleCollector) add(ns int64, b *result.Brief, kind kind, deniedInLog, onlyHere bool) {
	r.Requests++
	switch kind {
	case allowed:
	case deniedByOthers:
		r.DeniedByOthers++
	case denied:
		r.Denied++
		r.DeniedInLog += one(deniedInLog)
	case inShadow:
		r.Shadow++
	}
	if len(b.Reason) > 0 {
		r.Reasons[string(b.Reason)]++
	}
	i, ok := r.clients.add(b.Key)
	if !ok {
		r.Uncounted++
		return
	}
	r.clients.countUnits(i, ns, r.policy.Cost.Fixed)
	r.clients.count(i, b.Key, kind, onlyHere)
}

// outcome returns what the policy decided in all. It ends the counting.
func (c *collector) outcome() Outcome {
	for _, r := range c.rules {
		of := func(kind kind) []int64 { return c.timeline.column(r.column + int(kind)) }
		r.Series = Series{of(allowed), of(denied), of(inShadow), of(deniedByOthers)}
		r.Clients = int64(len(r.clients.all))
		clients := r.clients.all
		all := r.clients.sum(r.policy.Key, func(i uint32) uint32 { return clients[i].denied })
		r.DeniedClients, r.Top = all.Clients, append([]Client{}, all.Top...)
		r.DeniedOnlyHere = r.clients.sum(r.policy.Key, func(i uint32) uint32 { return clients[i].onlyHere[denied] })
		r.ShadowOnlyHere = r.clients.sum(r.policy.Key, func(i uint32) uint32 { return clients[i].onlyHere[inShadow] })
		for j, uses := range r.clients.endPeriods() {
			l := &r.policy.Limits[j]
			use := Use{
				Limit: cmp.Or(l.Name, strconv.Itoa(j)), Units: l.Max(), PeriodNs: l.PeriodNs, Months: l.Months(),
				Distribution: uses.Distribution(),
			}
			if l.Requested != nil {
				use.Units = l.Most()
				use.From = l.Requested.Part.Label()
			}
			use.Requests = float64(l.Most()) / float64(max(r.policy.Cost.Fixed, 1))
			r.Use = append(r.Use, use)
		}
		c.Rules = append(c.Rules, r.Rule)
	}
	return c.Outcome
}

// reportedKey reads the key of a rule's i-th client out of a brief. A credential is not
// shown: the number of the client, by its first request, stands for it.
func reportedKey(key []policy.KeyPart, text string, i uint32) []*string {
	b := result.Brief{Key: []byte(text)}
	parts := b.KeyParts()
	for j := range parts {
		if parts[j] != nil && key[j].HasCredential() {
			hidden := "hidden:" + strconv.FormatUint(uint64(i)+1, 10)
			parts[j] = &hidden
		}
	}
	return parts
}

// KeyText is a key for people.
func KeyText(key []*string) string {
	if len(key) == 0 {
		return "everybody"
	}
	var parts []string
	for _, p := range key {
		switch {
		case p == nil:
			parts = append(parts, "(none)")
		case *p == "":
			parts = append(parts, `""`)
		default:
			parts = append(parts, *p)
		}
	}
	return strings.Join(parts, ", ")
}
