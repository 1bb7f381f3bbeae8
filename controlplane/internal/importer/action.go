package importer

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// maxVariants bounds the descriptors of one list of actions: each entry that
// may be absent doubles them, and an entry whose value is unknown multiplies them.
const maxVariants = 1_000

// maxActions bounds the entries of a descriptor. A rule's key has fewer parts.
const maxActions = 32

// readRateLimit reads one of rate_limits: the descriptors that Envoy makes of
// its actions. There are several where an entry may be absent.
func (r *reader) readRateLimit(o rateLimit, stage uint32) []descriptor {
	if own := o.GetStage().GetValue(); own != stage {
		r.note(o.at, fmt.Sprintf("ignored: it is of stage %d, and the filter of stage %d", own, stage))
		return nil
	}
	if n := len(o.GetActions()); n > maxActions {
		r.fail(o.at.in("actions"), fmt.Sprintf("has %d actions, the most that the import reads is %d", n, maxActions))
		return nil
	}
	d := descriptor{at: o.at}
	if o.GetLimit() != nil {
		d.cannot("Envoy may send another limit from metadata.")
	}
	if o.GetApplyOnStreamDone() {
		d.cannot("It counts when the response is complete, and denies nothing.")
	}
	r.readHits(&d, o.GetHitsAddend(), o.at.in("hits_addend"))
	list := []descriptor{d}
	for i, a := range o.GetActions() {
		list = product(list, r.readAction(a, o.at.item("actions", i)))
		if len(list) > maxVariants {
			list = list[:maxVariants]
			r.note(o.at.in("actions"), fmt.Sprintf("there are more than %d combinations of values and of headers that may be "+
				"absent: the import left the others out", maxVariants))
		}
	}
	return slices.DeleteFunc(list, func(d descriptor) bool { return len(d.entries) == 0 })
}

func (r *reader) readHits(d *descriptor, o *routev3.RateLimit_HitsAddend, at place) {
	if o.GetIsNegativeHits() {
		d.cannot("It refunds tokens.")
	}
	n := o.GetNumber()
	switch {
	case o.GetFormat() != "":
		d.note("Envoy counts " + o.GetFormat() + " for a request, this rule 1. A header or query parameter can be a rule's " +
			"cost.")
	case n == nil:
	case n.GetValue() == 0:
		d.cannot("It asks and counts no hits, by hits_addend 0.")
	case n.GetValue() > math.MaxUint32:
		r.fail(at.in("number"), "must be a whole number from 0 to 4294967295")
	case n.GetValue() > 1:
		d.cost = n.GetValue()
	}
}

// readAction reads the ways in which an action may add to a descriptor.
func (r *reader) readAction(o *routev3.RateLimit_Action, at place) []descriptor {
	switch a := o.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_RequestHeaders_:
		return r.readRequestHeaders(a.RequestHeaders, at)
	case *routev3.RateLimit_Action_QueryParameters_:
		return r.readQueryParameters(a.QueryParameters, at)
	case *routev3.RateLimit_Action_RemoteAddress_:
		return always(entry{key: "remote_address", part: &clientIP})
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		return r.readMasked(a.MaskedRemoteAddress, at)
	case *routev3.RateLimit_Action_GenericKey_:
		return []descriptor{fixed("generic_key", a.GenericKey)}
	case *routev3.RateLimit_Action_HeaderValueMatch_:
		return r.readHeaderValueMatch(a.HeaderValueMatch, at)
	case *routev3.RateLimit_Action_Metadata:
		return r.readMetadata(a.Metadata, at)
	case *routev3.RateLimit_Action_DynamicMetadata:
		m := a.DynamicMetadata //nolint:staticcheck // deprecated, and still in use
		return r.readMetadata(&routev3.RateLimit_Action_MetaData{
			DescriptorKey: m.GetDescriptorKey(), MetadataKey: m.GetMetadataKey(), DefaultValue: m.GetDefaultValue(),
		}, at)
	case *routev3.RateLimit_Action_SourceCluster_:
		return usually("source_cluster")
	case *routev3.RateLimit_Action_DestinationCluster_:
		return usually("destination_cluster")
	case *routev3.RateLimit_Action_QueryParameterValueMatch_:
		d := fixed("query_match", a.QueryParameterValueMatch)
		d.cannotMatch("they have a condition on a query parameter")
		return []descriptor{d}
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return r.readRemoteAddressMatch(a.RemoteAddressMatch, at)
	case *routev3.RateLimit_Action_Extension:
		name := a.Extension.GetName()
		return untranslated(name, "The extension "+name+" makes this descriptor, and the import cannot translate it.")
	}
	return untranslated("", "The import does not know one of its actions.")
}

