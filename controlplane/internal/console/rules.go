package console

import (
	"html/template"
	"net/http"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/rates"
)

// maxFailed bounds the proxies that are named because they have not answered.
const maxFailed = 20

// rulesView is the rules and what they decide.
type rulesView struct {
	policies
	Rules   []ruleView
	Failed  []manage.Asked // proxies that have not answered, the first of them
	Silent  int            // all of these
	More    int
	Missing bool   // serve cannot ask proxies
	Note    string // why there is nothing new
}

// ruleView is a rule and its rates.
type ruleView struct {
	rates.Rate
	times []time.Time
}

func (c *console) rules(w http.ResponseWriter, r *http.Request, v *visit) error {
	p, err := c.policies(r, "/console/rules")
	if err != nil {
		return err
	}
	b := rulesView{policies: p}
	var list rates.List
	switch err := c.get(r, "/v1/rates"+policyQuery(b.Policy), &list); {
	case isCode(err, http.StatusNotImplemented):
		b.Missing = true
	case err != nil:
		return err
	}
	for _, rate := range list.Rules {
		b.Rules = append(b.Rules, ruleView{rate, list.Times})
	}
	b.More = list.More
	b.Note = list.Note
	b.Silent = len(list.Failed)
	b.Failed = list.Failed[:min(b.Silent, maxFailed)]
	return c.render(w, http.StatusOK, "rules", view{"Rules", "rules", v, &b})
}

// Now is the newest rate.
func (r ruleView) Now() rates.Counts {
	if len(r.Rates) == 0 {
		return rates.Counts{}
	}
	return r.Rates[len(r.Rates)-1]
}

// Chart draws the rule's rates, with its limits as averages.
func (r ruleView) Chart() (template.HTML, error) {
	c := chart.Chart{Per: "a second", Times: r.times}
	for _, rate := range r.Rates {
		c.Allowed = append(c.Allowed, rate.Allowed)
		c.Denied = append(c.Denied, rate.Denied)
		c.Shadow = append(c.Shadow, rate.Shadow)
	}
	name := "limit: "
	if r.Each != "" {
		name = "limit of each " + r.Each + ": "
	}
	for _, l := range r.Limits {
		if l.Rate > 0 {
			c.Limits = append(c.Limits, chart.Limit{Text: name + l.Text, At: l.Rate})
		}
	}
	return c.HTML()
}
