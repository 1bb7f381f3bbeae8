package importer

import (
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// localCells lists the cases of a descriptor: the filter's descriptors without
// an empty value first, then the others, each as a whole. It marks those that a
// request may be of as made.
func (in *source) localCells(o *localv3.LocalRateLimit, entries []entry, made map[*commonv3.LocalRateLimitDescriptor]bool) []cell {
	var exact, dynamic []cell
	for _, d := range o.GetDescriptors() {
		if !fits(d, entries) {
			continue
		}
		made[d] = true
		c := cell{place: in.at(d, ""), quota: in.readBucket(d.GetTokenBucket())}
		open := false
		var names []string
		for i, e := range d.GetEntries() {
			names = append(names, tree{key: e.GetKey(), value: e.GetValue()}.name())
			open = open || e.GetValue() == ""
			switch {
			case entries[i].part == nil:
			case e.GetValue() == "":
				c.patterns = append(c.patterns, pattern{})
			default:
				c.patterns = append(c.patterns, pattern{exactly, e.GetValue()})
			}
		}
		c.shared = make([]bool, len(c.patterns))
		c.name = strings.Join(names, ".")
		if c.quota != nil {
			c.quota.shadow = d.GetShadowMode()
		}
		if open {
			dynamic = append(dynamic, c)
		} else {
			exact = append(exact, c)
		}
	}
	return append(append(exact, dynamic...), nothing(entries))
}

// fits reports whether a request's entries may have the keys and values of a
// descriptor.
func fits(d *commonv3.LocalRateLimitDescriptor, entries []entry) bool {
	if len(d.GetEntries()) != len(entries) {
		return false
	}
	for i, e := range d.GetEntries() {
		if entries[i].key != e.GetKey() || entries[i].part == nil && e.GetValue() != "" && e.GetValue() != entries[i].value {
			return false
		}
	}
	return true
}

// readBucket reads a token bucket; nil where there is none.
func (in *source) readBucket(o *typev3.TokenBucket) *quota {
	if o == nil {
		return nil
	}
	q := &quota{place: in.at(o, ""), numbers: numbers{algorithm: "token_bucket", requests: 1, burst: uint64(o.GetMaxTokens())}}
	if n := o.GetTokensPerFill(); n != nil {
		q.requests = uint64(n.GetValue())
	}
	if q.burst == 0 {
		return &quota{numbers: numbers{per: "1s"}, place: q.place} // always denies, as there
	}
	if o.GetFillInterval() == nil {
		return nil
	}
	ns := int64(o.GetFillInterval().AsDuration())
	if ns < int64(50*time.Millisecond) || ns > limit.MaxPeriodNs {
		in.failField(o, "fill_interval", "must be a duration in seconds from 0.05s to "+
			policy.FormatDuration(limit.MaxPeriodNs)+", such as 60s")
		return nil
	}
	q.per = policy.FormatDuration(ns)
	return q
}
