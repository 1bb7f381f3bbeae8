package envoy

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

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

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
		d.Requests.TurnOff("Envoy may send another limit from metadata.")
	}
	if o.GetApplyOnStreamDone() {
		d.Requests.TurnOff("It counts when the response is complete, and denies nothing.")
	}
	r.readHits(&d, o.GetHitsAddend(), o.at.In("hits_addend"))
	list := []descriptor.Descriptor{d}
	for i, a := range o.GetActions() {
		list = product(list, r.readWays(a, o.at.Item("actions", i)))
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
		d.Requests.TurnOff("It refunds tokens.")
	}
	n := o.GetNumber()
	switch {
	case o.GetFormat() != "":
		d.Requests.Comment("Envoy counts " + o.GetFormat() + " for a request, this rule 1. A header or query parameter " +
			"can be a rule's cost.")
	case n == nil:
	case n.GetValue() == 0:
		d.Requests.TurnOff("It asks and counts no hits, by hits_addend 0.")
	case n.GetValue() > math.MaxUint32:
		r.Fail(at.In("number"), "must be a whole number from 0 to 4294967295")
	case n.GetValue() > 1:
		d.Cost = n.GetValue()
	}
}

// way is what an action adds to the descriptors of some requests.
type way struct {
	entries  []descriptor.Entry // one, or none
	requests request.Selection  // what the import says of them holds for the whole descriptor
}

// product adds each way of an action to each descriptor.
func product(list []descriptor.Descriptor, ways []way) (all []descriptor.Descriptor) {
	for _, w := range ways {
		for _, d := range list {
			d.Entries = slices.Concat(d.Entries, w.entries)
			d.Requests.NarrowTo(w.requests)
			all = append(all, d)
		}
	}
	return all
}

// readWays reads the ways of an action. Most have one; an action that sends a header may have another, for requests
// that lack the header.
func (r *reader) readWays(o *routev3.RateLimit_Action, at source.Place) []way {
	if headers := o.GetRequestHeaders(); headers != nil {
		return r.readRequestHeaders(headers, at)
	}
	return []way{r.readAction(o, at)}
}

// readAction reads the way of an action that has one.
func (r *reader) readAction(o *routev3.RateLimit_Action, at source.Place) way {
	switch a := o.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_QueryParameters_:
		return r.readQueryParameters(a.QueryParameters, at)
	case *routev3.RateLimit_Action_RemoteAddress_:
		return always(descriptor.FromRequest("remote_address", request.ClientIP.Value()))
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		return r.readMasked(a.MaskedRemoteAddress, at)
	case *routev3.RateLimit_Action_GenericKey_:
		return fixed("generic_key", a.GenericKey)
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
		w := fixed("query_match", a.QueryParameterValueMatch)
		w.requests.TurnOff(request.NoMatch("they have a condition on a query parameter"))
		return w
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return r.readRemoteAddressMatch(a.RemoteAddressMatch, at)
	case *routev3.RateLimit_Action_Extension:
		name := a.Extension.GetName()
		return untranslated(request.WhyOff("The extension " + name + " makes this descriptor, and the import " +
			"cannot translate it."))
	}
	return untranslated("The import does not know one of its actions.")
}

// always is what an action adds if it always adds the same.
func always(e descriptor.Entry, comments ...string) way {
	w := way{entries: []descriptor.Entry{e}}
	for _, text := range comments {
		w.requests.Comment(text)
	}
	return w
}

// usually is what an action adds under a key that always stands for the same part of a request.
func usually(key string) way {
	return always(descriptor.FromRequest(key, usual[key]))
}

// untranslated is what an action adds that the import does not know.
func untranslated(why request.WhyOff) way {
	w := always(descriptor.Unknown("", ""))
	w.requests.TurnOff(why)
	return w
}

// fixed is what an action adds that sends the same value for each request,
// under a key of its own if it has none.
func fixed(key string, a valueAction) way {
	key = cmp.Or(a.GetDescriptorKey(), key)
	text := a.GetDescriptorValue()
	switch {
	case text == "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%":
		return always(descriptor.FromRequest(key, request.ClientIP.Value()))
	case !strings.Contains(text, "%"):
		return always(descriptor.Fixed(key, text))
	}
	w := always(descriptor.Unknown(key, text))
	w.requests.TurnOff(request.WhyOff("Envoy's formatter makes the value " + text + " of the request, and the " +
		"import cannot translate that."))
	return w
}

// valueAction is an action that sends a fixed value.
type valueAction interface {
	GetDescriptorKey() string
	GetDescriptorValue() string
}

func (r *reader) readRequestHeaders(a *routev3.RateLimit_Action_RequestHeaders, at source.Place) []way {
	value, ok := r.readHeaderName(a.GetHeaderName(), at)
	if !ok {
		return nil
	}
	switch value.Part.Kind {
	case request.KindPath:
		r.NoteImport(pathNote)
	case request.KindHost:
		r.NoteImport(hostNote)
	default:
	}
	ways := []way{always(descriptor.FromRequest(a.GetDescriptorKey(), value))}
	if a.GetSkipIfAbsent() && value.Part.Kind == request.KindHeader {
		ways = append(ways, way{requests: value.Fitting(request.Absent)})
	}
	return ways
}

