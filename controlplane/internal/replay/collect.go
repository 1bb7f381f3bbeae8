package replay

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// decision is what one policy made of one request.
type decision struct {
	briefs []byte
	denied bool
	shadow bool // a rule would deny it if it were enforced
}

// newDecision is of what the filter reports.
func newDecision(briefs string, denied bool) (decision, error) {
	d := decision{briefs: []byte(briefs), denied: denied}
	for rest := d.briefs; len(rest) > 0; {
		brief, after, ok := answer.CutBrief(rest)
		if !ok {
			return d, fmt.Errorf("the filter reports what cannot be read: %q", briefs)
		}
		d.shadow = d.shadow || !brief.Allowed && brief.Shadow
		rest = after
	}
	return d, nil
}

// collector sums the decisions of one policy up.
type collector struct {
	Outcome
	timeline *timeline
	index    map[string]int // of rules, by name
	rules    []ruleCollector
}

// kind is one of denials.
type kind int

const (
	enforced kind = iota
	inShadow
)

// alone says, by kind, that the other policy allows a request: of those that are
// denied in shadow alone, that it would not deny them in shadow either.
type alone [2]bool

type ruleCollector struct {
	rule                    *policy.Rule
	out                     *Rule
	clients                 *clients
	allowed, denied, shadow *series
	cost                    uint32
}

func newCollector(name string, p *policy.Policy, t *timeline) *collector {
	c := &collector{Outcome: Outcome{Policy: name}, timeline: t, index: map[string]int{}}
	left, room := int64(MaxClients), maxKeyBytes
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff {
			continue
		}
		c.index[r.Name] = len(c.rules)
		c.Rules = append(c.Rules, Rule{Rule: r.Name, Mode: string(r.Mode), Key: labels(r.Key), Reasons: map[string]int64{}})
		c.rules = append(c.rules, ruleCollector{
			rule: r, clients: newClients(r, &left, &room),
			allowed: t.new(), denied: t.new(), shadow: t.new(), cost: r.Cost.Fixed,
		})
	}
	for i := range c.rules {
		c.rules[i].out = &c.Rules[i]
	}
	return c
}

// labels name the parts of a key.
func labels(key []policy.KeyPart) []string {
	list := make([]string, len(key))
	for i := range key {
		list[i] = key[i].Label()
	}
	return list
}

// add counts a decision.
func (c *collector) add(ns int64, d decision, deniedBefore bool, alone alone) error {
	c.count(d, deniedBefore, alone)
	alone[inShadow] = alone[inShadow] && !d.denied
	at := c.timeline.at(ns)
	for rest := d.briefs; len(rest) > 0; {
		var brief answer.Brief
		brief, rest, _ = answer.CutBrief(rest) // newDecision has read them
		i, ok := c.index[string(brief.Rule)]
		if !ok {
			return fmt.Errorf("the filter reports a rule that the policy does not have: %q", brief.Rule)
		}
		c.rules[i].add(ns, at, &brief, d.denied && deniedBefore, alone)
		if !brief.Allowed {
			alone[kindOf(&brief)] = false // the first rule that denies is the one to name
		}
	}
	return nil
}

// count counts the request.
func (c *collector) count(d decision, deniedBefore bool, alone alone) {
	switch {
	case d.denied:
		c.Denied++
		if deniedBefore {
			c.Again++
		}
		if alone[enforced] {
			c.Alone++
		}
	case d.shadow:
		c.Shadow++
		if alone[inShadow] {
			c.ShadowAlone++
		}
	}
}

// kindOf returns the kind of a denial.
func kindOf(b *answer.Brief) kind {
	if b.Shadow {
		return inShadow
	}
	return enforced
}

// add counts what a rule decided.
func (r *ruleCollector) add(ns int64, at int, b *answer.Brief, deniedBefore bool, alone alone) {
	r.out.Requests++
	switch {
	case !b.Allowed && !b.Shadow:
		r.out.Denied++
		r.denied.add(at, 1)
		if deniedBefore {
			r.out.Again++
		}
	case !b.Allowed:
		r.out.Shadow++
		r.shadow.add(at, 1)
	default:
		r.allowed.add(at, 1)
	}
	if len(b.Reason) > 0 {
		r.out.Reasons[string(b.Reason)]++
	}
	i, ok := r.clients.find(b.Key)
	if !ok {
		r.out.Uncounted++
		return
	}
	r.clients.use(i, ns, r.cost)
	r.clients.all[i].requests++
	if b.Allowed {
		return
	}
	c := r.clients.named(i, b.Key)
	c.denied++
	if kind := kindOf(b); alone[kind] {
		c.alone[kind]++
	}
}

// end returns the outcome.
func (c *collector) end() Outcome {
	for i := range c.rules {
		r := &c.rules[i]
		out := r.out
		out.Series = Series{c.timeline.whole(r.allowed), c.timeline.whole(r.denied), c.timeline.whole(r.shadow)}
		out.Clients = int64(len(r.clients.all))
		denied := r.clients.sum(r.rule.Key, func(c *client) uint32 { return c.denied })
		out.DeniedClients, out.Top = denied.Clients, append([]Client{}, denied.Top...)
		out.Alone = r.clients.sum(r.rule.Key, func(c *client) uint32 { return c.alone[enforced] })
		out.ShadowAlone = r.clients.sum(r.rule.Key, func(c *client) uint32 { return c.alone[inShadow] })
		for j, uses := range r.clients.uses() {
			l := &r.rule.Limits[j]
			name := l.Name
			if name == "" {
				name = strconv.Itoa(j)
			}
			use := Use{Limit: name, Units: l.Max(), PeriodNs: l.PeriodNs, Months: l.Months(), Distribution: uses.Distribution()}
			if l.From != nil {
				use.Units, use.From = l.Most(), l.From.Part.Label()
			}
			out.Use = append(out.Use, use)
		}
	}
	return c.Outcome
}

// reportedKey reads the key of a rule's i-th client out of a brief. A credential is not
// shown: the number of the client, by its first request, stands for it.
func reportedKey(key []policy.KeyPart, text string, i uint32) []*string {
	b := answer.Brief{Key: []byte(text)}
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
