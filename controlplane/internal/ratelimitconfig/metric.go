package ratelimitconfig

import (
	"regexp"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// A limit's metric is its domain and its entries between dots, such as
//
//	api.path_/login.client_ip      of api, {path, /login}, {client_ip, 192.0.2.7}
//
// Clients choose values, so a value stands in it only where the configuration says so: because it has
// the value itself, or by detailed_metric, value_to_metric or share_threshold.

// metricOf is the node's own metric, unless the values of entries stand in it.
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
