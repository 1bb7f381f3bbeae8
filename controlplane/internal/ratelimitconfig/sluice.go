package ratelimitconfig

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// words are our own words of a limit, in its field sluice. The algorithm, the burst and the offset
// are those of one window of unit and requests_per_unit; limits are windows in place of it, with
// the algorithm as their default. A word that is not given is nil.
type words struct {
	algorithm, burst, offset, limits *policy.Node
}

// words reads which words a limit has. What they say is for the reader of policies.
func (r *reader) words(to **words) setter {
	return func(n *policy.Node, path string) {
		w := &words{}
		*to = w
		take := func(word **policy.Node) setter { return func(n *policy.Node, _ string) { *word = n } }
		r.object(n, path, map[string]setter{
			"algorithm": take(&w.algorithm),
			"burst":     take(&w.burst),
			"offset":    take(&w.offset),
			"limits":    take(&w.limits),
			"count_denied": func(n *policy.Node, path string) {
				r.fail(n, path, "holds for a whole domain: write sluice: {count_denied: false} beside domain")
			},
		})
		if w.limits != nil && (w.burst != nil || w.offset != nil) {
			r.fail(n, path, "burst and offset do not go with limits: write them in the limits they are for")
		}
	}
}

// countDenied reads our word of a domain.
func (r *reader) countDenied(c *Config) setter {
	return func(n *policy.Node, path string) {
		r.object(n, path, map[string]setter{"count_denied": r.flag(&c.CountDenied)})
	}
}

// windowsOfWords has the reader of policies read the words of a limit n, as those of a rule. So
//
//	rate_limit: {unit: minute, requests_per_unit: 10, sluice: {algorithm: token_bucket, burst: 20}}
//
// is read as the policy
//
//	{version: 1, rules: [{name: limit, algorithm: token_bucket, limits: [{requests: 10, per: 1m, burst: 20}]}]}
func (r *reader) windowsOfWords(n *policy.Node, path string, l *Limit, w *words) {
	if w.algorithm != nil && w.algorithm.Text == policy.AlgorithmName(limit.Concurrency) {
		r.fail(w.algorithm, path+".sluice.algorithm", "concurrency is not possible here: a call does not say when its "+
			"request ends")
		return
	}
	limits := w.limits
	if limits == nil {
		limits = &policy.Node{Kind: policy.List, Items: []*policy.Node{l.inWordsOfPolicies(n, w)}}
	}
	name := scalar(policy.String, "limit")
	rule := objectOf(n, field("name", name), field("algorithm", w.algorithm), field("limits", limits))
	rules := &policy.Node{Kind: policy.List, Items: []*policy.Node{rule}}
	p, problems := policy.Read(objectOf(n, field("version", scalar(policy.Number, "1")), field("rules", rules)))
	for i := range problems {
		found := &problems[i]
		r.add(policyfile.Problem{
			File: r.file, Line: found.Line, Column: found.Column, Path: path + "." + pathOfWord(found.Path, w),
			Message: message.Of(found),
		})
	}
	if len(problems) > 0 {
		return
	}
	r.refuseWordsOfFilters(&p.Rules[0], limits, path+".sluice.limits")
	l.Windows = p.Rules[0].Windows()
	slices.SortFunc(l.Windows, limit.Window.Compare)
}

// inWordsOfPolicies is unit and requests_per_unit of n with burst and offset, as a policy has them.
func (l *Limit) inWordsOfPolicies(n *policy.Node, w *words) *policy.Node {
	requests := n.Member("requests_per_unit")
	if requests == nil || requests.Kind == policy.Null {
		requests = scalar(policy.Number, "0")
	}
	per := scalar(policy.String, policy.FormatDuration(l.Windows[0].PeriodNs))
	return objectOf(n, field("requests", requests), field("per", per), field("burst", w.burst), field("offset", w.offset))
}

// pathOfWord is where in the rate_limit a problem of the rule is.
func pathOfWord(path string, w *words) string {
	path = strings.TrimPrefix(path, "rules[0].")
	if w.limits != nil {
		return "sluice." + path
	}
	switch name := strings.TrimPrefix(path, "limits[0]"); name {
	case ".requests":
		return "requests_per_unit"
	case ".burst", ".offset":
		return "sluice" + name
	}
	return "sluice.algorithm"
}

// refuseWordsOfFilters refuses what has a meaning only in a filter.
func (r *reader) refuseWordsOfFilters(rule *policy.Rule, limits *policy.Node, path string) {
	if len(rule.Limits) == 0 {
		r.fail(limits, path, "must have at least one limit")
	}
	for i := range rule.Limits {
		l, at := &rule.Limits[i], limits.Items[i]
		path := path + "[" + strconv.Itoa(i) + "]"
		switch {
		case l.Requested != nil:
			r.fail(at, path+".requests", "must be a number: a call does not say the limit")
		case l.Name != "":
			r.fail(at, path+".name", "is not possible here: the rate_limit has a name")
		case l.Jitter > 0:
			r.fail(at, path+".jitter", "is not possible here: all keys have the same windows")
		}
	}
}

func scalar(kind policy.Kind, text string) *policy.Node { return &policy.Node{Kind: kind, Text: text} }

func field(name string, value *policy.Node) policy.Field {
	return policy.Field{Name: name, Value: value}
}

// objectOf is an object of the fields that have a value, at the place of n.
func objectOf(n *policy.Node, fields ...policy.Field) *policy.Node {
	o := &policy.Node{Kind: policy.Object, Line: n.Line, Column: n.Column}
	for _, f := range fields {
		if f.Value != nil {
			o.Fields = append(o.Fields, f)
		}
	}
	return o
}
