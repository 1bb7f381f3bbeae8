package importer

import (
	"slices"
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const eachEnvoy = "envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
	"them admit N times these limits. --scope cluster makes rules that count over all."

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service:
// the files of one domain.
func EnvoyRatelimit(files []File, o Options) (Imported, error) {
	return run("envoyproxy/ratelimit", files, o, (*job).service)
}

// service makes rules of the descriptors that Envoy sends and of what the service's
// configuration has for them.
func (j *job) service() error {
	configs, err := j.serviceConfigs()
	if err != nil {
		return err
	}
	j.draft.domain, err = j.readDomain(configs)
	if err != nil {
		return err
	}
	levels := j.levelsOfService(configs)
	if !j.cluster {
		j.note(place{}, eachEnvoy)
	}
	sent, enforced, err := j.sent(levels)
	if err != nil {
		return err
	}
	byKey := byFirstKey(levels)
	reached := map[*level]bool{}
	for i := range sent {
		leaves := serviceLeaves(byKey[sent[i].entries[0].key], sent[i].entries)
		addLevels(reached, leaves)
		j.draft.rules = append(j.draft.rules, sent[i].rules(leaves, j.reader)...)
	}
	j.noteUnreached(levels, reached)
	enforced.apply(j.draft.rules, j.reader)
	return nil
}

// byFirstKey groups levels by the key of their first pair: a descriptor meets only those with its own.
func byFirstKey(levels []*level) map[string][]*level {
	groups := map[string][]*level{}
	for _, l := range levels {
		key := l.pairs[0].key
		groups[key] = append(groups[key], l)
	}
	return groups
}

// serviceConfigs reads the files: at least one configuration.
func (j *job) serviceConfigs() (configs []*ratelimitconfig.Config, err error) {
	for _, in := range j.files {
		j.refuseForService(in)
		if err := j.err(); err != nil {
			return nil, err
		}
		for _, n := range resources(in.root) {
			c, err := ratelimitconfig.Read(in.file, n)
			if err != nil {
				return nil, err
			}
			configs = append(configs, c)
		}
	}
	if len(configs) == 0 {
		return nil, ErrNothing
	}
	return configs, nil
}

// readDomain returns the domain that the configurations have in common. It is an error if two of them have
// the same descriptors.
func (j *job) readDomain(configs []*ratelimitconfig.Config) (string, error) {
	byDomain, err := ratelimitconfig.Join(configs, true)
	if err != nil {
		return "", err
	}
	merged := byDomain[0]
	if len(byDomain) > 1 {
		other := byDomain[1]
		return "", policyfile.Errors{{File: other.File, Path: "domain", Message: "is " + other.Domain + ", and that of " +
			merged.File + " is " + merged.Domain + ": give the files of one domain"}}
	}
	for _, p := range merged.Ignored {
		j.add(note{Problem: p})
	}
	domain := merged.Domain
	if len(domain) > policy.MaxNameBytes || strings.TrimSpace(domain) != domain || !printable.Is(domain) {
		at := place{file: merged.File, path: "domain"}
		j.fail(at, "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control "+
			"characters and spaces at its ends")
	}
	return domain, nil
}

// levelsOfService lists the levels of the configurations, each before those below it.
func (j *job) levelsOfService(configs []*ratelimitconfig.Config) (levels []*level) {
	for _, c := range configs {
		levels = append(levels, j.levelsBelow(&level{}, c.Descriptors, c.File)...)
	}
	for i, l := range levels {
		l.order = i
	}
	switchReplacedOff(levels)
	return levels
}

// levelsBelow makes a level of each descriptor of the configuration below another one. From here on
// a descriptor is only what a request sends.
func (j *job) levelsBelow(parent *level, list []*ratelimitconfig.Descriptor, file string) (levels []*level) {
	for _, d := range list {
		p := pair{d.Key, pattern{exactly, d.Value}, d.ShareThreshold && d.HasWildcard()}
		switch {
		case d.Value == "":
			p.kind = anyValue
		case d.HasWildcard():
			p.kind = wildcard
		}
		at := place{file: file, path: d.Path}
		if strings.Contains(d.Key, "*") {
			j.note(at, "the key "+d.Key+" is taken literally: only values have wildcards")
		}
		if d.DetailedMetric || d.ValueToMetric {
			j.note(at, "detailed_metric and value_to_metric are ignored: metrics have the rule's name, and no values of keys")
		}
		if d.Metadata != nil {
			j.note(at.in("metadata"), "ignored: a policy has nothing like it")
		}
		l := &level{pairs: append(slices.Clip(parent.pairs), p), at: at, quota: j.quotaOf(d, at)}
		if d.Limit != nil {
			l.limitName, l.replaces = d.Limit.Name, d.Limit.Replaces
		}
		levels = append(levels, l)
		levels = append(levels, j.levelsBelow(l, d.Descriptors, file)...)
	}
	return levels
}

// quotaOf is the limit of a descriptor; nil if it has none.
func (j *job) quotaOf(d *ratelimitconfig.Descriptor, at place) *quota {
	switch {
	case d.Limit == nil:
		if d.ShadowMode || d.QuotaMode {
			j.note(at, "ignored: its mode, because it has no rate_limit")
		}
		return nil
	case d.Limit.Unlimited:
		return &quota{unlimited: true, at: at.in("rate_limit")}
	}
	q := &quota{at: at.in("rate_limit"), shadow: d.ShadowMode || d.QuotaMode}
	q.numbers = numbers{requests: uint64(d.Limit.Requests), per: d.Limit.Unit}
	j.noteCalendar(d.Limit.Unit)
	if d.Limit.Sluice {
		first := d.Limit.Windows[0]
		q.numbers = numbers{requests: uint64(first.Limit), per: policy.PeriodOf(first)}
		q.whyOff = append(q.whyOff, "the limit has a field sluice: write its algorithm, burst, offset or limits in this "+
			"rule.")
	}
	if d.QuotaMode {
		q.notes = append(q.notes, "quota_mode denies a request only when all its descriptors in that mode are over their "+
			"limits. A rule denies alone, so it is shadow. If a request has only one such descriptor, remove mode.")
	}
	return q
}

// lengths are the units of time with the lengths that token buckets have for them.
var lengths = map[string]string{
	"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d",
}

// noteCalendar says of units that have fixed lengths there how they differ.
func (r *reader) noteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		r.note(place{}, "envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of 365. "+
			"Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}

// switchReplacedOff switches limits off that others replace: a request that counts in both
// counts there in the other alone.
func switchReplacedOff(levels []*level) {
	by := map[string]*level{}
	for _, l := range levels {
		for _, name := range l.replaces {
			by[name] = l
		}
	}
	for _, l := range levels {
		other := by[l.limitName]
		if other == nil || !l.hasLimit() {
			continue
		}
		why := other.name() + " replaces this limit: there a request with both counts only in that. Give the rule an " +
			"exempt for the requests of the other."
		if l.quota.shadow { // it denies nobody
			l.quota.notes = append(l.quota.notes, why)
		} else {
			l.quota.whyOff = append(l.quota.whyOff, why)
		}
	}
}

// sent lists the descriptors that Envoy sends, and how its filter enforces the answers. Without routes
// they are guessed, and enforced as they are.
func (j *job) sent(levels []*level) ([]descriptor, *enforcement, error) {
	if j.options.Routes == nil {
		return j.guess(levels), &enforcement{}, nil
	}
	s, err := j.siteOfRoutes(*j.options.Routes)
	if err != nil {
		return nil, nil, err
	}
	filter, at := j.filterOfDomain(s)
	enforced := j.enforcementOfDomain(filter, at) // its notes come before those of the routes
	return j.sentBySite(s, filter, at), enforced, nil
}

// siteOfRoutes is the listener of the domain in the file that --routes names.
func (j *job) siteOfRoutes(f File) (*site, error) {
	in, err := j.openEnvoy(f)
	if err != nil {
		return nil, err
	}
	s, err := j.siteOfDomain(findSites(in))
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, policyfile.Errors{in.top().problem("there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + j.draft.domain)}
	}
	return s, nil
}

// filterOfDomain is the filter that asks for the domain; nil if the site has none.
func (j *job) filterOfDomain(s *site) (*ratelimitv3.RateLimit, place) {
	isOther := func(c filterConfig) bool { return !j.isOfDomain(c) }
	return configOf[*ratelimitv3.RateLimit](j.reader, slices.DeleteFunc(slices.Clone(s.filters), isOther))
}

// enforcementOfDomain is how the filter enforces what the service answers, and what it says of the
// headers of answers. A site without the filter enforces everything.
func (j *job) enforcementOfDomain(filter *ratelimitv3.RateLimit, at place) *enforcement {
	if filter == nil {
		return &enforcement{}
	}
	if filter.GetRequestType() != "both" && filter.GetRequestType() != "" {
		j.note(at.in("request_type"), "rules are for requests from inside and outside. A match on a header such as "+
			"x-envoy-internal separates them")
	}
	j.draft.headers = headersField(filter.GetEnableXRatelimitHeaders())
	return j.readEnforcement(filter, at, 100, filter.GetRateLimitedStatus())
}

// sentBySite lists what requests of a site send: by the rate_limits of the filter, or else by those of
// its routes.
func (j *job) sentBySite(s *site, filter *ratelimitv3.RateLimit, at place) []descriptor {
	if len(filter.GetRateLimits()) > 0 {
		return j.descriptorsOf(limitsAt(filter.GetRateLimits(), at), selection{}, filter.GetStage())
	}
	asks := slices.IndexFunc(s.filters, j.isOfDomain) // -1 if none does: the routes alone are given
	own := func(r *route) ownLimits {
		if asks >= 0 && r.isOff(s.filters[asks].name) {
			return ownLimits{isOff: true}
		}
		return j.ofServicePerRoute(r)
	}
	return j.routeDescriptors(j.virtualHosts(s), filter.GetStage(), own)
}

// siteOfDomain is the listener with a filter that asks for the domain. Else it is one without such a
// filter, but with rate_limits in its routes; nil if there is neither.
func (j *job) siteOfDomain(list []*site) (*site, error) {
	asks := func(s *site) bool { return slices.ContainsFunc(s.filters, j.isOfDomain) }
	s, err := j.choose(list, j.options.Listener, asks)
	if s != nil || err != nil {
		return s, err
	}
	return j.choose(list, j.options.Listener, func(s *site) bool {
		return !slices.ContainsFunc(s.filters, isA[*ratelimitv3.RateLimit]) && s.hasLimits()
	})
}

// isOfDomain reports whether a configuration is that of a filter which asks for the domain.
func (j *job) isOfDomain(c filterConfig) bool {
	return isA[*ratelimitv3.RateLimit](c) && textOf(c.node, "domain") == j.draft.domain
}

// ofServicePerRoute reads a route's own configuration. One for another domain asks nothing of this one.
func (j *job) ofServicePerRoute(r *route) ownLimits {
	own, at := configOf[*ratelimitv3.RateLimitPerRoute](j.reader, r.own)
	if own.GetDomain() != "" && own.GetDomain() != j.draft.domain {
		j.note(at, "ignored: the rate_limits of this route, which are for the domain "+own.GetDomain())
		return ownLimits{isOff: true}
	}
	return ownLimits{limits: limitsAt(own.GetRateLimits(), at), vhost: vhostLimits(own.GetVhRateLimits())}
}
