package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// maxListed is how many revisions the page lists.
const maxListed = 100

// revisionsView is the revisions of a policy.
type revisionsView struct {
	policies
	Revisions []store.Summary
	Current   uint64
}

// current is the newest revision that is for all proxies, number 0 before the first.
func current(list []store.Summary) store.Summary {
	for _, s := range list {
		if !s.Rollout.Lasts() && !s.Rollout.IsAborted() {
			return s
		}
	}
	return store.Summary{}
}

func (c *console) revisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	var h api.History
	if err := c.get(r, fmt.Sprintf("/v1/policies%s&limit=%d", policyQuery(policyOf(r)), maxListed), &h); err != nil {
		return err
	}
	b := revisionsView{policies{"/console/revisions", policyOf(r), h.Policies}, h.Revisions, current(h.Revisions).Number}
	return c.render(w, http.StatusOK, "revisions", view{"Revisions", "revisions", v, &b})
}

// revisionView is a revision, and how it differs from the one before it.
type revisionView struct {
	api.Revision
	Current    bool
	Before     uint64 // 0: there is none
	Difference *difference
}

// difference is what a change of the policy means, or why that cannot be said.
type difference struct {
	From    uint64              // the revision before
	Changes []policydiff.Change // what becomes of counters
	Diff    string              // of the texts
	Unknown string
}

// Restarts says whether a counter does not stay as it is.
func (d *difference) Restarts() bool {
	return slices.ContainsFunc(d.Changes, func(c policydiff.Change) bool { return !c.Keeps })
}

func (c *console) revision(w http.ResponseWriter, r *http.Request, v *visit) error {
	b := revisionView{}
	list, ok, err := c.readRevision(r, &b.Revision)
	if err != nil || !ok {
		return cmp.Or(err, c.unknown(w, r, v))
	}
	b.Current = current(list).Number == b.Number
	at := slices.IndexFunc(list, func(s store.Summary) bool { return s.Number == b.Number })
	if at >= 0 && at+1 < len(list) {
		b.Before = list[at+1].Number
		b.Difference = c.difference(r, b.Before, &b.Revision)
	}
	return c.render(w, http.StatusOK, "revision", view{fmt.Sprintf("Revision %d", b.Number), "revisions", v, &b})
}

// readRevision reads the revision in the path, and all revisions of its policy. It is not ok if
// the path has no number.
func (c *console) readRevision(r *http.Request, into *api.Revision) (list []store.Summary, ok bool, err error) {
	n, ok := number(r.PathValue("revision"))
	if !ok {
		return nil, false, nil
	}
	if err := c.get(r, fmt.Sprintf("/v1/policies/%d%s", n, policyQuery(policyOf(r))), into); err != nil {
		return nil, false, err
	}
	var h api.History
	err = c.get(r, "/v1/policies"+policyQuery(policyOf(r)), &h)
	return h.Revisions, true, err
}

// difference compares a policy with a revision.
func (c *console) difference(r *http.Request, before uint64, after *api.Revision) *difference {
	d := &difference{From: before}
	var old api.Revision
	if err := c.get(r, fmt.Sprintf("/v1/policies/%d%s", before, policyQuery(policyOf(r))), &old); err != nil {
		d.Unknown = fmt.Sprintf("The policy cannot be compared with revision %d: %s.", before, err)
		return d
	}
	c.comparing.Lock()
	defer c.comparing.Unlock()
	text := diff.Diff("before", []byte(old.YAML), "after", []byte(after.YAML))
	_, hunks, _ := bytes.Cut(text, []byte("\n")) // without the line of a command that nobody gave
	d.Diff = string(hunks)
	was, _, _, wasErr := policyfile.Read(old.File, []byte(old.YAML))
	is, _, _, isErr := policyfile.Read(after.File, []byte(after.YAML))
	if err := errors.Join(wasErr, isErr); err != nil { // another release has accepted it
		d.Unknown = "What becomes of counters is not known: " + err.Error()
		return d
	}
	d.Changes = policydiff.Between(was, is)
	return d
}

// rollbackView is a rollback, before it is made.
type rollbackView struct {
	Policy     string
	To         uint64
	Base       uint64 // the revision that is replaced
	Difference *difference
}

func (c *console) reviewRollback(w http.ResponseWriter, r *http.Request, v *visit) error {
	var old api.Revision
	list, ok, err := c.readRevision(r, &old)
	if err != nil || !ok {
		return cmp.Or(err, c.unknown(w, r, v))
	}
	now := current(list)
	b := rollbackView{
		Policy: policyOf(r), To: old.Number, Base: now.Number, Difference: c.difference(r, now.Number, &old),
	}
	title := fmt.Sprintf("Roll back to revision %d", old.Number)
	return c.render(w, http.StatusOK, "rollback", view{Title: title, Here: "revisions", Visit: v, Body: &b})
}

// rollback has the API make a revision. The form names the base that was reviewed, so
// the API rejects it if another revision came after that.
func (c *console) rollback(w http.ResponseWriter, r *http.Request, v *visit) error {
	n, ok := number(r.PathValue("revision"))
	if !ok {
		return c.unknown(w, r, v)
	}
	query := url.Values{"base": {r.PostForm.Get("base")}, "policy": {policyOf(r)}}
	var applied api.Applied
	whole := r.WithContext(context.WithoutCancel(r.Context())) // although the visitor may go
	target := fmt.Sprintf("/v1/rollback/%d?%s", n, query.Encode())
	if err := c.call(whole, http.MethodPost, target, body{}, &applied); err != nil {
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
