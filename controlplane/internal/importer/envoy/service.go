package envoy

import (
	"slices"
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ReadService makes rules of the configuration of the envoyproxy/ratelimit service.
func ReadService(d *draft.Draft, files []*source.Document, o Options) error {
	return read(d, o, func(r *reader) error { return (&serviceImport{r}).run(files) })
}

// serviceImport is an import of the levels of one domain: that of the draft, which run reads first.
type serviceImport struct{ *reader }

// run makes rules of the levels of the files and of the descriptors that Envoy sends.
func (imp *serviceImport) run(files []*source.Document) error {
	if imp.options.Routes != nil && len(imp.options.Keys) > 0 {
		return &source.UsageError{Message: "--key is for an import without --routes",
			Hint: "leave out --key: the routes say what each key stands for"}
	}
	configs, err := imp.readConfigs(files)
	if err != nil {
		return err
	}
	imp.draft.Domain, err = imp.readDomain(configs)
	if err != nil {
		return err
	}
	levels := descriptor.ServiceLevels(imp.levelsOf(configs))
	descriptor.NoteEachEnvoy(imp.draft)
	sent, enforced, err := imp.whatEnvoySends(levels.List)
	if err != nil {
		return err
	}
	rules := levels.Rules(imp.Findings, sent)
	levels.NoteUnreached(imp.Findings)
	imp.draft.AddEnforced(*enforced, rules...)
	return nil
}

// serviceConfig is a configuration of envoyproxy/ratelimit, and where it stands.
type serviceConfig struct {
	*ratelimitconfig.Config
	at source.Place
}

// readConfigs reads the files: at least one configuration.
func (imp *serviceImport) readConfigs(files []*source.Document) (configs []serviceConfig, err error) {
	for _, in := range files {
		envoyfile.RefuseForService(imp.Findings, in)
		if err := imp.Err(); err != nil {
			return nil, err
		}
		for _, r := range in.Resources() {
			c, err := ratelimitconfig.Read(in.File, r.Node)
			if err != nil {
				return nil, err
			}
			configs = append(configs, serviceConfig{c, r.At})
		}
	}
	if len(configs) == 0 {
		return nil, draft.ErrNothing
	}
	return configs, nil
}

// readDomain returns the domain that the configurations have in common. It is an error if two of them have
// the same descriptors.
func (imp *serviceImport) readDomain(configs []serviceConfig) (string, error) {
	var all []*ratelimitconfig.Config
	for _, c := range configs {
		all = append(all, c.Config)
	}
	byDomain, err := ratelimitconfig.Join(all, true)
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
		imp.NoteProblem(p)
	}
	domain := merged.Domain
	if len(domain) > policy.MaxNameBytes || strings.TrimSpace(domain) != domain || !printable.Is(domain) {
		at := source.Place{File: merged.File, Path: "domain"}
		imp.Fail(at, "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control "+
			"characters and spaces at its ends")
	}
	return domain, nil
}

// serviceLevel is a level, with the descriptor of the configuration that it is made of.
type serviceLevel struct {
	*descriptor.Level
	from *ratelimitconfig.Descriptor
}

// levelsOf lists the levels of the configurations, each before those below it.
func (imp *serviceImport) levelsOf(configs []serviceConfig) (levels []*descriptor.Level) {
	var all []serviceLevel
	for _, c := range configs {
		all = append(all, imp.levelsBelow(&descriptor.Level{}, c.Descriptors, c.at)...)
	}
	switchReplacedOff(all)
	for i, l := range all {
		l.Order = i
		levels = append(levels, l.Level)
	}
	return levels
}

// levelsBelow makes a level of each descriptor of the configuration below another one. The place is that of the
// configuration. From here on a descriptor is only what a request sends.
func (imp *serviceImport) levelsBelow(
	parent *descriptor.Level, list []*ratelimitconfig.Descriptor, config source.Place,
) (levels []serviceLevel) {
	for _, d := range list {
		p := descriptor.Pair{Key: d.Key, Pattern: valuesOf(d), Shared: d.ShareThreshold && d.HasWildcard()}
		at := config.In(d.Path)
		if strings.Contains(d.Key, "*") {
			imp.Note(at, "the key "+d.Key+" is taken literally: only values have wildcards")
		}
		if d.DetailedMetric || d.ValueToMetric {
			imp.Note(at, "detailed_metric and value_to_metric are ignored: metrics have the rule's name, and no values of keys")
		}
		if d.Metadata != nil {
			imp.Note(at.In("metadata"), "ignored: a policy has nothing like it")
		}
		l := &descriptor.Level{Pairs: append(slices.Clip(parent.Pairs), p), At: at, Limit: imp.limitOf(d, at)}
		levels = append(levels, serviceLevel{l, d})
		levels = append(levels, imp.levelsBelow(l, d.Descriptors, config)...)
	}
	return levels
}

