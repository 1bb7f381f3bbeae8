package envoy

import (
	"slices"
	"strconv"
	"strings"

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
	return read(d, o, func(r *reader) error { return r.readService(files) })
}

// readService makes rules of the levels of the files and of the descriptors that Envoy sends.
func (r *reader) readService(files []*source.Document) error {
	if r.options.Routes != nil && len(r.options.Keys) > 0 {
		return &source.UsageError{Message: "--key is for an import without --routes",
			Hint: "leave out --key: the routes say what each key stands for"}
	}
	configs, err := r.readConfigs(files)
	if err != nil {
		return err
	}
	domain, err := r.readDomain(configs)
	if err != nil {
		return err
	}
	list := r.levelsOf(configs)
	r.draft.NoteEachEnvoy()
	sent, enforced, err := r.whatEnvoySends(domain, list)
	if err != nil {
		return err
	}
	levels := descriptor.ServiceLevels(list, *enforced)
	reached := levels.Rules(r.Findings, sent)
	r.draft.Domain = domain
	r.draft.Add(reached.Rules...)
	levels.NoteUnreached(r.Findings, reached)
	return nil
}

// serviceConfig is a configuration of envoyproxy/ratelimit, and where it stands.
type serviceConfig struct {
	*ratelimitconfig.Config
	at source.Place
}

// readConfigs reads the files: at least one configuration.
func (r *reader) readConfigs(files []*source.Document) (configs []serviceConfig, err error) {
	for _, in := range files {
		envoyfile.RefuseForService(r.Findings, in)
		if err := r.Err(); err != nil {
			return nil, err
		}
		for _, resource := range in.Resources() {
			c, err := ratelimitconfig.Read(in.File, resource.Node)
			if err != nil {
				return nil, err
			}
			configs = append(configs, serviceConfig{c, resource.At})
		}
	}
	if len(configs) == 0 {
		return nil, draft.ErrNothing
	}
	return configs, nil
}

// readDomain returns the domain that the configurations have in common. It is an error if two of them have
// the same descriptors.
func (r *reader) readDomain(configs []serviceConfig) (string, error) {
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
		r.NoteProblem(p)
	}
	domain := merged.Domain
	if len(domain) > policy.MaxNameBytes || strings.TrimSpace(domain) != domain || !printable.Is(domain) {
		at := source.Place{File: merged.File, Path: "domain"}
		r.Fail(at, "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control "+
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
func (r *reader) levelsOf(configs []serviceConfig) (levels []*descriptor.Level) {
	var all []serviceLevel
	for _, c := range configs {
		all = append(all, r.levelsBelow(&descriptor.Level{}, c.Descriptors, c.at)...)
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
func (r *reader) levelsBelow(
	parent *descriptor.Level, list []*ratelimitconfig.Descriptor, config source.Place,
) (levels []serviceLevel) {
	for _, d := range list {
		p := descriptor.Pair{Key: d.Key, Pattern: valuesOf(d), Shared: d.ShareThreshold && d.HasWildcard()}
		at := config.In(d.Path)
		if strings.Contains(d.Key, "*") {
			r.Note(at, "the key "+d.Key+" is taken literally: only values have wildcards")
		}
		if d.DetailedMetric || d.ValueToMetric {
			r.Note(at, "detailed_metric and value_to_metric are ignored: metrics have the rule's name, and no values of keys")
		}
		if d.Metadata != nil {
			r.Note(at.In("metadata"), "ignored: a policy has nothing like it")
		}
		l := &descriptor.Level{Pairs: append(slices.Clip(parent.Pairs), p), At: at, Limit: r.limitOf(d, at)}
		levels = append(levels, serviceLevel{l, d})
		levels = append(levels, r.levelsBelow(l, d.Descriptors, config)...)
	}
	return levels
}

// valuesOf are the values that a descriptor of the configuration is for.
func valuesOf(d *ratelimitconfig.Descriptor) request.Pattern {
	switch {
	case d.Value == "":
		return request.Anything
	case d.HasWildcard():
		return request.Wildcard(d.Value)
	}
	return request.Exact(d.Value)
}

// limitOf is the limit of a descriptor; nil if it has none, or says that it is unlimited.
func (r *reader) limitOf(d *ratelimitconfig.Descriptor, at source.Place) *draft.Limit {
	switch {
	case d.Limit == nil:
		if d.ShadowMode || d.QuotaMode {
			r.Note(at, "ignored: its mode, because it has no rate_limit")
		}
		return nil
	case d.Limit.Unlimited:
		return nil
	}
	limit := &draft.Limit{At: at.In("rate_limit"), Shadow: d.ShadowMode || d.QuotaMode}
	limit.Numbers = draft.Windowed(uint64(d.Limit.Requests), d.Limit.Unit)
	r.NoteCalendar(d.Limit.Unit)
	if d.Limit.Sluice {
		first := d.Limit.Windows[0]
		limit.Numbers = draft.Windowed(uint64(first.Limit), policy.PeriodOf(first))
		limit.TurnOff("the limit has a field sluice: write its algorithm, burst, offset or limits in this rule.")
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
			l.Limit.TurnOff(request.WhyOff(why))
		}
	}
}
