package engine

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// RuleDenials is what all workers know of the keys that a rule denies.
type RuleDenials struct {
	Rule  *policy.Rule
	Plain bool // texts are keys, for KeyOf, and not hashes
	denials.Known
}

func (e *Engine) newWorker() *denials.Worker {
	var id [8]byte
	e.random(id[:])
	w := denials.NewWorker(e.host, binary.LittleEndian.Uint64(id[:]))
	w.Secret = func() []byte {
		if e.policy.ReportSecret != "" {
			return []byte(e.policy.ReportSecret)
		}
		secret, ok := e.tables.Secret("denials")
		if !ok {
			return nil
		}
		return secret[:]
	}
	return w
}

// newDenials returns the denials of a rule, nil where the policy reports no keys.
func (e *Engine) newDenials(p *policy.Rule) *denials.Rule {
	if e.policy.ReportKeys == policy.ReportOff {
		return nil
	}
	name := binary.LittleEndian.AppendUint64(nil, e.owner)
	for _, part := range []string{e.policy.Domain, p.Name, p.KeyDefinition()} {
		name = state.AppendPart(name, part)
	}
	hasCredential := func(k policy.KeyPart) bool { return k.HasCredential() }
	return &denials.Rule{Name: name, Plain: e.policy.ReportKeys == policy.ReportPlain && !slices.ContainsFunc(p.Key, hasCredential)}
}

// noteDenied counts a denial of the attempt's key, also one in shadow mode.
func (a *Attempt) noteDenied(now int64) {
	if r := a.rule; r.denials != nil {
		if fresh := r.worker.Count(r.denials, a.Key.Bytes, now); fresh != nil {
			var text [top.MaxText + maxPart + 1]byte
			fresh.SetText(a.appendKeyText(text[:0]))
		}
	}
}

// appendKeyText appends the beginning of the attempt's key: of each part one byte for
// its length and 1 more, 0 for a part that the request lacks, and its text.
func (a *Attempt) appendKeyText(text []byte) []byte {
	for i := 0; i < len(a.Key.Parts) && len(text) < top.MaxText; i++ {
		v := &a.Key.Parts[i]
		if !v.Present {
			text = append(text, 0)
			continue
		}
		part := v.Whole()
		part = part[:min(len(part), maxPart)]
		text = append(append(text, byte(len(part)+1)), part...)
	}
	return text
}

const maxPart = 254

// KeyOf returns the parts of a key that appendKeyText has written, nil for a part that the
// request lacked. cut says that more than what is returned was written.
func KeyOf(text []byte) (parts []*string, cut bool) {
	parts = []*string{}
	for len(text) > 0 {
		n := int(text[0])
		text = text[1:]
		if n == 0 {
			parts = append(parts, nil)
			continue
		}
		part := string(text[:min(n-1, len(text))])
		cut = cut || len(part) < n-1 || n-1 == maxPart
		parts, text = append(parts, &part), text[len(part):]
	}
	return parts, cut
}

// ShareDenials tells the other workers which keys this one has denied. Call it on a
// tick.
func (e *Engine) ShareDenials() { e.denials.Publish(e.host.Now()) }

// topDenied carries out the operation top on the rule or all rules.
func (e *Engine) topDenied(op Operation) (Result, error) {
	switch {
	case e.policy.ReportKeys == policy.ReportOff:
		return Result{}, errors.New("the policy's report_keys is off: no keys are kept")
	case op.Rule != "" && e.rule(op.Rule) == nil:
		return Result{}, errors.New("there is no rule " + strconv.Quote(op.Rule))
	}
	result := Result{Denials: []RuleDenials{}}
	var rules []*denials.Rule
	for i := range e.rules {
		if r := &e.rules[i]; op.Rule == "" || op.Rule == r.policy.Name {
			rules = append(rules, r.denials)
			result.Denials = append(result.Denials, RuleDenials{Rule: r.policy, Plain: r.denials.Plain})
		}
	}
	known, ok := e.denials.Known(rules, e.host.Now())
	if !ok {
		return Result{}, ErrStore
	}
	for i := range known {
		result.Denials[i].Known = known[i]
	}
	return result, nil
}