// valuesOf are the values that a descriptor of the configuration is for.
func valuesOf(d *ratelimitconfig.Descriptor) request.Pattern {
	switch {
	case d.Value == "":
		return request.Pattern{}
	case d.HasWildcard():
		return request.Wildcard(d.Value)
	}
	return request.Exact(d.Value)
}

// limitOf is the limit of a descriptor; nil if it has none, or says that it is unlimited.
func (imp *serviceImport) limitOf(d *ratelimitconfig.Descriptor, at source.Place) *draft.Limit {
	switch {
	case d.Limit == nil:
		if d.ShadowMode || d.QuotaMode {
			imp.Note(at, "ignored: its mode, because it has no rate_limit")
		}
		return nil
	case d.Limit.Unlimited:
		return nil
	}
	limit := &draft.Limit{At: at.In("rate_limit"), Shadow: d.ShadowMode || d.QuotaMode}
	limit.Numbers = draft.Windowed(uint64(d.Limit.Requests), d.Limit.Unit)
	descriptor.NoteCalendar(imp.Findings, d.Limit.Unit)
	if d.Limit.Sluice {
		first := d.Limit.Windows[0]
		limit.Numbers = draft.Windowed(uint64(first.Limit), policy.PeriodOf(first))
		limit.Cannot("the limit has a field sluice: write its algorithm, burst, offset or limits in this rule.")
	}
	if d.QuotaMode {
		limit.Comment("quota_mode denies a request only when all its descriptors in that mode are over " +
			"their limits. A rule denies alone, so it is shadow. If a request has only one such descriptor, remove mode.")
	}
	return limit
}

// switchReplacedOff switches limits off that others replace: a request that counts in both
// counts there in the other alone.
func switchReplacedOff(levels []serviceLevel) {
	replacedBy := map[string]*descriptor.Level{} // by the names of limits
	for _, l := range levels {
		if l.from.Limit != nil {
			for _, name := range l.from.Limit.Replaces {
				replacedBy[name] = l.Level
			}
		}
	}
	for _, l := range levels {
		if l.Limit == nil || replacedBy[l.from.Limit.Name] == nil {
			continue
		}
		other := replacedBy[l.from.Limit.Name]
		why := other.Name() + " replaces this limit: there a request with both counts only in that. Give the rule an " +
			"exempt for the requests of the other."
		if l.Limit.Shadow { // it denies nobody
			l.Limit.Comment(why)
		} else {
			l.Limit.Cannot(why)
		}
	}
}

// whatEnvoySends are the descriptors that Envoy sends, and how its filter enforces the answers. Without routes
// they are guessed, and enforced as they are.
func (imp *serviceImport) whatEnvoySends(
	levels []*descriptor.Level,
) ([]descriptor.Descriptor, *draft.Enforcement, error) {
	if imp.options.Routes == nil {
		return imp.guess(levels), &draft.Enforcement{}, nil
	}
	s, err := imp.siteOfRoutes(*imp.options.Routes)
	if err != nil {
		return nil, nil, err
	}
	f := imp.filterOfDomain(s)
	enforced := imp.enforcementOfDomain(f)
	sent, err := imp.descriptorsOfSite(s, f)
	return sent, enforced, err
}

