package rules

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A look is a request by which a client asks for its own usage: GET or HEAD of the path of the policy's
// usage. Rules have two parts in it:
//
//   - A rule that names the path among its match.paths, not by a pattern, decides the look as any
//     request. No other rule does, so that a look counts nowhere.
//   - A rule that judges some request of this client on this host is shown: its conditions on method
//     and path count as met, and an exemption that depends on them as not met. A look that lacks a part of the key is
//     not shown the rule, whatever its missing_key says: it does not say whose usage to show.

// looks is what a policy says of looks.
type looks struct {
	path   string  // empty: there are none, and no Rule has a look
	exempt []Match // of the whole policy, from every method and path
}

// look is a rule's part in looks.
type look struct {
	names  bool    // it decides them
	shows  bool    // it is shown to some clients
	match  Match   // without conditions on method and path
	exempt []Match // from every method and path
}

func compileLooks(exempt []Match, p *policy.Policy) looks {
	if p.Usage == nil {
		return looks{}
	}
	return looks{path: p.Usage.Path, exempt: fromAll(exempt)}
}

func compileLook(r *Rule, path string) *look {
	p := r.Policy
	l := &look{
		names: slices.ContainsFunc(r.match.paths, func(pattern policy.Pattern) bool {
			return pattern.Kind == policy.Exact && pattern.Text == path
		}),
		shows:  !p.Hidden && !slices.ContainsFunc(p.Key, func(part policy.KeyPart) bool { return part.OfRoute() }),
		match:  r.match,
		exempt: fromAll(r.exempt),
	}
	l.match.methods, l.match.paths = nil, nil
	return l
}

// fromAll are the exemptions that do not depend on method and path.
func fromAll(exempt []Match) (all []Match) {
	for i := range exempt {
		if len(exempt[i].methods)+len(exempt[i].paths) == 0 {
			all = append(all, exempt[i])
		}
	}
	return all
}

// isLook reports whether the request is a look.
func (rs *Rules) isLook() bool {
	path, _ := rs.request.Path()
	if path != rs.looks.path {
		return false
	}
	method, _ := rs.request.Method()
	return method == "GET" || method == "HEAD"
}

// addSubjectsOfLook adds the subjects of the rules that decide a look.
func (rs *Rules) addSubjectsOfLook(v *decide.Verdict, exemptTooLong bool) {
	for i := range rs.List {
		if r := &rs.List[i]; r.look.names {
			rs.addSubject(v, r, exemptTooLong)
		}
	}
}

// EachShown calls f for each rule that the client of the source's request is shown, with the subject of its
// key. It uses the memory of s for all of them, and counts in no metric.
func (rs *Rules) EachShown(s *decide.Subject, f func(s *decide.Subject)) {
	req := &rs.request
	req.Begin()
	if anyHolds(rs.looks.exempt, req) {
		return
	}
	for i := range rs.List {
		if r := &rs.List[i]; r.look.shows && r.shown(s, req) {
			f(s)
		}
	}
}

// shown reads the subject of the rule, and reports whether the client is shown it.
func (r *Rule) shown(s *decide.Subject, req *Request) bool {
	if !r.look.match.Holds(req) || anyHolds(r.look.exempt, req) || !ReadKey(&s.Key, r.key, &req.Request) {
		return false
	}
	r.readLimits(&s.Subject, &req.Request)
	s.Begin(&r.Rule, decide.Reading{})
	return !s.Shadow
}
