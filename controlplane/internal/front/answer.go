package front

import (
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const second = 1_000_000_000

// answer is the answer to the call with these totals.
func (c *call) answer(totals []quotaservice.Total) *rlsv3.RateLimitResponse {
	o := &c.service.o
	a := &rlsv3.RateLimitResponse{
		OverallCode: c.code(totals),
		Statuses:    make([]*rlsv3.RateLimitResponse_DescriptorStatus, len(c.parts)),
	}
	for i := range c.parts {
		a.Statuses[i] = c.status(&c.parts[i], totals)
	}
	if o.Headers[0] != "" {
		a.ResponseHeadersToAdd = c.headers(a.Statuses)
	}
	if o.Shadow && a.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		a.OverallCode = rlsv3.RateLimitResponse_OK
		c.service.metrics.globalShadow.Inc()
	}
	if o.Metadata {
		a.DynamicMetadata = c.metadata(a.Statuses)
	}
	return a
}

// code says whether the call passes: unless a limit is exceeded, or all those in quota mode are.
func (c *call) code(totals []quotaservice.Total) rlsv3.RateLimitResponse_Code {
	var inQuota, overQuota int
	for i := range c.parts {
		p := &c.parts[i]
		isOver := p.isDenied(totals)
		if c.isQuota(p) {
			inQuota++
			if isOver {
				overQuota++
			}
		} else if isOver {
			return rlsv3.RateLimitResponse_OVER_LIMIT
		}
	}
	if inQuota > 0 && inQuota == overQuota {
		return rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return rlsv3.RateLimitResponse_OK
}

// isQuota reports whether a part is in quota mode. The option puts all but unlimited ones into it:
//
//	           without the option       with it
//	limited    if quota_mode says so    yes
//	uncounted  no                       yes: it never denies, so the call passes
//	unlimited  no                       no
func (c *call) isQuota(p *part) bool {
	switch p.kind {
	case limited:
		return c.service.o.Quota || p.match.Quota
	case uncounted:
		return c.service.o.Quota
	case unlimited:
	}
	return false
}

// isDenied reports whether the part's limit is exceeded, and not in shadow mode.
func (p *part) isDenied(totals []quotaservice.Total) bool {
	return p.kind == limited && !p.match.Shadow && totals[p.counted].Over
}

// status is how a descriptor stands.
func (c *call) status(p *part, totals []quotaservice.Total) *rlsv3.RateLimitResponse_DescriptorStatus {
	s := &rlsv3.RateLimitResponse_DescriptorStatus{Code: rlsv3.RateLimitResponse_OK}
	switch p.kind {
	case uncounted:
		return s
	case unlimited:
		s.LimitRemaining = math.MaxUint32
		return s
	case limited:
	}
	if p.isDenied(totals) {
		s.Code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	total, windows := &totals[p.counted], c.uses[p.counted].Counter.Windows()
	w, remaining := tightest(windows, total.Windows)
	if !total.Over {
		s.LimitRemaining = remaining
	}
	s.CurrentLimit = &rlsv3.RateLimitResponse_RateLimit{
		Name: p.match.Limit.Name, RequestsPerUnit: windows[w].Limit, Unit: p.match.Unit,
	}
	s.DurationUntilReset = durationpb.New(0)
	if p.match.Limit.Sluice {
		s.DurationUntilReset.Seconds = (total.Windows[w].ResetNs + second - 1) / second
	} else {
		unit := windows[w].PeriodNs / second
		s.DurationUntilReset.Seconds = unit - c.nowUnix%unit
	}
	return s
}

// tightest is the window that has least left: of several the one that begins anew last.
func tightest(windows []limit.Window, standings []quota.Standing) (index int, remaining uint32) {
	remaining = math.MaxUint32
	for i := range windows {
		w, now := &windows[i], &standings[i]
		left := w.Max() - min(w.Max(), now.Used)
		if left < remaining || left == remaining && now.ResetNs > standings[index].ResetNs {
			index, remaining = i, left
		}
	}
	return index, remaining
}

// headers are those of the status that is nearest to its limit. One that denies goes before.
func (c *call) headers(statuses []*rlsv3.RateLimitResponse_DescriptorStatus) []*corev3.HeaderValue {
	var nearest *rlsv3.RateLimitResponse_DescriptorStatus
	least := uint32(math.MaxUint32)
	for i, s := range statuses {
		denies := s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT && !c.isQuota(&c.parts[i])
		if s.GetCurrentLimit() != nil && (denies || s.GetLimitRemaining() < least) {
			nearest, least = s, s.GetLimitRemaining()
		}
	}
	if nearest == nil {
		return nil
	}
	values := [...]int64{
		int64(nearest.GetCurrentLimit().GetRequestsPerUnit()), int64(nearest.GetLimitRemaining()),
		nearest.GetDurationUntilReset().GetSeconds(),
	}
	headers := make([]*corev3.HeaderValue, len(values))
	for i, value := range values {
		headers[i] = &corev3.HeaderValue{Key: c.service.o.Headers[i], Value: strconv.FormatInt(value, 10)}
	}
	return headers
}

// metadata is what a filter behind Envoy's can read: the call, and what the limits say that pass.
func (c *call) metadata(statuses []*rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	descriptors := make([]*structpb.Value, len(c.parts))
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, d := range c.request.GetDescriptors() {
		descriptors[i] = structpb.NewStructValue(describe(d))
		p := &c.parts[i]
		if p.kind == limited && statuses[i].GetCode() == rlsv3.RateLimitResponse_OK {
			addMissing(passed, p.match.Metadata)
		}
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(c.request.GetDomain()),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}
	if n := c.request.GetHitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	if len(passed.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	return &structpb.Struct{Fields: fields}
}

func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if d.GetLimit() != nil {
		fields["limit"] = structpb.NewStringValue(d.GetLimit().String())
	}
	if d.GetHitsAddend() != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.GetHitsAddend().GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// addMissing adds the fields that are not there yet, at every depth.
func addMissing(to, from *structpb.Struct) {
	for name, value := range from.GetFields() {
		there := to.GetFields()[name]
		switch {
		case there == nil:
			to.Fields[name] = proto.CloneOf(value)
		case there.GetStructValue() != nil && value.GetStructValue() != nil:
			addMissing(there.GetStructValue(), value.GetStructValue())
		}
	}
}