// siteOfRoutes is the listener of the domain in the file that --routes names.
func (imp *serviceImport) siteOfRoutes(f source.File) (*envoyfile.Site, error) {
	in, err := envoyfile.OpenWhole(imp.Findings, f)
	if err != nil {
		return nil, err
	}
	s, err := imp.siteOfDomain(envoyfile.FindSites(in, nil))
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, policyfile.Errors{in.Top().Problem("there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + imp.draft.Domain)}
	}
	return s, nil
}

// siteOfDomain is the listener with a filter that asks for the domain. Else it is one without such a
// filter, but with rate_limits in its routes; nil if there is neither.
func (imp *serviceImport) siteOfDomain(list []*envoyfile.Site) (*envoyfile.Site, error) {
	asks := func(s *envoyfile.Site) bool { return slices.ContainsFunc(s.Filters, imp.isOfDomain) }
	s, err := envoyfile.Choose(imp.Findings, list, imp.options.Listener, asks)
	if s != nil || err != nil {
		return s, err
	}
	return envoyfile.Choose(imp.Findings, list, imp.options.Listener, func(s *envoyfile.Site) bool {
		return !slices.ContainsFunc(s.Filters, isOfServiceType) && s.HasLimits()
	})
}

func isOfServiceType(c envoyfile.Config) bool { return c.IsOf(envoyfile.ServiceType) }

// isOfDomain reports whether a configuration is that of a filter which asks for the domain.
func (imp *serviceImport) isOfDomain(c envoyfile.Config) bool {
	return isOfServiceType(c) && source.TextOf(c.Node, "domain") == imp.draft.Domain
}

// domainFilter is the filter of a site that asks for the domain. If the site has routes alone, an empty one stands in
// for it: see isStandIn.
type domainFilter struct {
	*listenerFilter
	message *ratelimitv3.RateLimit // its configuration; nil if it isStandIn
	all     []*listenerFilter      // of the site that are of its type, for any domain
}

// filterOfDomain is the filter that asks for the domain.
func (imp *serviceImport) filterOfDomain(s *envoyfile.Site) (of domainFilter) {
	for _, c := range s.Filters {
		if !isOfServiceType(c) {
			continue
		}
		f := newListenerFilter(s, c, envoyfile.PerRouteType)
		of.all = append(of.all, f)
		if of.listenerFilter == nil && imp.isOfDomain(c) {
			of.listenerFilter = f
			of.message = decode[*ratelimitv3.RateLimit](imp.reader, c.Node, c.At)
		}
	}
	if of.listenerFilter == nil {
		of.listenerFilter = newStandIn(envoyfile.PerRouteType)
		of.all = []*listenerFilter{of.listenerFilter}
	}
	return of
}

// enforcementOfDomain is how the filter enforces what the service answers. A site without the filter enforces
// everything.
func (imp *serviceImport) enforcementOfDomain(f domainFilter) *draft.Enforcement {
	if f.isStandIn {
		return &draft.Enforcement{}
	}
	imp.noteDisabled(f.listenerFilter)
	if f.message.GetRequestType() != "both" && f.message.GetRequestType() != "" {
		imp.Note(f.config.At.In("request_type"), "rules are for requests from inside and outside. A match on a header "+
			"such as x-envoy-internal separates them")
	}
	e := imp.readEnforcement(f.listenerFilter, f.message, f.config.At, 100, f.message.GetRateLimitedStatus())
	readHeaders(imp.reader, f.message.GetEnableXRatelimitHeaders())
	return e
}

// descriptorsOfSite lists what the filter sends for requests of a site. If the site has no such filter, it is what an
// empty one would send.
func (imp *serviceImport) descriptorsOfSite(s *envoyfile.Site, f domainFilter) ([]descriptor.Descriptor, error) {
	hosts := imp.virtualHosts(s)
	by := sender{
		own:              rateLimitsAt(f.message.GetRateLimits(), f.config.At),
		stage:            f.message.GetStage(),
		choices:          map[*hostRoute]choice{},
		onlyWhereEnabled: f.works == whereEnabled,
	}
	for _, route := range routesOf(hosts) {
		imp.noteUnusedConfigs(f.all, route)
		by.choices[route] = imp.choiceOf(by, route, f.settingOn(route))
	}
	return imp.descriptorsOf(imp.sendingsOf(by, hosts))
}

// choiceOf is by which rate_limits the filter sends for a route. If the route's configuration is for another domain,
// the filter asks nothing of this one.
func (imp *serviceImport) choiceOf(f sender, route *hostRoute, s setting) choice {
	var config *ratelimitv3.RateLimitPerRoute // nil = the route has none
	var alone []rateLimit
	if c := s.ofRoute; c != nil {
		config = decode[*ratelimitv3.RateLimitPerRoute](imp.reader, c.Node, c.At)
		if config.GetDomain() != "" && config.GetDomain() != imp.draft.Domain {
			imp.Note(c.At, "ignored: the rate_limits of this route, which are for the domain "+config.GetDomain())
			return choice{}
		}
		alone = rateLimitsAt(config.GetRateLimits(), c.At)
	}
	switch {
	case !s.works, route.answers:
		return choice{}
	case len(alone) > 0:
		return choice{alone: alone}
	case len(f.own) > 0:
		return choice{joins: true}
	}
	return imp.choiceByRoute(route, f.stage, vhostRateLimits(config.GetVhRateLimits()))
}
