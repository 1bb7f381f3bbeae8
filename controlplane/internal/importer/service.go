package importer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// theirFile is a file of envoyproxy/ratelimit.
type theirFile struct {
	Domain      string             `yaml:"domain"`
	Descriptors []*theirDescriptor `yaml:"descriptors"`
}

type theirDescriptor struct {
	Key            string             `yaml:"key"`
	Value          string             `yaml:"value"`
	RateLimit      *theirLimit        `yaml:"rate_limit"`
	Descriptors    []*theirDescriptor `yaml:"descriptors"`
	ShadowMode     bool               `yaml:"shadow_mode"`
	QuotaMode      bool               `yaml:"quota_mode"`
	ShareThreshold bool               `yaml:"share_threshold"`
	DetailedMetric any                `yaml:"detailed_metric" note:"metrics have the rule's name, and no values of keys"`
	ValueToMetric  any                `yaml:"value_to_metric" note:"metrics have the rule's name, and no values of keys"`
	Metadata       any                `yaml:"metadata" note:"a limit has no metadata here"`
}

type theirLimit struct {
	Unit            string           `yaml:"unit"`
	RequestsPerUnit uint32           `yaml:"requests_per_unit"`
	Unlimited       bool             `yaml:"unlimited"`
	Name            string           `yaml:"name"`
	Replaces        []*theirReplaced `yaml:"replaces"`
}

type theirReplaced struct {
	Name string `yaml:"name"`
}

const eachEnvoy = "envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of them " +
	"admit N times these limits. --scope cluster makes rules that count over all."

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service:
// the files of one domain.
func EnvoyRatelimit(files []File, o Options) (Imported, error) {
	return run("envoyproxy/ratelimit", files, o, (*job).service)
}

func (j *job) service() (err error) {
	s := &service{job: j, known: map[string]bool{}}
	for _, in := range j.files {
		if in.refuse(true); j.err() == nil {
			for _, document := range resources(in.root) {
				s.addDomain(in, document)
			}
		}
	}
	j.addUnlessCluster(place{}, eachEnvoy)
	s.replace()
	e, all := &enforcement{}, []descriptor(nil)
	if j.Routes == nil {
		all = j.guess(s.levels, descriptor{})
	} else if all, err = j.routed(e); err != nil {
		return err
	}
	for i := range all {
		j.rules = append(j.rules, all[i].rules(serviceLeaves(s.levels, all[i].entries), j.reader)...)
	}
	j.noteUnreached(s.levels)
	e.apply(j.rules, j.reader)
	return nil
}

// service is the configuration of envoyproxy/ratelimit while it is read.
type service struct {
	*job
	levels []*level        // each before those below it
	known  map[string]bool // their keys and values
}

// addDomain adds the descriptors of a file to those of its domain.
func (s *service) addDomain(in *source, n *policy.Node) {
	o := &theirFile{}
	in.decode(n, "", o)
	switch name := o.Domain; {
	case name == "":
		in.failField(o, "domain", "the file needs a domain")
	case s.domain != "" && s.domain != name:
		in.failField(o, "domain", "is "+name+", and that of the file before is "+s.domain+": a policy has one domain, so "+
			"import them one by one")
	case len(name) > policy.MaxNameBytes || strings.TrimSpace(name) != name || !printable.Is(name):
		in.failField(o, "domain", "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control "+
			"characters and spaces at its ends")
	default:
		s.domain = name
	}
	s.addAll(o.Descriptors, &level{}, "")
}

// addAll adds descriptors below a level; those of several files of a domain come together.
func (s *service) addAll(list []*theirDescriptor, parent *level, path string) {
	for _, d := range list {
		p := pair{d.Key, pattern{exactly, d.Value}, d.ShareThreshold}
		switch {
		case d.Value == "":
			p.kind = anyValue
		case strings.Contains(d.Value, "*"):
			p.kind = wildcard
		}
		l := &level{entries: append(slices.Clip(parent.entries), p), place: s.at(d, "")}
		path := path + fmt.Sprintf("%q%q", d.Key, d.Value)
		if d.Key == "" {
			s.failField(d, "key", "a descriptor needs a key")
		}
		if strings.Contains(d.Key, "*") {
			s.note(d, "key", "the key "+d.Key+" is taken literally: only values have wildcards")
		}
		if s.known[path] {
			s.failField(d, "", "the descriptor "+l.name()+" is given twice, which envoyproxy/ratelimit refuses: keep one")
			continue
		}
		if p.share && p.kind != wildcard {
			s.failField(d, "share_threshold", "needs a value with a *")
		}
		s.levels, s.known[path] = append(s.levels, l), true
		s.addQuota(l, d)
		s.addAll(d.Descriptors, l, path)
	}
}

