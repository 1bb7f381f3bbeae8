package engine

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

func (e *Engine) newDenialWorker() *denials.Worker {
	var id [8]byte
	e.id.Random(id[:])
	return denials.NewWorker(e.host, binary.LittleEndian.Uint64(id[:]), func() []byte {
		if e.policy.ReportSecret != "" {
			return []byte(e.policy.ReportSecret)
		}
		secret, ok := e.tables.Secret("denials")
		if !ok {
			return nil
		}
		return secret[:]
	})
}

// newDenials returns the denials of a rule, nil if the policy reports no keys.
func (e *Engine) newDenials(p *policy.Rule) *denials.Rule {
	if e.policy.ReportKeys == policy.ReportOff {
		return nil
	}
	name := binary.LittleEndian.AppendUint64(nil, e.id.Owner)
	for _, part := range []string{e.policy.Domain, p.Name, p.KeyDefinition()} {
		name = state.AppendPart(name, part)
	}
	hidesKey := slices.ContainsFunc(p.Key, func(k policy.KeyPart) bool { return k.HasCredential() })
	return &denials.Rule{Name: name, Plain: e.policy.ReportKeys == policy.ReportPlain && !hidesKey}
}

// ShareDenials tells the other workers which keys this one has denied. Call it on a
// tick.
func (e *Engine) ShareDenials() { e.denials.Publish(e.host.Now()) }

// DenialHash is what top shows of a key of a rule whose keys are hashed; empty while there is
// no secret for it.
func (e *Engine) DenialHash(key *policy.Key) string { return hexadecimal(e.denials.Hash(key.Bytes)) }

// topDenied answers with the keys that a rule, or each, denies most.
func (e *Engine) topDenied(rule string) ([]byte, error) {
	if e.policy.ReportKeys == policy.ReportOff {
		return nil, errors.New("the policy's report_keys is off: no keys are kept")
	}
	list, err := e.rulesOf(rule)
	if err != nil {
		return nil, err
	}
	reported := make([]*denials.Rule, len(list))
	for i := range list {
		reported[i] = list[i].Denials
	}
	ofRules, ok := e.denials.Collect(reported, e.host.Now())
	if !ok {
		return nil, local.ErrStore
	}
	denied := make([]result.Denials, len(list))
	for i := range list {
		p, keys := list[i].Policy, make([]result.DeniedKey, len(ofRules[i].Keys))
		for j := range keys {
			k := &ofRules[i].Keys[j]
			keys[j] = result.DeniedKey{Denied: k.Denied, Error: k.Error}
			if reported[i].Plain {
				parts, cut := denials.DecodeKey(k.Text())
				keys[j].Key, keys[j].Cut = parts, cut || len(parts) < len(p.Key)
			} else {
				keys[j].Hash = hexadecimal(k.Text())
			}
		}
		denied[i] = result.Denials{
			Rule: p.Name, Mode: respond.RuleMode(p), Blocks: p.Block != nil,
			SinceNs: ofRules[i].SinceNs, Keys: keys, Rest: ofRules[i].Rest,
		}
	}
	return result.AppendDenials(nil, denied), nil
}

// hexadecimal is encoding/hex without package fmt, which that imports.
func hexadecimal(hash []byte) string {
	const digits = "0123456789abcdef"
	text := make([]byte, 0, 2*len(hash))
	for _, c := range hash {
		text = append(text, digits[c>>4], digits[c&15])
	}
	return string(text)
}
