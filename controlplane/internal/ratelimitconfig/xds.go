package ratelimitconfig

import (
	"strconv"
	"strings"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxLevels is how deep descriptors may nest in a resource: as deep as in a file, where each
// level takes two of policy.MaxDepth.
const maxLevels = (policy.MaxDepth - 1) / 2

// nowhere is the place of what has no line.
var nowhere = &policy.Node{}

// FromXDS reads a resource. Its domain and descriptors are checked as those of a file. An error is a
// policyfile.Errors with the resource's name in the place of the file.
func FromXDS(resource *rlsconfv3.RateLimitConfig) (*Config, error) {
	r := &reader{file: resource.GetName()}
	c := &Config{File: resource.GetName(), Domain: resource.GetDomain(), CountDenied: true}
	if c.Domain == "" {
		r.fail(nowhere, "domain", "is missing: a configuration has a domain")
	}
	c.Descriptors = r.levelOfXDS(resource.GetDescriptors(), "descriptors", 1)
	return r.finish(c)
}

// levelOfXDS reads the descriptors of a level and those below them.
func (r *reader) levelOfXDS(list []*rlsconfv3.RateLimitDescriptor, path string, level int) []*Descriptor {
	if level > maxLevels && len(list) > 0 {
		r.fail(nowhere, path, "descriptors nest more than "+strconv.Itoa(maxLevels)+" levels deep")
		return nil
	}
	read := make([]*Descriptor, len(list))
	for i, x := range list {
		d := &Descriptor{
			Key: x.GetKey(), Value: x.GetValue(), Path: path + "[" + strconv.Itoa(i) + "]",
			ShadowMode: x.GetShadowMode(), QuotaMode: x.GetQuotaMode(), DetailedMetric: x.GetDetailedMetric(),
			Metadata: x.GetMetadata(),
		}
		if x.GetRateLimit() != nil {
			d.Limit = r.limitOfXDS(x.GetRateLimit(), d.Path+".rate_limit")
		}
		r.checkDescriptor(nowhere, d)
		d.Descriptors = r.levelOfXDS(x.GetDescriptors(), d.Path+".descriptors", level+1)
		read[i] = d
	}
	return read
}

func (r *reader) limitOfXDS(x *rlsconfv3.RateLimitPolicy, path string) *Limit {
	l := &Limit{
		Requests: x.GetRequestsPerUnit(), Unit: strings.ToLower(x.GetUnit().String()), Unlimited: x.GetUnlimited(),
		Name: x.GetName(),
	}
	for i, replaced := range x.GetReplaces() {
		r.addReplaced(nowhere, path+".replaces["+strconv.Itoa(i)+"]", l, replaced.GetName())
	}
	r.completeLimit(nowhere, path, l, nil)
	return l
}