func (r *reader) readQueryParameters(a *routev3.RateLimit_Action_QueryParameters, at source.Place) way {
	p := request.Part{Kind: request.KindQuery, Name: a.GetQueryParameterName()}
	if p.Name == "" {
		r.Fail(at, "query_parameters needs a query_parameter_name")
		return way{}
	}
	e := descriptor.FromRequest(cmp.Or(a.GetDescriptorKey(), "query_param"), p.Value())
	if a.GetSkipIfAbsent() {
		return always(e, "Without the query parameter "+p.Name+" Envoy sends the descriptor without this entry. "+
			"Here the rule needs the parameter.")
	}
	return always(e)
}

func (r *reader) readMasked(a *routev3.RateLimit_Action_MaskedRemoteAddress, at source.Place) way {
	p := request.ClientIP
	if n := a.GetV4PrefixMaskLen(); n != nil {
		p.V4 = int(n.GetValue())
	}
	if n := a.GetV6PrefixMaskLen(); n != nil {
		p.V6 = int(n.GetValue())
	}
	if p.V4 > 32 || p.V6 > 128 {
		r.Fail(at, "prefixes are at most 32 and 128 bits")
	}
	return always(descriptor.FromRequest("masked_remote_address", request.Masked(p)))
}

func (r *reader) readHeaderValueMatch(a *routev3.RateLimit_Action_HeaderValueMatch, at source.Place) way {
	w := fixed("header_match", a)
	var s request.Selection
	for i, h := range a.GetHeaders() {
		r.readHeaderMatcher(&s, h, at.In("header_value_match").Item("headers", i))
	}
	if a.GetExpectMatch() == nil || a.GetExpectMatch().GetValue() {
		w.requests.NarrowTo(s)
		return w
	}
	w.requests.AddAll(s.Remarks)
	w.requests.ExemptSelected([]request.Selection{s}, func(int, request.WhyOff) request.WhyOff {
		return request.NoMatch("they must not match headers, and no exemption can say that")
	})
	return w
}

// readMetadata reads an action that sends a value of metadata.
func (r *reader) readMetadata(a *routev3.RateLimit_Action_MetaData, at source.Place) way {
	path := []string{"metadata", "filter_metadata"}
	if a.GetSource() == routev3.RateLimit_Action_MetaData_ROUTE_ENTRY {
		path = []string{"xds", "route_metadata", "filter_metadata"}
	}
	path = append(path, a.GetMetadataKey().GetKey())
	for _, s := range a.GetMetadataKey().GetPath() {
		path = append(path, s.GetKey())
	}
	if slices.Contains(path, "") {
		r.Fail(at, "metadata_key must have a key, and so must each segment of its path")
	}
	var comments []string
	if a.GetDefaultValue() != "" {
		comments = append(comments, "Where the metadata is missing, Envoy sends "+a.GetDefaultValue()+", and this rule "+
			"does not apply. With missing_key: share it counts such requests together.")
	}
	if a.GetSkipIfAbsent() {
		comments = append(comments, "Without the metadata Envoy sends the descriptor without this entry. Here the rule "+
			"needs the metadata.")
	}
	value := request.Property(path...).Value()
	return always(descriptor.FromRequest(a.GetDescriptorKey(), value), comments...)
}

// readRemoteAddressMatch reads an action that sends a fixed entry for clients
// of some networks, or for all others.
func (r *reader) readRemoteAddressMatch(a *routev3.RateLimit_Action_RemoteAddressMatch, at source.Place) way {
	w := fixed("remote_address_match", a)
	var networks []string
	for _, o := range a.GetAddressMatcher().GetRanges() {
		networks = append(networks, r.readCIDRRange(o, at)...)
	}
	switch ranges := request.ExactAll(networks); {
	case ranges == nil:
		w.requests.TurnOff(request.NoMatch("its address_matcher has no ranges"))
	case a.GetAddressMatcher().GetInvertMatch():
		w.requests.ExemptFitting(request.ClientIP.Value(), ranges...)
	default:
		w.requests.Require(request.ClientIP.Value(), ranges...)
	}
	return w
}

// readCIDRRange reads a network. Bits behind the prefix do not count.
func (r *reader) readCIDRRange(o *corev3.CidrRange, at source.Place) (network []string) {
	address, err := netip.ParseAddr(o.GetAddressPrefix())
	if err != nil {
		r.Fail(at, "an address_prefix must be an address such as 10.0.0.0, not "+strconv.Quote(o.GetAddressPrefix()))
		return nil
	}
	prefix, err := address.WithZone("").Prefix(int(o.GetPrefixLen().GetValue()))
	if err != nil {
		r.Fail(at, "a prefix_len must be at most the bits of the address, 32 or 128")
		return nil
	}
	return []string{prefix.String()}
}