func (s *service) addQuota(l *level, d *theirDescriptor) {
	limit := d.RateLimit
	if limit == nil {
		if d.ShadowMode || d.QuotaMode {
			s.note(d, "", l.name()+" has a mode and no rate_limit: the import made nothing of the mode")
		}
		return
	}
	l.place, l.theirs = s.at(limit, ""), *limit
	unit := strings.ToLower(limit.Unit)
	_, known := units[unit]
	switch {
	case limit.Unlimited && known:
		s.failField(limit, "unit", "does not go with unlimited: keep one of the two")
	case limit.Unlimited:
		l.quota = &quota{unlimited: true, place: l.place}
	case !known:
		s.failField(limit, "unit", fmt.Sprintf("must be second, minute, hour, day, week, month or year, not %q", limit.Unit))
	default:
		l.quota = &quota{numbers: numbers{requests: uint64(limit.RequestsPerUnit), per: unit}, shadow: d.ShadowMode || d.QuotaMode, place: l.place}
		s.noteCalendar(unit)
		if d.QuotaMode {
			l.quota.notes = append(l.quota.notes, "quota_mode denies a request only when all its descriptors in that mode "+
				"are over their limits. A rule denies alone, so it is shadow. If a request has only one such descriptor, "+
				"remove mode.")
		}
	}
	for _, r := range limit.Replaces {
		switch r.Name {
		case "":
			s.failField(r, "name", "must name a limit")
		case limit.Name:
			s.failField(r, "name", "a limit cannot replace itself")
		}
	}
}

// units are their units of time, which are those of a policy too, with the lengths of buckets.
var units = map[string]string{"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d"}

// noteCalendar says of units that have fixed lengths there how they differ.
func (r *reader) noteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		r.add(place{}, "envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of 365. "+
			"Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}

// replace switches limits off that others replace: a request that counts in both
// counts there in the other alone.
func (s *service) replace() {
	by := map[string]*level{}
	for _, l := range s.levels {
		for _, r := range l.theirs.Replaces {
			by[r.Name] = l
		}
	}
	for _, l := range s.levels {
		other := by[l.theirs.Name]
		if other == nil || !l.limits() {
			continue
		}
		why := &l.quota.unknown
		if l.quota.shadow {
			why = &l.quota.notes // it denies nobody
		}
		*why = append(*why, other.name()+" replaces this limit: a request with both counts there in that alone. Give the rule "+
			"an exempt with what makes the other apply.")
	}
}

// routed reads the descriptors that Envoy's routes make, and what its rate limit filter says.
func (j *job) routed(e *enforcement) (all []descriptor, err error) {
	in, err := j.openEnvoy(*j.Routes)
	if err != nil {
		return nil, err
	}
	isFilter := isA[*ratelimitv3.RateLimit]
	ofDomain := func(c filterConfig) bool { return isFilter(c) && textOf(c.node, "domain") == j.domain }
	list := sites(in)
	at, err := choose(list, j.Listener, func(s *site) bool { return slices.ContainsFunc(s.filters, ofDomain) })
	if at == nil && err == nil {
		at, err = choose(list, j.Listener, func(s *site) bool { return !slices.ContainsFunc(s.filters, isFilter) && s.limited() })
	}
	if err != nil {
		return nil, err
	}
	if at == nil {
		return nil, policyfile.Errors{{File: in.file, Message: "there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + j.domain}}
	}
	var filter *ratelimitv3.RateLimit
	if i := slices.IndexFunc(at.filters, ofDomain); i >= 0 {
		filter = configOf[*ratelimitv3.RateLimit](at.filters[i:])
		if filter.GetRequestType() != "both" && filter.GetRequestType() != "" {
			j.note(filter, "request_type", "request_type: rules are for requests from inside and outside. A match on a "+
				"header such as x-envoy-internal separates them")
		}
		*e = *j.readEnforcement(filter, 100, filter.GetRateLimitedStatus())
		j.headers = headersField(filter.GetEnableXRatelimitHeaders())
	}
	if len(filter.GetRateLimits()) > 0 {
		return j.descriptors(filter.GetRateLimits(), scope{}, filter.GetStage()), nil
	}
	return j.routeDescriptors(j.hosts(at), filter.GetStage(), func(r *route) (limits []*routev3.RateLimit, hostLimits int32, ok bool) {
		own := configOf[*ratelimitv3.RateLimitPerRoute](r.own)
		if own.GetDomain() != "" && own.GetDomain() != j.domain {
			j.note(own, "", "this route asks for the domain "+own.GetDomain()+": the import made nothing of its rate_limits")
			return nil, 0, false
		}
		return own.GetRateLimits(), int32(own.GetVhRateLimits()), true
	}), nil
}
