package console

import (
	"fmt"
	"net/http"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// proxiesView is the proxies and what they run.
type proxiesView struct {
	api.Status
	Policies []policyView
	Several  bool   // there are policies with a name
	Applied  string // the revision that the visitor has applied just now
}

// policyView is how a policy stands.
type policyView struct {
	api.PolicyStatus
	Summary string
}

func (c *console) proxies(w http.ResponseWriter, r *http.Request, v *visit) error {
	var st api.Status
	target := "/v1/status"
	if policy := r.URL.Query().Get("policy"); policy != "" {
		target += policyQuery(policy)
	}
	if err := c.get(r, target, &st); err != nil {
		return err
	}
	b := proxiesView{Status: st}
	if n, ok := number(r.URL.Query().Get("applied")); ok {
		b.Applied = fmt.Sprintf("Revision %d is applied.", n)
	}
	for _, p := range st.Policies {
		b.Policies = append(b.Policies, policyView{p, summary(&st, &p)})
		b.Several = b.Several || p.Policy != store.DefaultPolicy
	}
	if len(st.Policies) == 0 {
		none := api.PolicyStatus{Policy: store.DefaultPolicy}
		b.Policies = []policyView{{none, summary(&st, &none)}}
	}
	return c.render(w, http.StatusOK, "proxies", view{"Proxies", "proxies", v, &b})
}

// summary says in a sentence whether the policy's proxies run its newest revision.
func summary(st *api.Status, of *api.PolicyStatus) string {
	connected, current := 0, 0
	for i := range st.Proxies {
		p := &st.Proxies[i]
		if !p.Connected || p.Policy != of.Policy && len(st.Policies) > 0 {
			continue
		}
		connected++
		if of.Current != nil && p.Runs == of.Current.Number {
			current++
		}
	}
	switch {
	case of.Current == nil && of.Newest == nil:
		return fmt.Sprintf("Nothing has been applied yet. Connected proxies: %d.", connected)
	case of.Current == nil:
		return fmt.Sprintf("No revision is current. Connected proxies: %d.", connected)
	case connected == 0:
		return fmt.Sprintf("No proxy is connected. The current revision is %d.", of.Current.Number)
	case of.Newest != nil:
		return fmt.Sprintf("%d of %d connected proxies run revision %d, the current one.",
			current, connected, of.Current.Number)
	}
	return fmt.Sprintf("%d of %d connected proxies run revision %d, the newest.", current, connected, of.Current.Number)
}
