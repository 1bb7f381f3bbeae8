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
	briefs string
	denied bool
}

// collector sums the decisions of one policy up.
type collector struct {
	Outcome
	policy   *policy.Policy
	timeline *timeline
	index    map[string]int // of rules, by name
	rules    []ruleCollector
}

type ruleCollector struct {
	rule                    *policy.Rule
	out                     *Rule
	clients                 *clients
	heavy, alone            *heavy
	allowed, denied, shadow *series
	cost                    uint32
}

func newCollector(name string, p *policy.Policy, t *timeline) *collector {
	c := &collector{Outcome: Outcome{Policy: name}, policy: p, timeline: t, index: map[string]int{}}
	left := int64(MaxClients)
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff {
			continue
		}
		c.index[r.Name] = len(c.rules)
		c.Rules = append(c.Rules, Rule{Rule: r.Name, Mode: string(r.Mode), Key: labels(r.Key), Reasons: map[string]int64{}})
		c.rules = append(c.rules, ruleCollector{
			rule: r, clients: newClients(r, &left), heavy: newHeavy(t, len(p.Rules)), alone: newHeavy(t, len(p.Rules)),
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

// add counts a decision. Alone says that the other policy allows the request.
func (c *collector) add(ns int64, d decision, deniedBefore, alone bool) error {
	if d.denied {
		c.Denied++
		if deniedBefore {
			c.Again++
		}
		if alone {
			c.Alone++
		}
	}
	at := c.timeline.at(ns)
	for rest := []byte(d.briefs); len(rest) > 0; {
		brief, after, ok := answer.CutBrief(rest)
		if !ok {
			return fmt.Errorf("the filter reports what cannot be read: %q", d.briefs)
		}
		rest = after
		i, ok := c.index[string(brief.Rule)]
		if !ok {
			return fmt.Errorf("the filter reports a rule that the policy does not have: %q", brief.Rule)
		}
		first := c.rules[i].add(ns, at, &brief, d.denied && deniedBefore, alone)
		alone = alone && !first // the first rule that denies is the one to name
	}
	return nil
}

// add counts what a rule decided. It reports whether the rule denied the request.
func (r *ruleCollector) add(ns int64, at int, b *answer.Brief, deniedBefore, alone bool) (denied bool) {
	r.out.Requests++
	denied = !b.Allowed && !b.Shadow
	switch {
	case denied:
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
	key := string(b.Key)
	i, ok := r.clients.find(key)
	if !ok {
		r.out.Uncounted++
		return denied
	}
	r.clients.use(i, ns, r.cost)
	c := &r.clients.all[i]
	c.requests++
	if !b.Allowed {
		c.denied++
		r.heavy.count(i, c.denied, key, at)
	}
	if denied && alone {
		c.alone++
		r.alone.count(i, c.alone, key, at)
	}
	return denied
}

// end returns the outcome.
func (c *collector) end() Outcome {
	for i := range c.rules {
		r := &c.rules[i]
		out := r.out
		out.Series = Series{c.timeline.whole(r.allowed), c.timeline.whole(r.denied), c.timeline.whole(r.shadow)}
		out.Clients = int64(len(r.clients.all))
		for j := range r.clients.all {
			if r.clients.all[j].denied > 0 {
				out.DeniedClients++
			}
			if r.clients.all[j].alone > 0 {
				out.AloneClients++
				out.Alone += int64(r.clients.all[j].alone)
			}
		}
		out.Top = r.heavy.top(r.clients.all)
		if out.Alone > 0 {
			out.TopAlone = r.alone.top(r.clients.all)
		}
		for j, uses := range r.clients.uses() {
			l := &r.rule.Limits[j]
			name := l.Name
			if name == "" {
				name = strconv.Itoa(j)
			}
			out.Use = append(out.Use, Use{Limit: name, Units: l.Max(), PeriodNs: l.PeriodNs, Distribution: uses.Distribution()})
		}
	}
	return c.Outcome
}

// keyParts reads a key out of a brief.
func keyParts(key string) []*string {
	b := answer.Brief{Key: []byte(key)}
	return b.KeyParts()
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
