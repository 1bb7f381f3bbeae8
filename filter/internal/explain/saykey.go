package explain

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// sayKey says by which key the request counts, or would if the rule was for it, or why by
// none. A credential is said too: it comes from the description, and so from whoever asks.
// A cost that the description leaves open is the least of the rule, and at least 1: a cost of 0 is never
// denied, and so would not tell whether the client is.
func sayKey(x *result.ExplainedRule, e *engine.Engine, p *policy.Rule, d *dryRun, r *request.Request) {
	r.Begin()
	d.missed = false
	var key policy.Key
	x.NoKey = readKey(&key, p, r)
	missed := d.missed
	for i := 0; i < len(p.Key) && missed; i++ {
		if _, open := d.readsPart(&p.Key[i], r); len(open) > 0 {
			x.NoKey = "the description does not give " + respond.PartName(&p.Key[i])
			break
		}
	}
	if x.NoKey != "" {
		return
	}
	if x.Cost == nil || x.BodyAssumed != "" {
		least := max(p.LeastCost(), 1)
		x.Cost = &least
	}
	x.Key, x.Hash, x.Common = make([]result.KeyPart, len(key.Parts)), e.DenialHash(&key), true
	for i := range key.Parts {
		v, part := &key.Parts[i], p.Key[i].Labeled(key.Parts[i].Label)
		x.Key[i] = keyPart(&p.Key[i], v)
		if v.Present {
			text := v.Whole()
			x.Key[i].Value = &text
			x.Common = x.Common && !part.OfClient()
		}
	}
}