// always is what an action adds if it always adds the same.
func always(e entry, notes ...string) []descriptor {
	return []descriptor{{entries: []entry{e}, selection: selection{notes: notes}}}
}

// usually is what an action adds under a key that always stands for the same part of a request.
func usually(key string) []descriptor {
	p := usual[key]
	return always(entry{key: key, part: &p})
}

// untranslated is what an action adds that a policy cannot say.
func untranslated(key, why string) []descriptor {
	return []descriptor{{entries: []entry{{key: key}}, selection: selection{whyOff: []string{why}}}}
}

// product adds every way an action may go to every descriptor.
func product(list, ways []descriptor) []descriptor {
	var all []descriptor
	for _, way := range ways {
		for _, d := range list {
			d.entries = slices.Concat(d.entries, way.entries)
			d.selection = d.and(way.selection)
			all = append(all, d)
		}
	}
	return all
}

func (r *reader) readRequestHeaders(a *routev3.RateLimit_Action_RequestHeaders, at place) []descriptor {
	p, ok := r.readHeaderPart(a.GetHeaderName(), at)
	if !ok {
		return nil
	}
	switch p.kind {
	case kindPath:
		r.note(place{}, pathNote)
	case kindHost:
		r.note(place{}, "Hosts are counted in lower case and without port here. Envoy sends them as they come.")
	default:
	}
	ways := always(entry{key: a.GetDescriptorKey(), part: &p})
	if a.GetSkipIfAbsent() && p.kind == kindHeader {
		ways = append(ways, descriptor{selection: selection{match: p.matching(pattern{kind: absent})}})
	}
	return ways
}

func (r *reader) readQueryParameters(a *routev3.RateLimit_Action_QueryParameters, at place) []descriptor {
	p := part{kind: kindQuery, name: a.GetQueryParameterName()}
	if p.name == "" {
		r.fail(at, "query_parameters needs a query_parameter_name")
		return nil
	}
	e := entry{key: cmp.Or(a.GetDescriptorKey(), "query_param"), part: &p}
	if a.GetSkipIfAbsent() {
		return always(e, "Without the query parameter "+p.name+" Envoy sends the descriptor without this entry. Here the "+
			"rule needs the parameter.")
	}
	return always(e)
}

func (r *reader) readMasked(a *routev3.RateLimit_Action_MaskedRemoteAddress, at place) []descriptor {
	p := clientIP
	if n := a.GetV4PrefixMaskLen(); n != nil {
		p.v4 = int(n.GetValue())
	}
	if n := a.GetV6PrefixMaskLen(); n != nil {
		p.v6 = int(n.GetValue())
	}
	if p.v4 > 32 || p.v6 > 128 {
		r.fail(at, "prefixes are at most 32 and 128 bits")
	}
	return always(entry{key: "masked_remote_address", part: &p})
}

