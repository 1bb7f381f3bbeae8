package explain

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// keyVerdict says by which part's lack the rule is skipped, "" if by none, and adds to open what the
// description leaves open of the key. A part that the request certainly lacks decides what becomes of
// the key, even if the description leaves other parts open.
func (x *explainer) keyVerdict(p *policy.Rule, ofConditions []string) (lacks string, open []string) {
	open = ofConditions
	for i := range p.Key {
		present, openOfPart := x.readPart(&p.Key[i])
		switch {
		case present || len(openOfPart) > 0 || p.MissingKey == policy.MissingShare:
			for _, name := range openOfPart {
				if !slices.Contains(open, name) {
					open = append(open, name)
				}
			}
		case p.MissingKey == policy.MissingSkip:
			return lacksPart(p, i), nil
		default: // the rule denies: nothing else of the key matters
			return "", ofConditions
		}
	}
	return "", open
}

func lacksPart(p *policy.Rule, part int) string {
	return "the request has no " + respond.PartName(&p.Key[part]) + ", and missing_key is " + string(p.MissingKey)
}

// readPart reports whether the request has a part of a key, and names what the description
// would have to give to know that. For a first_of, these are the choices before the first one
// that the request has.
func (x *explainer) readPart(part *policy.KeyPart) (present bool, open []string) {
	choices := part.Of
	if part.Kind != policy.KeyFirstOf {
		choices = []policy.KeyPart{*part}
	}
	var k policy.Key
	for i := range choices {
		complete, isOpen := x.readParts(&k, choices[i:i+1])
		if isOpen {
			open = append(open, respond.PartName(&choices[i]))
		}
		if complete {
			return true, open
		}
	}
	return false, open
}

// readParts reads key parts. It reports whether the request has them all, and whether the
// description leaves open what was read.
func (x *explainer) readParts(key *policy.Key, parts []policy.KeyPart) (complete, isOpen bool) {
	x.request.Begin()
	missed := x.dry.missed
	complete = rules.ReadKey(key, rules.CompileKey(&x.request.Request, parts), &x.request.Request)
	return complete, x.dry.missed > missed
}

// addKey adds by which key the rule counts the request, or would if it applied, or else why it
// has none. It shows credentials too: whoever asks has described them. If the description leaves
// the cost open, it is the rule's least one, but at least 1: a cost of 0 is never denied, and so
// would not show whether the client is.
func (x *explainer) addKey(out *result.ExplainedRule, p *policy.Rule) {
	var key policy.Key
	out.NoKey = x.readKey(&key, p)
	if out.NoKey != "" {
		return
	}
	if out.Cost == nil || out.BodyAssumed != "" || len(x.openCost(p)) > 0 {
		least := max(p.LeastCost(), 1)
		out.Cost = &least
	}
	out.Key = make([]result.KeyPart, len(key.Parts))
	out.Hash = x.engine.DenialHash(&key)
	out.Common = true
	for i := range key.Parts {
		v := &key.Parts[i]
		out.Key[i] = keyPart(&p.Key[i], v)
		if v.Present {
			text := v.Whole()
			out.Key[i].Value = &text
			part := p.Key[i].Labeled(v.Label)
			out.Common = out.Common && !part.OfClient()
		}
	}
}

// readKey reads the rule's key, or returns why the request has none.
func (x *explainer) readKey(key *policy.Key, p *policy.Rule) (noKey string) {
	if _, isOpen := x.readParts(key, p.Key); isOpen {
		for i := range p.Key {
			_, open := x.readPart(&p.Key[i])
			if len(open) > 0 {
				return notGiven + respond.PartName(&p.Key[i])
			}
		}
	}
	for i := range key.Parts {
		if !key.Parts[i].Present && p.MissingKey != policy.MissingShare {
			return lacksPart(p, i)
		}
	}
	return ""
}

// keyPart explains one part of a key. It hides a credential.
func keyPart(k *policy.KeyPart, v *policy.Value) result.KeyPart {
	part := result.KeyPart{Part: respond.PartName(k)}
	switch {
	case !v.Present:
		part.Missing = true
	case k.Labeled(v.Label).HasCredential():
		part.Hidden = true
	default:
		text := v.Whole()
		part.Value = &text
	}
	return part
}
