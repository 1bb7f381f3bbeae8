package envoy

import (
	"slices"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// whatEnvoySends are the descriptors that Envoy sends to envoyproxy/ratelimit for a domain, and how its filter enforces
// the answers: by the file with the routes. Without one they are guessed, and enforced as they are.
func (r *reader) whatEnvoySends(
	domain string, levels []*descriptor.Level,
) ([]descriptor.Descriptor, *draft.Enforcement, error) {
	if r.options.Routes == nil {
		return r.guesser.guess(levels), &draft.Enforcement{}, nil
	}
	s, err := r.siteOfRoutes(*r.options.Routes, domain)
	if err != nil {
		return nil, nil, err
	}
	filters := filtersOf(s, serviceFilter)
	f := r.filterOfDomain(filters, domain)
	enforced := r.readDomainFilter(f)
	hosts := r.virtualHosts(s)
	r.noteUnusedConfigs(filters, hosts)
	sent, err := r.descriptorsOf(r.sendingsOf(r.senderFor(f, hosts), hosts))
	return sent, enforced, err
}

// siteOfRoutes is the listener in the file that --routes names which has a filter that asks for the domain. Else it is
// one without such a filter, but with rate_limits in its routes.
func (r *reader) siteOfRoutes(f source.File, domain string) (*envoyfile.Site, error) {
	in, err := envoyfile.OpenWhole(r.Findings, f)
	if err != nil {
		return nil, err
	}
	all := envoyfile.FindSites(in, nil)
	list := envoyfile.Wanted(all, func(s *envoyfile.Site) bool { return slices.ContainsFunc(s.Filters, asksFor(domain)) })
	if len(list) == 0 {
		list = envoyfile.Wanted(all, func(s *envoyfile.Site) bool {
			return !slices.ContainsFunc(s.Filters, isOfServiceType) && s.HasRateLimits()
		})
	}
	if len(list) == 0 {
		return nil, policyfile.Errors{in.Top().Problem("there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + domain)}
	}
	s, err := envoyfile.Choose(list, r.options.Listener)
	if err != nil {
		return nil, err
	}
	s.NoteMissingRoutes(r.Findings)
	return s, nil
}

func isOfServiceType(c envoyfile.Config) bool { return c.IsOf(envoyfile.ServiceType) }

// asksFor reports whether a configuration is that of a filter which asks for the domain.
func asksFor(domain string) func(c envoyfile.Config) bool {
	return func(c envoyfile.Config) bool { return isOfServiceType(c) && source.TextOf(c.Node, "domain") == domain }
}

// domainFilter is the filter that asks for a domain.
type domainFilter struct {
	filter     *listenerFilter
	domain     string
	message    *ratelimitv3.RateLimit // its configuration; nil if the site has no such filter
	rateLimits []rateLimit            // of its configuration
}

// filterOfDomain is the one of a site's filters that asks for the domain. If the site has routes alone, it is an empty
// one.
func (r *reader) filterOfDomain(filters []*listenerFilter, domain string) domainFilter {
	asks := asksFor(domain)
	for _, f := range filters {
		if c := f.config; asks(c) {
			message := decode[*ratelimitv3.RateLimit](r, c.Node, c.At)
			return domainFilter{f, domain, message, r.readRateLimits(c.Node, c.At)}
		}
	}
	return domainFilter{filter: filters[0], domain: domain}
}

// readDomainFilter reads how the filter enforces what the service answers. A site without it enforces everything.
func (r *reader) readDomainFilter(f domainFilter) *draft.Enforcement {
	if f.message == nil {
		return &draft.Enforcement{}
	}
	at := f.filter.config.At
	r.noteDisabled(f.filter)
	if f.message.GetRequestType() != "both" && f.message.GetRequestType() != "" {
		r.Note(at.In("request_type"), "rules are for requests from inside and outside. A match on a header "+
			"such as x-envoy-internal separates them")
	}
	e := r.readEnforcement(f.filter, f.message, at, f.message.GetRateLimitedStatus())
	r.readAnswerHeaders(int32(f.message.GetEnableXRatelimitHeaders()))
	return e
}

// senderFor is the filter as it sends for the routes of hosts, by what its configuration for each of them says. It does
// not work for a route whose configuration is for another domain. Of a route that answers by itself it reads nothing.
func (r *reader) senderFor(f domainFilter, hosts []*virtualHost) sender {
	s := sender{f.rateLimits, f.message.GetStage(), map[*hostRoute]routeSettings{}}
	for _, route := range routesOf(hosts) {
		c, works := f.filter.configFor(route)
		switch {
		case !works, route.answers:
		case c == f.filter.config:
			s.routes[route] = routeSettings{}
		default:
			config := decode[*ratelimitv3.RateLimitPerRoute](r, c.Node, c.At)
			if other := config.GetDomain(); other != "" && other != f.domain {
				r.Note(c.At, "ignored: the rate_limits of this route, which are for the domain "+other)
				continue
			}
			s.routes[route] = routeSettings{r.readRateLimits(c.Node, c.At), vhostRateLimits(config.GetVhRateLimits())}
		}
	}
	return s
}
