package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// maxFailed bounds the proxies that are named because they have not answered.
const maxFailed = 20

// rulesView is the rules and what they decide.
type rulesView struct {
	policies
	Rules   []Rule
	Failed  []policyfile.Problem // proxies that have not answered, the first of them
	Silent  int                  // all of these
	More    int
	Times   []time.Time // of the rates
	Missing bool        // serve cannot ask proxies
	Trouble string      // why there is no new sample
}

func (c *console) rules(w http.ResponseWriter, r *http.Request, v *visit) error {
	var h api.History
	if err := c.get(r, "/v1/policies"+policyQuery(policyOf(r))+"&limit=1", &h); err != nil {
		return err
	}
	b := rulesView{policies: policies{"/console/rules", policyOf(r), h.Policies}}
	if b.Policy != store.DefaultPolicy && !slices.Contains(h.Policies, b.Policy) {
		return c.unknown(w, r, v)
	}
	kept, _ := c.samples.LoadOrStore(b.Policy, newSamples(time.Now))
	taken := kept.(*samples)
	switch err := c.sample(r, taken); {
	case isCode(err, http.StatusNotImplemented):
		b.Missing = true
	case isCode(err, http.StatusServiceUnavailable):
		b.Trouble = err.Error()
	case err != nil:
		return err
	}
	b.Rules, b.Times, b.Failed, b.More = taken.list()
	b.Silent = len(b.Failed)
	b.Failed = b.Failed[:min(b.Silent, maxFailed)]
	return c.render(w, http.StatusOK, "rules", view{"Rules", "rules", v, &b})
}

// sample asks the proxies what they have counted, unless that has just been done.
func (c *console) sample(r *http.Request, samples *samples) error {
	samples.asked.Lock()
	defer samples.asked.Unlock()
	if !samples.due() {
		return nil
	}
	var counters api.Counters
	form := url.Values{"timeout": {"2s"}, "policy": {policyOf(r)}}
	if err := c.call(r, http.MethodPost, "/v1/counters/stats", formBody(form), &counters); err != nil {
		return err
	}
	samples.add(&counters)
	var top api.Counters // which the page can do without
	if err := c.call(r, http.MethodPost, "/v1/counters/top", formBody(form), &top); err == nil {
		samples.addKeys(top.Denials)
	}
	return nil
}

// Lines draws the rule's rates.
func (r Rule) Lines() []chart.Line[float64] {
	series := make([][]float64, 3)
	for _, rate := range r.Rates {
		for i, v := range []float64{rate.Allowed, rate.Denied, rate.Shadow} {
			series[i] = append(series[i], v)
		}
	}
	return chart.Lines(series[0], series[1], series[2])
}

// rateText is a rate as people read it.
func rateText(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}
