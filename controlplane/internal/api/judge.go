package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// proposal is a policy that its author wants to become a revision.
type proposal struct {
	draft store.Draft // as far as it is given
	wasm  *string     // nil: what is in force stays
	base  *uint64     // the revision that it must replace, nil: any
}

// check refuses names and paths that cannot be shown to people.
func (p *proposal) check() error {
	err := checkFileName(p.draft.File)
	if err == nil && p.wasm != nil {
		err = CheckWasm(*p.wasm)
	}
	if err != nil {
		return badRequest("%w", err)
	}
	return nil
}

// judged is a proposal that was found valid. Its text is not read again.
type judged struct {
	proposal
	policy   *policy.Policy
	warnings []policyfile.Problem
}

// successor is a judged policy that may replace the revision before it.
type successor struct {
	judged
	changes  []policydiff.Change // nil where there is nothing to compare with
	replaces uint64
}

// judgeAll judges the proposals of one change, each of another policy.
func judgeAll(ctx context.Context, proposals []proposal) ([]judged, error) {
	list := make([]judged, 0, len(proposals))
	for _, p := range proposals {
		j, err := judge(ctx, p)
		if err != nil {
			return nil, err
		}
		for _, before := range list {
			if before.draft.Policy == j.draft.Policy {
				return nil, badRequest("%s and %s are both the policy %s: give it once",
					shown(before.draft.File), shown(j.draft.File), j.draft.Policy)
			}
		}
		list = append(list, j)
	}
	return list, nil
}

// judge reads a proposal's text, and refuses one that is not valid or not the caller's to apply.
func judge(ctx context.Context, p proposal) (judged, error) {
	read, doc, warnings, err := policyfile.Read(p.draft.File, p.draft.YAML)
	if err != nil {
		return judged{}, err
	}
	head, _ := policy.SplitPlacement(doc)
	placement, _ := policy.ReadPlacement(head) // policyfile has judged it
	p.draft.Policy = placement.Name
	p.draft.Proxies = (*selector.Selector)(placement.Proxies)
	p.draft.JSON = policy.PushedJSON(doc)
	if err := needRole(ctx, p.draft.Policy, access.Apply, "to apply"); err != nil {
		return judged{}, err
	}
	return judged{p, read, warnings}, nil
}

// compare compares a judged policy with the revision that it would replace, and completes
// its draft. standing are the revisions of all policies that were not aborted.
func (s *server) compare(ctx context.Context, j judged, standing []store.Summary) (of successor, err error) {
	d := j.draft
	if err := s.noCanary(d.Policy); err != nil {
		return of, err
	}
	var own []store.Summary
	for _, r := range standing {
		if r.Policy == d.Policy || r.Damaged { // which may be of any policy
			own = append(own, r)
		}
	}
	if j.wasm != nil {
		d.Wasm = *j.wasm
	} else {
		d.Wasm = WasmInForce(own)
	}
	before, err := s.newest(ctx, own)
	if err != nil {
		return of, err
	}
	of.replaces = before.revision.Number
	if j.base != nil && *j.base != of.replaces {
		return of, refusal(http.StatusConflict,
			"revision %d has been applied since you looked: review your change again", of.replaces)
	}
	if err := s.entitled(ctx, d, j.policy, before, standing); err != nil {
		return of, err
	}
	if d.Rollout != nil {
		if err := s.beginCanary(ctx, &d, before); err != nil {
			return of, err
		}
	}
	if before.policy != nil {
		of.changes = policydiff.Between(before.policy, j.policy)
	}
	j.draft = d
	j.draft.Audit = entry(ctx, before, j, of.changes)
	of.judged = j
	return of, nil
}

// WasmInForce is the wasm path that a policy keeps if a change names none: that of its newest revision that
// some proxy has accepted, or none has refused. The newest of its revisions is first.
func WasmInForce(revisions []store.Summary) string {
	for i := range revisions {
		r := &revisions[i]
		if r.Counts() && (r.Acked || !r.Nacked) {
			return r.Wasm
		}
	}
	return ""
}

// entitled refuses what a draft changes that takes more than the role apply for its policy.
func (s *server) entitled(
	ctx context.Context, d store.Draft, p *policy.Policy, before newest, standing []store.Summary,
) error {
	if what := before.handsOver(d, p); what != "" {
		if err := needRole(ctx, d.Policy, access.Admin, what); err != nil {
			return err
		}
	}
	if !before.revision.Proxies.Equal(d.Proxies) {
		// No two policies with a name share a proxy, so the proxy comes from the default policy, or goes to it.
		what := "to change which proxies the policy " + d.Policy + " is for"
		if err := needRole(ctx, store.DefaultPolicy, access.Apply, what); err != nil {
			return err
		}
	}
	if before.policy == nil || before.policy.Domain != p.Domain {
		return s.takesDomain(ctx, d.Policy, p.Domain, standing)
	}
	return nil
}

