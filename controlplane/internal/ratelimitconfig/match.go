package ratelimitconfig

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Set is the domains in force. Nothing changes it, so that many calls may use it at once.
type Set struct{ domains map[string]*domain }

type domain struct {
	node
	countDenied bool
}

// node is a descriptor of the configuration with those below it.
type node struct {
	*Descriptor
	name     string           // Descriptor.Name
	metric   string           // domain and the names from the top to this node; only with a limit that counts
	below    map[string]*node // by their names
	patterns []pattern        // those below that have a *, in the order of the file
}

// pattern is the name of a node, cut at each *.
type pattern struct {
	parts [][]byte
	node  *node
}

// Match is the limit of a descriptor of a call, and what counts there.
type Match struct {
	// Limit is in one of three states:
	//
	//	Unlimited  it lets all pass
	//	Windows    of the configuration, or of the descriptor itself
	//	neither    the descriptor itself has it, with a unit that is not known: the call is an error
	Limit    *Limit
	Unit     rlsv3.RateLimitResponse_RateLimit_Unit // UNKNOWN if a limit has several windows, or none
	Shadow   bool
	Quota    bool
	Metadata *structpb.Struct // nil = none
	// Key is of the domain and all entries, and of the unit, so that a limit in a descriptor and one
	// in the configuration share a counter only if they have the same window. Different entries
	// have different keys.
	Key string
	// Metric names the limit as the service does in its metrics: see MetricLabels. It has values of
	// entries only where the configuration asks for them, and in a descriptor with its own limit.
	Metric string

	UnknownDomain bool // there is no limit, because the domain is not configured
}

// Compile makes the set of configurations, each of a domain of its own: see Join.
func Compile(configs []*Config) *Set {
	s := &Set{domains: make(map[string]*domain, len(configs))}
	for _, c := range configs {
		d := &domain{countDenied: c.CountDenied}
		d.compile(c.Domain, c.Descriptors)
		s.domains[c.Domain] = d
	}
	return s
}

// compile puts descriptors below the node, whose metric begins with prefix.
func (n *node) compile(prefix string, list []*Descriptor) {
	if len(list) == 0 {
		return
	}
	n.below = make(map[string]*node, len(list))
	for _, d := range list {
		name := d.Name()
		metric := prefix + "." + name
		child := &node{Descriptor: d, name: name}
		if d.Limit != nil && !d.Limit.Unlimited {
			child.metric = metric
		}
		n.below[name] = child
		if strings.Contains(name, "*") {
			n.patterns = append(n.patterns, pattern{bytes.Split([]byte(name), []byte("*")), child})
		}
		child.compile(metric, d.Descriptors)
	}
}

// Len is how many domains there are.
func (s *Set) Len() int { return len(s.domains) }

// CountDenied reports whether a call that one of its descriptors denies counts in the others.
func (s *Set) CountDenied(domain string) bool {
	d := s.domains[domain]
	return d == nil || d.countDenied
}

// Match finds the limit of a descriptor. It reports false if there is none: the descriptor counts
// nowhere.
func (s *Set) Match(domain string, d *ratelimitv3.RateLimitDescriptor) (Match, bool) {
	top := s.domains[domain]
	switch {
	case top == nil:
		return Match{UnknownDomain: true}, false
	case d.GetLimit() != nil:
		return override(domain, d), true
	}
	var memory [8]step
	steps, ok := top.walk(d.GetEntries(), memory[:0])
	if !ok || len(steps) == 0 {
		return Match{}, false
	}
	n := steps[len(steps)-1].node
	if n.Limit == nil {
		return Match{}, false
	}
	m := Match{
		Limit: n.Limit, Unit: numberOf(n.Limit.Unit), Shadow: n.ShadowMode, Quota: n.QuotaMode, Metadata: n.Metadata,
	}
	if !n.Limit.Unlimited {
		m.Key = keyOf(domain, n.Limit, d.GetEntries(), steps)
		m.Metric = metricOf(domain, d.GetEntries(), steps)
	}
	return m, true
}

// override is the limit that a descriptor itself has. Nothing of the configuration holds for it.
func override(domain string, d *ratelimitv3.RateLimitDescriptor) Match {
	l := &Limit{Requests: d.GetLimit().GetRequestsPerUnit()}
	m := Match{Limit: l, Metric: metricOfOverride(domain, d.GetEntries())}
	number := rlsv3.RateLimitResponse_RateLimit_Unit(d.GetLimit().GetUnit())
	i := slices.IndexFunc(units, func(u unitOfTime) bool { return u.number == number })
	if i < 0 {
		return m
	}
	m.Unit, l.Unit = number, units[i].name
	l.Windows = units[i].windows(l.Requests)
	m.Key = keyOf(domain, l, d.GetEntries(), nil)
	return m
}

// step is an entry of a descriptor on its way down the configuration.
type step struct {
	node *node // that it has led to
	// how says by what. If it was a pattern, pattern is the part of it in the place of the value.
	how     how
	pattern string
}