// fixed is what an action adds that sends the same value for each request,
// under a key of its own if it has none.
func fixed(key string, a valueAction) descriptor {
	e := entry{key: cmp.Or(a.GetDescriptorKey(), key), value: a.GetDescriptorValue()}
	if e.value == "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%" {
		return descriptor{entries: []entry{{key: e.key, part: &clientIP}}}
	}
	d := descriptor{entries: []entry{e}}
	if strings.Contains(e.value, "%") {
		d.cannot("Envoy's formatter makes the value " + e.value + " of the request, and the import cannot translate that.")
	}
	return d
}

func (r *reader) readHeaderValueMatch(a *routev3.RateLimit_Action_HeaderValueMatch, at place) []descriptor {
	d := fixed("header_match", a)
	var s selection
	for i, h := range a.GetHeaders() {
		r.readHeaderMatcher(&s, h, at.in("header_value_match").item("headers", i))
	}
	d.whyOff, d.notes = append(d.whyOff, s.whyOff...), s.notes
	switch {
	case a.GetExpectMatch() == nil || a.GetExpectMatch().GetValue():
		d.match, d.exempt = s.match, s.exempt
	case len(s.exempt) > 0 || len(s.match) == 0:
		d.cannotMatch("they must not match headers, of which some are inverted")
	default:
		d.exempt = []match{s.match}
	}
	return []descriptor{d}
}

// readMetadata reads an action that sends a value of metadata.
func (r *reader) readMetadata(a *routev3.RateLimit_Action_MetaData, at place) []descriptor {
	path := []string{"metadata", "filter_metadata"}
	if a.GetSource() == routev3.RateLimit_Action_MetaData_ROUTE_ENTRY {
		path = []string{"xds", "route_metadata", "filter_metadata"}
	}
	path = append(path, a.GetMetadataKey().GetKey())
	for _, s := range a.GetMetadataKey().GetPath() {
		path = append(path, s.GetKey())
	}
	if slices.Contains(path, "") {
		r.fail(at, "metadata_key must have a key, and so must each segment of its path")
	}
	var notes []string
	if a.GetDefaultValue() != "" {
		notes = append(notes, "Where the metadata is missing, Envoy sends "+a.GetDefaultValue()+", and this rule does not "+
			"apply. With missing_key: share it counts such requests together.")
	}
	if a.GetSkipIfAbsent() {
		notes = append(notes, "Without the metadata Envoy sends the descriptor without this entry. Here the rule needs "+
			"the metadata.")
	}
	return always(entry{key: a.GetDescriptorKey(), part: &part{kind: kindProperty, path: path}}, notes...)
}

// readRemoteAddressMatch reads an action that sends a fixed entry for clients
// of some networks, or for all others.
func (r *reader) readRemoteAddressMatch(a *routev3.RateLimit_Action_RemoteAddressMatch, at place) []descriptor {
	d := fixed("remote_address_match", a)
	var networks []string
	for _, o := range a.GetAddressMatcher().GetRanges() {
		networks = append(networks, r.readCIDRRange(o, at)...)
	}
	switch m := clientIP.matching(exact(networks)...); {
	case networks == nil:
		d.cannotMatch("its address_matcher has no ranges")
	case a.GetAddressMatcher().GetInvertMatch():
		d.exempt = []match{m}
	default:
		d.match = m
	}
	return []descriptor{d}
}

// readCIDRRange reads a network. Bits behind the prefix do not count.
func (r *reader) readCIDRRange(o *corev3.CidrRange, at place) (network []string) {
	address, err := netip.ParseAddr(o.GetAddressPrefix())
	if err != nil {
		r.fail(at, "an address_prefix must be an address such as 10.0.0.0, not "+strconv.Quote(o.GetAddressPrefix()))
		return nil
	}
	prefix, err := address.WithZone("").Prefix(int(o.GetPrefixLen().GetValue()))
	if err != nil {
		r.fail(at, "a prefix_len must be at most the bits of the address, 32 or 128")
		return nil
	}
	return []string{prefix.String()}
}

// valueAction is an action that sends a fixed value.
type valueAction interface {
	GetDescriptorKey() string
	GetDescriptorValue() string
}