// takesDomain refuses a domain that another policy has or had, unless the caller may apply
// that policy too: the counters of both would be the same.
func (s *server) takesDomain(ctx context.Context, name, domain string, standing []store.Summary) error {
	for _, r := range standing {
		if r.Damaged || r.Policy == name || access.FromContext(ctx).On(r.Policy) >= access.Apply {
			continue
		}
		other, err := s.Store.Get(ctx, r.Number)
		if errors.Is(err, store.ErrDamaged) {
			continue // no proxy gets it
		}
		of := struct{ Domain string }{policy.DefaultDomain}
		if err == nil {
			err = json.Unmarshal(other.JSON, &of)
		}
		if err != nil {
			return err
		}
		if of.Domain == domain {
			what := fmt.Sprintf("to take the domain %s, which the policy %s has or had,", shown(domain), r.Policy)
			return needRole(ctx, r.Policy, access.Apply, what)
		}
	}
	return nil
}

// newest is the newest revision of a policy that was not aborted: the next one is compared with it.
type newest struct {
	revision store.Revision // Number 0 before the first
	policy   *policy.Policy // nil where there is none, or none that this release reads
}

// newest reads the newest of a policy's revisions that were not aborted: the first of the list.
func (s *server) newest(ctx context.Context, list []store.Summary) (c newest, err error) {
	if len(list) == 0 {
		return c, nil
	}
	switch c.revision, err = s.Store.Get(ctx, list[0].Number); {
	case errors.Is(err, store.ErrDamaged): // a new one is the cure
		c.revision.Summary = list[0]
		return c, nil
	case err != nil:
		return newest{}, err
	}
	c.policy, _, _, err = policyfile.Read(c.revision.File, c.revision.YAML)
	if err != nil {
		s.Log.Warn("compare with the revision before", "revision", c.revision.Number, "error", err)
	}
	return c, nil
}

// handsOver says what a draft changes of what the policy hands to others, which an admin
// alone may do.
func (c newest) handsOver(d store.Draft, after *policy.Policy) string {
	switch {
	case d.Wasm == "" && c.revision.Wasm != "":
		return fmt.Sprintf("to leave out the wasm path %s of revision %d", shown(c.revision.Wasm), c.revision.Number)
	case d.Wasm != c.revision.Wasm:
		return fmt.Sprintf("to change the wasm path from %s to %s", orNone(c.revision.Wasm), shown(d.Wasm))
	case c.revision.Number > 0 && c.policy == nil:
		return fmt.Sprintf("to replace revision %d, whose manage section this release cannot read,", c.revision.Number)
	case manageOf(c.policy) != manageOf(after):
		return "to change the manage section"
	case reportsPlain(after) && !reportsPlain(c.policy):
		return "to have clients' keys reported as they are (report_keys: plain)"
	}
	return ""
}

func orNone(path string) string {
	if path == "" {
		return "none"
	}
	return shown(path)
}

func reportsPlain(p *policy.Policy) bool { return p != nil && p.ReportKeys == policy.ReportPlain }

// manageOf is the policy's manage section, zero where there is none.
func manageOf(p *policy.Policy) policy.Manage {
	if p == nil || p.Manage == nil {
		return policy.Manage{}
	}
	return *p.Manage
}

// misfits says where proxies, by what they tell of themselves, lack what the policy takes
// for granted, or do not tell whether they have it.
func (q *Quota) misfits(p *policy.Policy, proxies []xds.Managed) (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	port := manageOf(p).Port
	names, first := lacking(proxies, func(m xds.Managed) bool {
		at := manage.Port(m.Address)
		return port != 0 && at != 0 && at != port
	})
	if names != "" {
		warn("manage.port is %d, but the management listener of %s is on another port (%s): "+
			"it will answer no request", port, names, shown(first.Address))
	}
	if !slices.ContainsFunc(p.Rules, func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }) {
		return warnings
	}
	if q.Apart {
		warnings = append(warnings, countedApart)
	}
	names, first = lacking(proxies, func(m xds.Managed) bool {
		return m.Quota != "" && m.Quota != "*" && m.Quota != p.Quota.Cluster
	})
	if names != "" {
		warn("quota.cluster is %s, but the quota service's cluster in the Envoy of %s is %s: "+
			"on_unavailable will decide rules of scope cluster", shown(p.Quota.Cluster), names, shown(first.Quota))
	}
	names, _ = lacking(proxies, func(m xds.Managed) bool { return m.Quota == "" })
	if names != "" {
		warn("whether the Envoy of %s has the cluster %s of the quota service is not known, "+
			"because sluice.quota_cluster in the node's metadata names none: "+
			"without it on_unavailable will decide rules of scope cluster", names, shown(p.Quota.Cluster))
	}
	return warnings
}

// lacking names the proxies that lack something, and returns the first.
func lacking(proxies []xds.Managed, lacks func(xds.Managed) bool) (names string, first xds.Managed) {
	var list []string
	for _, m := range proxies {
		if lacks(m) {
			if len(list) == 0 {
				first = m
			}
			list = append(list, m.Node)
		}
	}
	return printable.Cut(strings.Join(list, ", "), maxShown), first
}
