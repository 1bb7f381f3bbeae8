package policytest

import (
	"net/http"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Verdict is what came of a request.
type Verdict struct {
	Allowed    bool
	Status     int // that the client gets; 0 while the request runs, or if there is no response
	DeniedBy   string
	Reason     string        // why the rule of DeniedBy denied
	RetryAfter time.Duration // of a denial; Never if no wait would help
	Header     http.Header   // of the response
	Body       string        // of the response
	Rules      []Rule        // those that matched, in the policy's order
}

// Never is the RetryAfter of a denial that no wait would end.
const Never time.Duration = -1

// Rule is what one rule made of a request.
type Rule struct {
	Name      string
	Override  string   // name of the override that holds
	Key       []string // a part that the request lacks is empty
	Shadow    bool     // it denies nothing
	Allowed   bool
	Reason    string // why it denied
	Remaining uint32 // after the decision, of the tightest window
	Unlimited bool   // nothing has a limit for this key
	Windows   []Window

	Settled bool   // the answer is known, and what follows of it
	Held    uint32 // units that the request held until its answer
	Charged uint32 // units that the answer cost
	By      string // answer, estimate, cost or none
}

// Rule is what a rule made of the request. It is the zero Rule if the rule did not match.
func (v *Verdict) Rule(name string) Rule {
	i := slices.IndexFunc(v.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}
	}
	return v.Rules[i]
}

// read reads a verdict, and a response if there is one.
func (r *Running) read(report []byte, response *sim.Response) error {
	v, err := fleet.ReadVerdict(report, response)
	if err != nil {
		return err
	}
	r.Allowed, r.DeniedBy = *v.Allowed, v.DeniedBy
	if !*v.Allowed {
		r.RetryAfter = time.Duration(*v.RetryNs)
		if *v.RetryNs < 0 {
			r.RetryAfter = Never
		}
	}
	r.Status, r.Header = response.Status, header(response.Headers)
	r.Body = string(response.Body)
	r.Rules = r.Rules[:0]
	for i := range v.Rules {
		rule := &v.Rules[i]
		read := Rule{
			Name: rule.Rule, Override: rule.Override, Shadow: rule.Mode == "shadow", Allowed: rule.Allowed,
			Reason: rule.Reason, Unlimited: rule.Remaining == nil, Windows: windowsOf(rule.Windows),
		}
		for _, part := range rule.Key {
			value := ""
			if part != nil {
				value = *part
			}
			read.Key = append(read.Key, value)
		}
		if rule.Remaining != nil {
			read.Remaining = *rule.Remaining
		}
		if rule.Rule == v.DeniedBy {
			r.Reason = rule.Reason
		}
		r.Rules = append(r.Rules, read)
	}
	return nil
}

// settle reads what was charged for the answer.
func (r *Running) settle() error {
	text, err := fleet.Settled(r.exchange)
	if err != nil || text == "" {
		return err
	}
	settled, err := fleet.ReadSettled(text)
	if err != nil {
		return err
	}
	for _, s := range settled {
		for i := range r.Rules {
			if rule := &r.Rules[i]; rule.Name == s.Rule {
				rule.Settled, rule.By = true, s.By
				rule.Held, rule.Charged = s.Held, s.Cost
			}
		}
	}
	return nil
}
