package explain

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Attribute is given by the description, or follows from the rest of it. Of any other
// one the description does not say whether the request has it.
func (d *dryRun) Attribute(path string) (string, bool) {
	path = strings.ReplaceAll(path, "\x00", ".")
	if value, present := d.Attributes[path]; present {
		return value, true
	}
	target, query, _ := strings.Cut(d.Path, "?")
	switch path {
	case "request.method":
		return d.Method, true
	case "request.host":
		return d.Header(":authority")
	case "request.path":
		return d.Path, true
	case "request.url_path":
		return target, true
	case "request.query":
		return query, true
	case "request.useragent":
		return d.Header("user-agent")
	case "request.referer":
		return d.Header("referer")
	case "request.id": // Envoy makes one up where a client sends none
		if id, given := d.Header("x-request-id"); given {
			return id, true
		}
	}
	d.missed = true
	return "", false
}

// missedBy names what the description leaves open of what the rule decides by: the client's
// address, which conditions may look at, and parts of the key, of a first_of those before
// the first that the request has. A part that the request lacks for certain settles what
// becomes of the key.
func (d *dryRun) missedBy(of *policy.Policy, rule *policy.Rule, r *request.Request) (names []string) {
	r.Begin()
	d.missed = false
	fails := failing(&rule.Match, r)
	if rule.Mode == policy.ModeOff || fails != "" && !d.missed || exemption(of.Exempt, r) != "" || exemption(rule.Exempt, r) != "" {
		return nil
	}
	if d.missed {
		names = []string{respond.PartName(&policy.KeyPart{Kind: policy.KeyClientIP})}
	}
	if fails != "" {
		return names
	}
	ofConditions := len(names)
	var k policy.Key
	for i := range rule.Key {
		choices := rule.Key[i].Of
		if rule.Key[i].Kind != policy.KeyFirstOf {
			choices = rule.Key[i : i+1]
		}
		open, present := false, false
		for j := 0; j < len(choices) && !present; j++ {
			r.Begin()
			d.missed = false
			present = rules.ReadKey(&k, rules.CompileKey(r, choices[j:j+1]), r)
			if name := respond.PartName(&choices[j]); d.missed && !slices.Contains(names, name) {
				names = append(names, name)
			}
			open = open || d.missed
		}
		switch {
		case present || open || rule.MissingKey == policy.MissingShare:
		case rule.MissingKey == policy.MissingSkip:
			return nil
		default:
			return names[:ofConditions]
		}
	}
	return names
}
