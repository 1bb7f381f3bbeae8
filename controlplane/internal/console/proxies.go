package console

import (
	"fmt"
	"net/http"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

// proxiesView is the proxies and what they run.
type proxiesView struct {
	api.Status
	Summary string
	Applied string // the revision that the visitor has applied just now
}

func (c *console) proxies(w http.ResponseWriter, r *http.Request, v *visit) error {
	b := proxiesView{}
	if err := c.get(r, "/v1/status", &b.Status); err != nil {
		return err
	}
	if n, ok := number(r.URL.Query().Get("applied")); ok {
		b.Applied = fmt.Sprintf("Revision %d is applied.", n)
	}
	b.Summary = summary(&b.Status)
	return c.render(w, http.StatusOK, "proxies", view{"Proxies", "proxies", v, &b})
}

// summary says in a sentence whether the proxies run the newest revision.
func summary(st *api.Status) string {
	connected, current := 0, 0
	for i := range st.Proxies {
		p := &st.Proxies[i]
		if p.Connected {
			connected++
		}
		if p.Connected && st.Current != nil && p.Runs == st.Current.Number {
			current++
		}
	}
	switch {
	case st.Current == nil && st.Newest == nil:
		return fmt.Sprintf("Nothing has been applied yet. Connected proxies: %d.", connected)
	case st.Current == nil:
		return fmt.Sprintf("No revision is current. Connected proxies: %d.", connected)
	case connected == 0:
		return fmt.Sprintf("No proxy is connected. The current revision is %d.", st.Current.Number)
	case st.Newest != nil:
		return fmt.Sprintf("%d of %d connected proxies run revision %d, the current one.", current, connected, st.Current.Number)
	}
	return fmt.Sprintf("%d of %d connected proxies run revision %d, the newest.", current, connected, st.Current.Number)
}