type how uint8

const (
	byName    how = iota // key and value
	byPattern            // key and value together fit a name with a *
	byKey                // there was nothing for its value
)

// shares reports whether all values that lead to the node count as one.
func (s *step) shares() bool { return s.how == byPattern && s.node.ShareThreshold && s.pattern != "" }

// walk leads the entries down from the node. It reports false where they lead to nothing.
func (n *node) walk(entries []*ratelimitv3.RateLimitDescriptor_Entry, steps []step) ([]step, bool) {
	for _, e := range entries {
		next, ok := n.find(e.GetKey(), e.GetValue())
		if !ok {
			return nil, false
		}
		steps = append(steps, next)
		n = next.node
	}
	return steps, true
}

// find finds the node below for an entry: first that of its key and value, then the first pattern
// that fits both, then that of the key alone.
func (n *node) find(key, value string) (step, bool) {
	var memory [128]byte
	name := append(append(append(memory[:0], key...), '_'), value...)
	if next := n.below[string(name)]; next != nil {
		return step{node: next, how: byName}, true
	}
	for _, p := range n.patterns {
		if p.fits(name) {
			return step{p.node, byPattern, afterKey(p.node.name, key)}, true
		}
	}
	next := n.below[key]
	return step{node: next, how: byKey}, next != nil
}

// afterKey is the part of a node's name that stands for the value, or the whole name if its key is
// another one: "a_b*" also fits the key a_b.
func afterKey(name, key string) string {
	if rest, ok := strings.CutPrefix(name, key); ok && strings.HasPrefix(rest, "_") {
		return rest[1:]
	}
	return name
}

// fits reports whether the parts stand in the name in their order, the first at its beginning and
// the last at its end.
func (p *pattern) fits(name []byte) bool {
	last := len(p.parts) - 1
	rest, ok := bytes.CutPrefix(name, p.parts[0])
	if !ok {
		return false
	}
	rest, ok = bytes.CutSuffix(rest, p.parts[last])
	for _, part := range p.parts[1:last] {
		if !ok {
			break
		}
		_, rest, ok = bytes.Cut(rest, part)
	}
	return ok
}

// keyOf writes each text behind its length, so that different entries have different keys. Without
// steps no entry shares its counter.
func keyOf(domain string, l *Limit, entries []*ratelimitv3.RateLimitDescriptor_Entry, steps []step) string {
	var memory [256]byte
	kind := byte(0) // of limits with words of ours: no override has such windows
	if !l.Sluice {
		kind = byte(numberOf(l.Unit))
	}
	b := appendText(append(memory[:0], kind), domain)
	for i, e := range entries {
		value := e.GetValue()
		if steps != nil && steps[i].shares() {
			value = steps[i].pattern
		}
		b = appendText(appendText(b, e.GetKey()), value)
	}
	return string(b)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// metricOf is the metric of a limit: its domain and its entries between dots, such as
//
//	api.path_/login.client_ip      of api, {path, /login}, {client_ip, 192.0.2.7}
//
// Clients choose values, so a value stands in it only where the configuration says so: because it has the value itself,
// or by detailed_metric, value_to_metric or share_threshold. It is the node's own text if no value stands in it.
func metricOf(domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry, steps []step) string {
	n := steps[len(steps)-1].node
	shares := slices.ContainsFunc(steps, func(s step) bool { return s.shares() })
	var memory [256]byte
	b := append(memory[:0], domain...)
	for i, e := range entries {
		value := steps[i].shown(e.GetValue(), n.DetailedMetric)
		b = append(append(b, '.'), e.GetKey()...)
		if value != "" || n.DetailedMetric && !shares {
			b = append(append(b, '_'), value...)
		}
	}
	if string(b) == n.metric {
		return n.metric
	}
	return string(b)
}

// shown is what a metric has of an entry's value.
func (s *step) shown(value string, isDetailed bool) string {
	switch {
	case s.shares():
		return s.pattern
	case isDetailed, s.how == byName, s.node.ValueToMetric:
		return value
	case s.how == byPattern:
		return s.pattern
	}
	return ""
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// MetricLabels are the labels domain, key1 and key2 of a metric; empty = it has none. As in the
// service they are its parts between dots, also where a domain or a value has dots.
func MetricLabels(metric string) (domain, key1, key2 string) {
	metric = strings.NewReplacer(":", "_", "|", "_").Replace(metric)
	metric = ipv4.ReplaceAllStringFunc(metric, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
	parts := append(strings.SplitN(metric, ".", 4), "", "", "")
	return parts[0], parts[1], parts[2]
}

// metricOfOverride is the domain and all keys with their values.
func metricOfOverride(domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) string {
	var b strings.Builder
	for _, e := range entries {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(e.GetKey())
		if e.GetValue() != "" {
			b.WriteByte('_')
			b.WriteString(e.GetValue())
		}
	}
	return domain + "." + b.String()
}
