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

// domainRoutes reads the routes by which Envoy asks envoyproxy/ratelimit for a domain, and the filter that asks.
type domainRoutes struct {
	*reader
	domain string
}

// read lists the descriptors that Envoy sends, and says how its filter enforces the answers.
func (d *domainRoutes) read(file source.File) ([]descriptor.Descriptor, *draft.Enforcement, error) {
	s, err := d.siteOfRoutes(file)
	if err != nil {
		return nil, nil, err
	}
	filters := filtersOf(s, serviceFilter)
	f := d.filterOfDomain(filters)
	enforced := d.enforcementOf(f)
	hosts := d.virtualHosts(s)
	d.noteUnusedConfigs(filters, hosts)
	sent, err := d.descriptorsOf(d.sendings(f, hosts))
	return sent, enforced, err
}

// siteOfRoutes is the listener in the file that --routes names which has a filter that asks for the domain. Else it is
// one without such a filter, but with rate_limits in its routes.
func (d *domainRoutes) siteOfRoutes(f source.File) (*envoyfile.Site, error) {
	in, err := envoyfile.OpenWhole(d.Findings, f)
	if err != nil {
		return nil, err
	}
	all := envoyfile.FindSites(in, nil)
	list := envoyfile.Wanted(all, func(s *envoyfile.Site) bool { return slices.ContainsFunc(s.Filters, d.isOfDomain) })
	if len(list) == 0 {
		list = envoyfile.Wanted(all, func(s *envoyfile.Site) bool {
			return !slices.ContainsFunc(s.Filters, isOfServiceType) && s.HasRateLimits()
		})
	}
	if len(list) == 0 {
		return nil, policyfile.Errors{in.Top().Problem("there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + d.domain)}
	}
	s, err := envoyfile.Choose(list, d.options.Listener)
	if err != nil {
		return nil, err
	}
	s.NoteMissingRoutes(d.Findings)
	return s, nil
}

func isOfServiceType(c envoyfile.Config) bool { return c.IsOf(envoyfile.ServiceType) }

// isOfDomain reports whether a configuration is that of a filter which asks for the domain.
func (d *domainRoutes) isOfDomain(c envoyfile.Config) bool {
	return isOfServiceType(c) && source.TextOf(c.Node, "domain") == d.domain
}

// domainFilter is the filter that asks for a domain.
type domainFilter struct {
	*listenerFilter
	message    *ratelimitv3.RateLimit // its configuration; nil if the site has no such filter
	rateLimits []rateLimit            // of its configuration
}

// filterOfDomain is the one of a site's filters that asks for the domain. If the site has routes alone, it is an empty
// one.
func (d *domainRoutes) filterOfDomain(filters []*listenerFilter) domainFilter {
	for _, f := range filters {
		if d.isOfDomain(f.config) {
			message := decode[*ratelimitv3.RateLimit](d.reader, f.config.Node, f.config.At)
			return domainFilter{f, message, d.readRateLimits(f.config.Node, f.config.At)}
		}
	}
	return domainFilter{listenerFilter: filters[0]}
}

// enforcementOf is how the filter enforces what the service answers. A site without it enforces everything.
func (d *domainRoutes) enforcementOf(f domainFilter) *draft.Enforcement {
	if f.message == nil {
		return &draft.Enforcement{}
	}
	d.noteDisabled(f.listenerFilter)
	if f.message.GetRequestType() != "both" && f.message.GetRequestType() != "" {
		d.Note(f.config.At.In("request_type"), "rules are for requests from inside and outside. A match on a header "+
			"such as x-envoy-internal separates them")
	}
	e := d.readEnforcement(f.listenerFilter, f.message, f.config.At, 100, f.message.GetRateLimitedStatus())
	d.readAnswerHeaders(int32(f.message.GetEnableXRatelimitHeaders()))
	return e
}

// sendings are what the filter sends for requests of the hosts.
func (d *domainRoutes) sendings(f domainFilter, hosts []*virtualHost) []sending {
	if len(hosts) == 0 { // they are not in the files
		return []sending{{rateLimits: f.rateLimits}}
	}
	routeSends := func(route *hostRoute) (own []rateLimit, shares bool) { return d.routeSends(f, route) }
	hostSends := func(h *virtualHost) []rateLimit {
		if len(f.rateLimits) > 0 {
			return f.rateLimits
		}
		return d.withStage(f.message.GetStage(), h.rateLimits)
	}
	return sendingsOf(hosts, routeSends, hostSends)
}

// routeSends are the rate_limits by which the filter sends for one route, and whether the route shares what it sends
// for the host: its own rate_limits, or else those of the host. The first row that holds counts:
//
//	a route                                                 own               shares
//	where the filter does not work: configFor is ofNobody   none              no
//	whose configuration is for another domain               none              no
//	that answers by itself                                  none              no
//	whose configuration for the filter has rate_limits      these             no
//	others, if the filter's own configuration has           none              yes
//	others                                                  the route's own   if addsHost
func (d *domainRoutes) routeSends(f domainFilter, route *hostRoute) (own []rateLimit, shares bool) {
	c, whose := f.configFor(route)
	if whose == ofNobody {
		return nil, false
	}
	var config *ratelimitv3.RateLimitPerRoute // nil = the route has none
	if whose == ofRoute {
		config = decode[*ratelimitv3.RateLimitPerRoute](d.reader, c.Node, c.At)
	}
	switch {
	case config.GetDomain() != "" && config.GetDomain() != d.domain:
		d.Note(c.At, "ignored: the rate_limits of this route, which are for the domain "+config.GetDomain())
		return nil, false
	case route.answers:
		return nil, false
	case len(config.GetRateLimits()) > 0:
		return d.readRateLimits(c.Node, c.At), false
	case len(f.rateLimits) > 0:
		return nil, true
	}
	vhost := vhostRateLimits(config.GetVhRateLimits())
	return d.withStage(f.message.GetStage(), route.rateLimits), vhost.addsHost(route)
}
