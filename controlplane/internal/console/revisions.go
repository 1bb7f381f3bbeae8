package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// maxListed is how many revisions the page lists.
const maxListed = 100

func (c *console) revisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	var h api.History
	if err := c.get(r, fmt.Sprintf("/v1/policies?limit=%d", maxListed), &h); err != nil {
		return err
	}
	return c.render(w, http.StatusOK, "revisions", view{"Revisions", "revisions", v, h.Revisions})
}

// revisionView is one revision beside the one before it.
type revisionView struct {
	api.Revision
	Current    bool
	Before     uint64 // 0 = there is none
	Difference *difference
}

// difference is what a change of the policy means, or why that cannot be said.
type difference struct {
	Reply
	From    string // the revision before, "" for none
	Unknown string
}

// Restarts says whether a counter does not stay as it is.
func (d *difference) Restarts() bool {
	return slices.ContainsFunc(d.Changes, func(c api.Change) bool { return !c.Keeps })
}

func (c *console) revision(w http.ResponseWriter, r *http.Request, v *visit) error {
	n, ok := number(r.PathValue("revision"))
	if !ok {
		return c.unknown(w, r, v)
	}
	b := revisionView{}
	if err := c.get(r, fmt.Sprintf("/v1/policies/%d", n), &b.Revision); err != nil {
		return err
	}
	var h api.History
	if err := c.get(r, "/v1/policies", &h); err != nil {
		return err
	}
	b.Current = len(h.Revisions) > 0 && h.Revisions[0].Number == n
	at := slices.IndexFunc(h.Revisions, func(s store.Summary) bool { return s.Number == n })
	if at >= 0 && at+1 < len(h.Revisions) {
		b.Before = h.Revisions[at+1].Number
		b.Difference = c.difference(r, v, b.Before, &Text{b.File, b.YAML})
	}
	return c.render(w, http.StatusOK, "revision", view{fmt.Sprintf("Revision %d", n), "revisions", v, &b})
}

// difference compares a policy with a revision, 0 for none.
func (c *console) difference(r *http.Request, v *visit, before uint64, after *Text) *difference {
	q := Question{After: after}
	d := &difference{}
	if before > 0 {
		d.From = fmt.Sprintf("revision %d", before)
		var old api.Revision
		if err := c.get(r, fmt.Sprintf("/v1/policies/%d", before), &old); err != nil {
			d.Unknown = fmt.Sprintf("Revision %d cannot be compared with: %s.", before, err)
		} else {
			q.Before = &Text{old.File, old.YAML}
		}
	}
	reply, err := c.asker.ask(r.Context(), asks(r, v), q)
	if err != nil {
		d.Unknown = "The difference is not known: " + err.Error() + "."
		return d
	}
	d.Reply = *reply
	return d
}

// reviewView is a change of the policy, before it is made.
type reviewView struct {
	Action     string // what the button does
	Target     string // where the form goes
	Base       uint64 // the revision that is replaced
	After      Text
	Wasm       string
	Difference *difference
}

// Possible says whether the change can be made.
func (b *reviewView) Possible() bool { return len(b.Difference.Problems) == 0 }

// current returns the newest revision, number 0 before the first.
func (c *console) current(r *http.Request) (store.Summary, error) {
	var h api.History
	if err := c.get(r, "/v1/policies?limit=1", &h); err != nil || len(h.Revisions) == 0 {
		return store.Summary{}, err
	}
	return h.Revisions[0], nil
}

func (c *console) reviewRollback(w http.ResponseWriter, r *http.Request, v *visit) error {
	n, ok := number(r.PathValue("revision"))
	if !ok {
		return c.unknown(w, r, v)
	}
	var old api.Revision
	if err := c.get(r, fmt.Sprintf("/v1/policies/%d", n), &old); err != nil {
		return err
	}
	now, err := c.current(r)
	if err != nil {
		return err
	}
	after := Text{old.File, old.YAML}
	return c.render(w, http.StatusOK, "review", view{fmt.Sprintf("Roll back to revision %d", n), "revisions", v, &reviewView{
		Action: fmt.Sprintf("Roll back to revision %d", n), Target: fmt.Sprintf("/console/revisions/%d/rollback", n),
		Base: now.Number, After: after, Difference: c.difference(r, v, now.Number, &after),
	}})
}

func (c *console) rollback(w http.ResponseWriter, r *http.Request, v *visit) error {
	n, ok := number(r.PathValue("revision"))
	if !ok {
		return c.unknown(w, r, v)
	}
	query := url.Values{"base": {r.PostForm.Get("base")}}
	return c.change(w, r, fmt.Sprintf("/v1/rollback/%d?%s", n, query.Encode()), "", nil)
}

func (c *console) apply(w http.ResponseWriter, r *http.Request, _ *visit) error {
	query := url.Values{"file": {r.PostForm.Get("file")}, "base": {r.PostForm.Get("base")}}
	if wasm := r.PostForm.Get("wasm"); wasm != "" {
		query.Set("wasm", wasm)
	}
	return c.change(w, r, "/v1/policies?"+query.Encode(), "application/yaml", []byte(typed(r, "policy")))
}

// change has the API make a revision. The target names the base that was reviewed, so
// the API refuses if another one came after it.
func (c *console) change(w http.ResponseWriter, r *http.Request, target, contentType string, body []byte) error {
	var applied api.Applied
	if err := c.call(whole(r), http.MethodPost, target, contentType, body, &applied); err != nil {
		return err
	}
	http.Redirect(w, r, fmt.Sprintf("%s?applied=%d", Path, applied.Number), http.StatusSeeOther)
	return nil
}

// number reads a revision's number.
func number(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && n > 0
}
