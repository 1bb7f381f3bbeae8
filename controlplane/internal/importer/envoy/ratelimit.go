package envoy

import (
	"fmt"
	"math"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// rateLimit is one of rate_limits.
type rateLimit struct {
	*routev3.RateLimit
	at source.Place
}

// rateLimits reads the rate_limits of an object.
func (r *reader) rateLimits(n *policy.Node, at source.Place) (list []rateLimit) {
	for i, item := range source.ItemsOf(n, "rate_limits") {
		at := at.Item("rate_limits", i)
		list = append(list, rateLimit{decode[*routev3.RateLimit](r, item, at), at})
	}
	return list
}

// ofStage are the rate_limits of a route or a virtual host that are for a filter of the stage. Those in the
// configuration of a filter have no stage.
func (r *reader) ofStage(stage uint32, all []rateLimit) (list []rateLimit) {
	for _, l := range all {
		if its := l.GetStage().GetValue(); its == stage {
			list = append(list, l)
		} else {
			r.Note(l.at, fmt.Sprintf("ignored: it is of stage %d, and the filter of stage %d", its, stage))
		}
	}
	return list
}

// limitsAt are rate_limits of a decoded object at a place.
func limitsAt(decoded []*routev3.RateLimit, at source.Place) (list []rateLimit) {
	for i, l := range decoded {
		list = append(list, rateLimit{l, at.Item("rate_limits", i)})
	}
	return list
}

// maxVariants bounds the descriptors of one list of actions: each header that may be absent doubles them.
const maxVariants = 1_000

// maxActions bounds the entries of a descriptor. A rule's key has fewer parts.
const maxActions = 32

// readRateLimit reads one of rate_limits: the descriptors that Envoy makes of its actions. There are several
// where an entry may be absent. An example:
//
//	actions:
//	- remote_address: {}
//	- request_headers: {header_name: x-user, descriptor_key: user, skip_if_absent: true}
//
// It makes two: remote_address and user, and, for requests without the header, remote_address alone.
func (r *reader) readRateLimit(o rateLimit) []descriptor.Descriptor {
	if n := len(o.GetActions()); n > maxActions {
		r.Fail(o.at.In("actions"), fmt.Sprintf("has %d actions, the most that the import reads is %d", n, maxActions))
		return nil
	}
	d := descriptor.Descriptor{At: o.at}
	if o.GetLimit() != nil {
		d.Cannot("Envoy may send another limit from metadata.")
	}
	if o.GetApplyOnStreamDone() {
		d.Cannot("It counts when the response is complete, and denies nothing.")
	}
	r.readHits(&d, o.GetHitsAddend(), o.at.In("hits_addend"))
	list := []descriptor.Descriptor{d}
	for i, a := range o.GetActions() {
		list = product(list, r.readAction(a, o.at.Item("actions", i)))
		if len(list) > maxVariants {
			list = list[:maxVariants]
			r.Note(o.at.In("actions"), fmt.Sprintf("there are more than %d combinations of headers that may be absent: the "+
				"import left the others out", maxVariants))
		}
	}
	return slices.DeleteFunc(list, func(d descriptor.Descriptor) bool { return len(d.Entries) == 0 })
}

func (r *reader) readHits(d *descriptor.Descriptor, o *routev3.RateLimit_HitsAddend, at source.Place) {
	if o.GetIsNegativeHits() {
		d.Cannot("It refunds tokens.")
	}
	n := o.GetNumber()
	switch {
	case o.GetFormat() != "":
		d.Comment("Envoy counts " + o.GetFormat() + " for a request, this rule 1. A header or query parameter can be a " +
			"rule's cost.")
	case n == nil:
	case n.GetValue() == 0:
		d.Cannot("It asks and counts no hits, by hits_addend 0.")
	case n.GetValue() > math.MaxUint32:
		r.Fail(at.In("number"), "must be a whole number from 0 to 4294967295")
	case n.GetValue() > 1:
		d.Cost = n.GetValue()
	}
}

// product adds every way an action may go to every descriptor.
func product(list, ways []descriptor.Descriptor) []descriptor.Descriptor {
	var all []descriptor.Descriptor
	for _, way := range ways {
		for _, d := range list {
			d.Entries = slices.Concat(d.Entries, way.Entries)
			d.NarrowTo(way.Selection)
			all = append(all, d)
		}
	}
	return all
}
