package engine

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// RuleDenials is what all workers know of the keys that a rule denies.
type RuleDenials struct {
	Rule  *policy.Rule
	Plain bool // texts are keys, for denials.KeyOf, and not hashes
	denials.Known
}

func (e *Engine) newWorker() *denials.Worker {
	var id [8]byte
	e.id.Random(id[:])
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
	name := binary.LittleEndian.AppendUint64(nil, e.id.Owner)
	for _, part := range []string{e.policy.Domain, p.Name, p.KeyDefinition()} {
		name = state.AppendPart(name, part)
	}
	hasCredential := func(k policy.KeyPart) bool { return k.HasCredential() }
	return &denials.Rule{Name: name, Plain: e.policy.ReportKeys == policy.ReportPlain && !slices.ContainsFunc(p.Key, hasCredential)}
}

// ShareDenials tells the other workers which keys this one has denied. Call it on a
// tick.
func (e *Engine) ShareDenials() { e.denials.Publish(e.host.Now()) }

// DenialHash is what top shows of a key of a rule whose keys are hashed; nil while there
// is no secret for it.
func (e *Engine) DenialHash(key *policy.Key) []byte { return e.denials.Hash(key.Bytes) }

// topDenied carries out the operation top on the rule or all rules.
func (e *Engine) topDenied(op Operation) (Result, error) {
	if e.policy.ReportKeys == policy.ReportOff {
		return Result{}, errors.New("the policy's report_keys is off: no keys are kept")
	}
	list, err := e.rulesOf(op.Rule)
	if err != nil {
		return Result{}, err
	}
	result := Result{Denials: []RuleDenials{}}
	var rules []*denials.Rule
	for i := range list {
		r := &list[i]
		rules = append(rules, r.Denials)
		result.Denials = append(result.Denials, RuleDenials{Rule: r.Policy, Plain: r.Denials.Plain})
	}
	known, ok := e.denials.Known(rules, e.host.Now())
	if !ok {
		return Result{}, local.ErrStore
	}
	for i := range known {
		result.Denials[i].Known = known[i]
	}
	return result, nil
}
